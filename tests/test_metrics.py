import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics import Agreement, GeneralizationScore, Ladder, Linearity, Pairs, SampleAgreement, gaussian_mse
from gaussbias.metrics.agreement import agreement, sample_agreement
from gaussbias.metrics.errors import DenoisingErrors
from gaussbias.metrics.generalization import wilson_interval
from gaussbias.metrics.linearity import linearity
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import Projection, estimate, project
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample

DOUBLE = torch.float64
SIGMAS = torch.tensor([80.0, 0.5, 0.002], dtype=DOUBLE)


def points(digits, random, m=8):
    x0 = to_unit(digits[:m], DOUBLE)
    eps = torch.randn(x0.shape, generator=random, dtype=DOUBLE)
    return x0, eps, torch.stack([x0 + sigma * eps for sigma in SIGMAS])


# linearity


def test_affine_maps_are_perfectly_linear_about_any_point_but_not_in_the_plain_form(digits, random):
    _, _, x = points(digits, random)
    weight = torch.randn(64, 64, generator=random, dtype=DOUBLE)
    bias = torch.randn(64, generator=random, dtype=DOUBLE)

    def affine(x, sigma):
        return (x.flatten(1) @ weight.T + bias).view_as(x)

    output = torch.stack([affine(level, None) for level in x])
    mean = torch.randn(1, 8, 8, generator=random, dtype=DOUBLE)
    values = linearity(affine, x, output, SIGMAS, mean)
    assert values["affine_cosine"].shape == (3, 2)  # of 4 pairs 2 are mixed about the mean and 2 plainly
    assert (values["affine_cosine"] - 1).abs().max() < 1e-12
    assert values["affine_nmse"].max() < 1e-12
    # closed form: D(mix) - (a D1 + b D2) = (1 - sqrt 2) bias
    mixed = ((x[:, :2] + x[:, 4:6]) / 2**0.5).flatten(2) @ weight.T + bias
    expected = (2**0.5 - 1) * bias.norm() / mixed.norm(dim=-1)
    assert torch.allclose(values["nmse"], expected, rtol=1e-9)
    combined = mixed + (2**0.5 - 1) * bias
    cosine = (mixed * combined).sum(-1) / mixed.norm(dim=-1) / combined.norm(dim=-1)
    assert torch.allclose(values["cosine_signed"], cosine, rtol=1e-12)
    assert torch.equal(values["cosine"], values["cosine_signed"].abs())


def test_plain_linearity_of_the_gaussian_denoiser_is_imperfect_where_its_bias_is_large(digits, random):
    moments = estimate(digits)
    gaussian = GaussianDenoiser(moments, DOUBLE)
    x0, eps, x = points(digits, random, 64)
    mean = moments.mean.view(1, 8, 8)
    values = linearity(gaussian, x, gaussian.forward_grid(x0, eps, SIGMAS.tolist()), SIGMAS, mean)
    assert values["nmse"][0].mean() > 0.35  # at sigma 80, D_G is nearly constant: sqrt 2 - 1
    assert values["nmse"][0].max() < 2**0.5 - 1 + 0.02
    assert values["affine_nmse"].max() < 1e-9


def test_a_nonlinear_map_has_the_value_worked_out_by_hand():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=DOUBLE).view(1, 2, 1, 1, 2)

    def square(x, sigma):
        return x * x.abs() + 1

    sigmas = torch.tensor([1.0], dtype=DOUBLE)
    values = linearity(square, x, square(x, None), sigmas, torch.zeros(1, 1, 2, dtype=DOUBLE))
    # D(mix) = (1.5, 1.5); a D1 + b D2 = (3, 3)/sqrt 2; about 0: (.5, .5) against (1, 1)/sqrt 2
    assert float(values["nmse"]) == pytest.approx((3 / 2**0.5 - 1.5) / 1.5)
    assert float(values["affine_nmse"]) == pytest.approx((1 / 2**0.5 - 0.5) / 0.5)
    assert float(values["cosine_signed"]) == pytest.approx(1)
    negative = linearity(lambda x, s: -x.abs() + 1.0, x, 1.0 - x.abs(), sigmas, torch.zeros(1, 1, 2, dtype=DOUBLE))
    assert float(negative["affine_nmse"]) == pytest.approx(0, abs=1e-12)
    flipped = linearity(lambda x, s: (x.sum((1, 2, 3), keepdim=True) > 1.2) * -2 * x + x, x, x, sigmas, 0 * x[0, 0])
    assert float(flipped["cosine_signed"]) == pytest.approx(-1)
    assert float(flipped["cosine"]) == pytest.approx(1)


def test_the_affine_cosine_keeps_its_sign_and_two_zeros_are_the_same():
    x = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=DOUBLE).view(1, 2, 1, 1, 2)
    sigmas, mean = torch.tensor([1.0], dtype=DOUBLE), torch.zeros(1, 1, 2, dtype=DOUBLE)

    def turns(x, sigma):
        return torch.where(x.norm(dim=-1, keepdim=True) > 2, -x, x)  # a(x1 + x2) has norm 3.2, x2 norm 1.4

    values = linearity(turns, x, x, sigmas, mean)
    assert float(values["affine_cosine"]) == pytest.approx(-1)
    assert float(values["affine_nmse"]) == pytest.approx(2)
    constant = linearity(lambda x, s: 0 * x + 1, x, 0 * x + 1, sigmas, mean)
    assert float(constant["affine_cosine"]) == 1
    assert float(constant["affine_nmse"]) == 0


def test_the_affine_forms_mix_about_the_given_mean(digits, random):
    _, _, x = points(digits, random)
    mean = torch.randn(1, 8, 8, generator=random, dtype=DOUBLE)
    values = linearity(lambda x, s: x.square(), x, x.square(), SIGMAS, mean)
    a, b = x[:, 2:4], x[:, 6:]
    mixed = (mean + (a + b - 2 * mean) / 2**0.5) ** 2 - mean**2
    expected = (a**2 + b**2 - 2 * mean**2) / 2**0.5
    nmse = (mixed - expected).flatten(2).norm(dim=-1) / mixed.flatten(2).norm(dim=-1)
    assert torch.allclose(values["affine_nmse"], nmse, rtol=1e-9)


def test_odd_blocks_are_refused(digits, random):
    _, _, x = points(digits, random, 3)
    with pytest.raises(ValueError, match="even number of images"):
        linearity(lambda x, s: x, x, x, SIGMAS, x[0, 0])


# agreement


def test_agreement_is_what_its_names_say(random):
    output, gaussian, empirical = torch.randn(3, 2, 5, 1, 2, 2, generator=random, dtype=DOUBLE)
    values = agreement(output, gaussian, empirical)
    for s in range(2):
        for i in range(5):
            d, g, m = (t.flatten().numpy() for t in (output[s, i], gaussian[s, i], empirical[s, i]))
            assert float(values["gaussian/rmse"][s, i]) == pytest.approx(math.sqrt(((d - g) ** 2).sum() / 4))
            assert float(values["gaussian/nmse"][s, i]) == pytest.approx(np.linalg.norm(d - g) / np.linalg.norm(d))
            assert float(values["empirical/rmse"][s, i]) == pytest.approx(math.sqrt(((d - m) ** 2).sum() / 4))


def test_expected_gaussian_error_on_its_own_data_is_the_sum_over_modes(digits):
    for n in (1400, 30):
        moments = estimate(digits[:n])
        lam = moments.eigenvalues
        expected = [float((lam * s**2 / (lam + s**2)).sum() / 64) for s in SIGMAS.tolist()]
        itself = Projection(torch.zeros_like(lam), lam, 0.0, 0.0)
        assert gaussian_mse(moments, itself, SIGMAS.tolist()).tolist() == pytest.approx(expected, rel=1e-9)
        seen = project(moments, digits[:n])
        assert gaussian_mse(moments, seen, SIGMAS.tolist()).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("n", [1400, 30])
def test_expected_gaussian_error_on_held_out_images_matches_draws(n, digits, random):
    moments, pool = estimate(digits[:n]), digits[1400:]
    gaussian = GaussianDenoiser(moments, DOUBLE)
    x0 = to_unit(pool, DOUBLE).repeat(40, 1, 1, 1)  # every image as often: no error from their choice
    sigmas = [80.0, 1.0, 0.1]
    for sigma, expected in zip(sigmas, gaussian_mse(moments, project(moments, pool), sigmas).tolist(), strict=True):
        x = x0 + sigma * torch.randn(x0.shape, generator=random, dtype=DOUBLE)
        errors = (gaussian(x, sigma) - x0).square().flatten(1).mean(1)
        assert abs(float(errors.mean()) - expected) < 4 * float(errors.std()) / len(errors) ** 0.5


# generalisation


def test_training_images_score_zero_and_are_memorised(digits):
    nearest = NearestImages(digits[:500], chunk=64)
    found = nearest(to_unit(digits[:40], DOUBLE))
    assert found.first.max() < 1e-12
    assert torch.equal(found.index, torch.arange(40))
    assert found.memorized.all()


def test_neighbours_match_brute_force(digits, random):
    x = to_unit(digits[1000:1100], DOUBLE) + 0.3 * torch.randn(100, 1, 8, 8, generator=random, dtype=DOUBLE)
    distances = (x.flatten(1)[:, None] - to_unit(digits[:1000], DOUBLE).flatten(1)).norm(dim=-1)
    two = distances.topk(2, largest=False)
    for chunk in (37, 4096):
        found = NearestImages(digits[:1000], chunk=chunk)(x)
        assert (found.first - two.values[:, 0]).abs().max() < 1e-12
        assert (found.second - two.values[:, 1]).abs().max() < 1e-12
        assert torch.equal(found.index, two.indices[:, 0])
        assert torch.allclose(found.relative, two.values[:, 0] / x.flatten(1).norm(dim=1))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("directions", [0, 5, 256])
def test_neighbours_are_exact_however_loose_the_bound(directions, flip, random):
    """1,200 pixels, more images than blocks of bounds; queries like the images, on them, and of mere noise."""
    mix = torch.randn(1200, 1200, generator=random) / torch.arange(1, 1201)[:, None]
    fields = torch.randn(700, 1200, generator=random) @ mix
    images = (128 + 40 * fields / fields.std()).round().clamp(0, 255).to(torch.uint8).view(700, 3, 20, 20)
    images[650:] = images[:50]  # exact copies
    x = torch.cat([to_unit(images[600:], DOUBLE), torch.randn(40, 3, 20, 20, generator=random, dtype=DOUBLE)])
    x = torch.cat([x, x[:100] + 0.2 * torch.randn(100, 3, 20, 20, generator=random, dtype=DOUBLE), 30 * x[-20:]])
    every = torch.cat([images, mirror(images)]) if flip else images
    distances = (x.flatten(1)[:, None] - to_unit(every, DOUBLE).flatten(1)).norm(dim=-1)
    first, index = distances.min(1)
    same = torch.arange(700).where(torch.arange(700) < 650, torch.arange(700) - 650).repeat(1 + flip)
    second = distances.masked_fill(same == same[index][:, None], torch.inf).amin(1)
    found = NearestImages(images, flip, directions=directions)(x)
    assert (found.first - first).abs().max() < 1e-12
    assert (found.second - second).abs().max() < 1e-12
    assert torch.equal(same[found.index], same[index])


def test_a_query_that_is_not_a_number_has_no_neighbour(digits):
    x = to_unit(digits[:3], DOUBLE)
    x[1, 0, 0, 0] = torch.nan
    found = NearestImages(digits[:100])(x)
    assert found.first.isnan().tolist() == [False, True, False]
    assert found.memorized.tolist() == [True, False, True]


def test_copies_and_mirrored_copies_are_not_different_images(digits):
    image, others = digits[:1], digits[1:40]
    x = to_unit(image, DOUBLE) + 0.01
    alone = NearestImages(torch.cat([image, others]))(x)
    for copies in (image.repeat(2, 1, 1, 1), image.repeat(30, 1, 1, 1)):  # fewer and more than the candidates
        found = NearestImages(torch.cat([copies, others]))(x)
        assert float(found.second) == pytest.approx(float(alone.second), abs=1e-12)
        assert found.memorized.all()
    both = NearestImages(torch.cat([image, mirror(image), others]), flip=True)(to_unit(mirror(image), DOUBLE) + 0.01)
    assert float(both.first) == pytest.approx(0.08)
    assert float(both.second) > 1
    only = NearestImages(image.repeat(3, 1, 1, 1))(x)
    assert only.second.isinf().all()


def test_without_another_image_nothing_is_memorised_rather_than_it(digits, random):
    """Noise would be a copy of the only image otherwise, infinitely nearer to it than to the next one."""
    noise = torch.randn(20, 1, 8, 8, generator=random)
    for images in (digits[:1].repeat(30, 1, 1, 1), digits[:2]):
        metric = GeneralizationScore(NearestImages(images), 20)
        metric.update(noise)
        values = metric.compute()
        names = ("memorized_fraction", "memorized_fraction_low", "memorized_fraction_high")
        if len(images) == 30:
            assert all(values[name].isnan() for name in names)
        else:
            assert [float(values[name]) for name in names[:2]] == [0, 0]
        assert float(values["gl_score"]) > 0.5


def test_a_third_is_the_limit_of_memorisation():
    images = torch.zeros(2, 1, 1, 2)
    images[1, ..., 0] = 1.0
    x = torch.zeros(4, 1, 1, 2)
    x[:, 0, 0, 0] = torch.tensor([0.24, 0.26, 0.3, 0.9])  # d1/d2 = 0.316, 0.351, 0.43, 0.11
    assert NearestImages(images)(x).memorized.tolist() == [True, False, False, True]


def test_neighbours_among_more_near_copies_than_candidates(random):
    base = torch.randint(2, 254, (1, 3, 32, 32), generator=random, dtype=torch.uint8)
    copies = base.repeat(60, 1, 1, 1)
    for i in range(60):
        copies[i].view(-1)[i] += 1
    images = torch.cat([copies, torch.randint(0, 256, (100, 3, 32, 32), generator=random, dtype=torch.uint8)])
    for flip in (False, True):
        found = NearestImages(images, flip, chunk=50)(to_unit(images[:60], DOUBLE))
        assert found.first.max() < 1e-12
        assert torch.equal(found.index, torch.arange(60))
        assert torch.allclose(found.second, torch.full((60,), 2**0.5 / 127.5, dtype=DOUBLE))


def test_the_memorisers_samples_are_memorised_and_real_images_are_not(digits, random):
    nearest = NearestImages(digits[:1000])
    metric = GeneralizationScore(nearest, 24)
    latents = torch.randn(24, 1, 8, 8, generator=random)
    metric.update(sample(EmpiricalDenoiser(digits[:1000]), latents, karras_sigmas(18)), 0)
    values = metric.compute()
    assert float(values["gl_score"]) < 1e-3
    assert float(values["memorized_fraction"]) == 1
    real = GeneralizationScore(nearest, 300)
    for start in (0, 100, 200):
        real.update(to_unit(digits[1400 + start : 1500 + start]), start)
    values = real.compute()
    assert 0.25 < float(values["gl_score"]) < 0.4
    assert float(values["memorized_fraction"]) < 0.02
    assert values["memorized_fraction_low"] <= values["memorized_fraction"] < values["memorized_fraction_high"]


@pytest.mark.parametrize(("k", "n"), [(0, 200), (1, 7), (52, 200), (200, 200)])
def test_wilson_interval_matches_scipy(k, n):
    expected = binomtest(k, n).proportion_ci(method="wilson")
    assert wilson_interval(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_sample_agreement_subtracts_the_mean(random):
    mean = torch.randn(1, 2, 2, generator=random, dtype=DOUBLE)
    x, y = torch.randn(2, 5, 1, 2, 2, generator=random, dtype=DOUBLE)
    values = sample_agreement(x + mean, y + mean, mean)
    expected = torch.nn.functional.cosine_similarity(x.flatten(1), y.flatten(1))
    assert torch.allclose(values["samples/gaussian_cosine"], expected)
    assert torch.allclose(values["samples/gaussian_rmse"], (x - y).flatten(1).norm(dim=1) / 2)


# blocks


def test_the_order_of_blocks_does_not_matter_and_none_is_counted_twice(random):
    draws = torch.randn(3, 4, 2, 6, 1, 2, 2, generator=random, dtype=DOUBLE)
    values = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        metric = Agreement(4, 2)
        for block in order:
            metric.update(*draws[:, block], block)
        values.append(metric.compute())
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    assert values[0]["gaussian/rmse"].shape == (2,)
    metric.update(*draws[:, 0], 0)
    with pytest.raises(ValueError, match="filled once"):
        metric.compute()


def _two_processes(rank, folder):
    torch.set_num_threads(1)
    if rank is not None:
        torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (300, 1, 4, 4), generator=random, dtype=torch.uint8)
    moments = estimate(images)
    gaussian, memory = GaussianDenoiser(moments, DOUBLE), EmpiricalDenoiser(images)
    sigmas = torch.tensor([2.0, 0.3], dtype=DOUBLE)
    network = lambda x, s: torch.tanh(x)  # noqa: E731
    metrics = {
        "agreement": Agreement(5, 2),
        "ladder": Ladder(5, [2.0, 0.3], moments, moments),
        "errors": DenoisingErrors(5, torch.ones(2, dtype=DOUBLE), position=True),
        "linearity": Linearity(5, 2, moments.mean.view(1, 4, 4)),
        "generalization": GeneralizationScore(NearestImages(images), 50),
        "samples": SampleAgreement(50, moments.mean.view(1, 4, 4)),
    }
    for block in range(5):
        x0 = to_unit(images[torch.randint(300, (10,), generator=random)], DOUBLE)
        eps, others = torch.randn(2, 10, 1, 4, 4, generator=random, dtype=DOUBLE)
        if rank is not None and block % 2 != rank:
            continue
        x = torch.stack([x0 + s * eps for s in sigmas])
        grids = [d.forward_grid(x0, eps, sigmas.tolist()) for d in (gaussian, memory)]
        metrics["agreement"].update(torch.tanh(x), *grids, block)
        pairs = Pairs(moments, x0, eps, sigmas.tolist())
        metrics["ladder"].update(torch.tanh(x), grids[0], block, pairs)
        metrics["errors"].update(torch.tanh(x), grids[1], grids[0], x0, block)
        metrics["linearity"].update(network, x, torch.tanh(x), sigmas, block)
        metrics["generalization"].update(others, 10 * block)
        metrics["samples"].update(others, eps, 10 * block)
    values = {f"{name}/{key}": v for name, m in metrics.items() for key, v in m.compute().items()}
    values |= {f"{name}/{key}/blocks": e.pseudo for name, m in metrics.items() for key, e in m.estimates.items()}
    torch.save(values, Path(folder) / f"{rank}.pt")
    if rank is not None:
        torch.distributed.destroy_process_group()


def test_two_processes_equal_one():
    with tempfile.TemporaryDirectory() as folder:
        _two_processes(None, folder)
        torch.multiprocessing.spawn(_two_processes, (folder,), nprocs=2)
        one, first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in (None, 0, 1))
    assert one.keys() == first.keys()
    for key in one:
        assert torch.equal(first[key], second[key]), key
        assert torch.equal(one[key], first[key]), key  # the same blocks, the same sums: bit for bit
