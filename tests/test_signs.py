"""Early signs of memorisation against their definitions, closed forms and exact nulls.

Mutations that were tried, each of which fails a test here: the share's variance with the binomial's; `<` for `<=` and
the other sign in the Mann-Whitney placements; contributions of draws in place of images; errors not less D_G's; the
trace without D_G's part, with the other sign, times sigma in place of over it, and without its control variate;
`sigma^2 / d` left out of the consistency; the gain over `lam` in place of `lam + sigma^2`, and of D in place of
D - D_G.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import kstest, mannwhitneyu

from gaussbias import Ruler
from gaussbias.backbones import build
from gaussbias.catalogue import GAIN, SAMPLE_SPREAD, SAMPLE_SPREAD_GAUSSIAN, component_places, numbered
from gaussbias.config import ModelConfig
from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import EDMDenoiser, EmpiricalDenoiser, GaussianDenoiser
from gaussbias.history.crossings import emergence
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.metrics.novelty import Novelty, nearer, relabelled, train_share
from gaussbias.metrics.pools import Drawn, mean_difference, probability_below
from gaussbias.metrics.spread import Spread
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample

DOUBLE = torch.float64
SIGMAS = [1.5, 0.47, 0.117]


@pytest.fixture(scope="module")
def shuffled(digits):
    """Digits in a random order: their writers follow one another in the file."""
    return digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(1))]


@pytest.fixture(scope="module")
def ruler(shuffled):
    return Ruler(shuffled[:100], shuffled[1400:], draws=512, sigmas=SIGMAS, samples=64, sampler_sigmas=karras_sigmas(8))


@pytest.fixture(scope="module")
def memoriser(ruler, shuffled):
    return ruler(EmpiricalDenoiser(shuffled[:100]))


# novelty


def test_the_error_over_relabellings_is_that_of_all_relabellings(random):
    scores = torch.tensor([3.0, 1.0, 0.0, 2.0, 2.0, 7.0], dtype=DOUBLE)
    for labelled in (1, 2, 4):
        sums = [scores[list(some)].sum() / 5 for some in itertools.combinations(range(6), labelled)]
        found = relabelled(scores[:labelled].sum() / 5, scores, labelled, 5)
        assert float(found.se) == pytest.approx(float(torch.stack(sums).std(correction=0)), rel=1e-12)


def test_the_share_is_that_of_loops_and_counts_ties_half(shuffled, random):
    training, heldout, new = shuffled[:60], shuffled[60:100], shuffled[100:120].clone()
    heldout = torch.cat([heldout, training[:1]])  # an image of both
    new[0] = training[0]
    metric = Novelty(NearestImages(training), NearestImages(heldout), 20, torch.rand(30, generator=random))
    metric.update(to_unit(new[:8]))
    metric.update(to_unit(new[8:]), 8)
    metric.compute()
    found = metric.estimates["train_share"]
    units = [to_unit(part, DOUBLE).flatten(1).numpy() for part in (new, training, heldout)]
    share, counts = 0.0, np.zeros(101)
    for x in units[0]:
        near, far = (np.linalg.norm(x - part, axis=1) for part in units[1:])
        inside = float(near.min() < far.min()) + 0.5 * (near.min() == far.min())
        share += inside / 20
        counts[near.argmin()] += inside
        counts[60 + far.argmin()] += 1 - inside
    assert share == pytest.approx(float(found.value))
    assert (share * 20) % 1 == 0.5
    variance = 60 * 41 / (101 * 100) * ((counts - 20 / 101) ** 2).sum() / 20**2
    assert float(found.se) == pytest.approx(variance**0.5, rel=1e-9)


def test_new_images_have_the_null_and_a_standard_normal_z(shuffled, random):
    """1,000 relabellings of real images: which 100 of 497 are the training images."""
    new, images = (to_unit(part, DOUBLE).flatten(1) for part in (shuffled[:400], shuffled[400:897]))
    distances = torch.cdist(new, images)
    null, heights, binomial = 100 / 497, [], []
    for _ in range(1000):
        labels = torch.randperm(497, generator=random)
        near, far = (distances[:, some].min(1) for some in (labels[:100], labels[100:]))
        found = train_share(near.values, far.values, (near.indices, far.indices), (100, 397))
        heights.append(float((found.value - null) / found.se))
        binomial.append(float(found.value - null) / (null * (1 - null) / 400) ** 0.5)
    assert kstest(heights, "norm").pvalue > 0.01
    assert np.mean(np.abs(heights) > 1.96) == pytest.approx(0.05, abs=0.02)
    assert np.mean(np.abs(binomial) > 1.96) > 0.075  # what is wrong with it


@pytest.mark.parametrize("digits_kept", [1, 12])  # with ties, and without
def test_nearest_auc_is_scipys(digits_kept, random):
    new = torch.randn(50, generator=random, dtype=DOUBLE).round(decimals=digits_kept) + 0.3
    real = torch.randn(80, generator=random, dtype=DOUBLE).round(decimals=digits_kept) + 0.3
    found = nearer(new, real)
    theirs = mannwhitneyu(real.numpy(), new.numpy(), use_continuity=False, method="asymptotic")
    assert float(found.value) == pytest.approx(theirs.statistic / (50 * 80), rel=1e-12)
    z = (float(found.value) - 0.5) / float(found.se)
    assert 2 * (1 - float(torch.special.ndtr(torch.tensor(abs(z), dtype=DOUBLE)))) == pytest.approx(
        theirs.pvalue, rel=1e-9
    )


def test_the_memorisers_samples_are_copies(memoriser):
    assert float(memoriser["novelty/train_share"]) == 1
    assert float(memoriser["novelty/nearest_auc"]) == 1
    assert float(memoriser["novelty/train_share_null"]) == pytest.approx(100 / 497)
    assert float(memoriser["novelty/train_share_z"]) > 5
    assert float(memoriser["novelty/train_share_gaussian"]) < 0.6


def test_mirrored_copies_are_their_images(shuffled):
    training, heldout = shuffled[:30], shuffled[30:60]
    metric = Novelty(NearestImages(training, True), NearestImages(heldout, True), 30, torch.rand(16))
    metric.update(to_unit(mirror(training)))
    metric.compute()
    assert float(metric.estimates["train_share"].value) == 1
    # each image has one sample: no relabelling changes the share of all
    spread = 30 * 30 / (60 * 59) * (30 * (0.5 / 30) ** 2 * 2)
    assert float(metric.estimates["train_share"].se) == pytest.approx(spread**0.5)


def test_a_sample_that_is_not_a_number_makes_no_share(shuffled):
    metric = Novelty(NearestImages(shuffled[:30]), NearestImages(shuffled[30:60]), 4, torch.rand(16))
    samples = to_unit(shuffled[60:64])
    samples[2] = torch.nan
    metric.update(samples)
    metric.compute()
    assert all(bool(part.value.isnan()) for part in metric.estimates.values())


# differences between pools


def test_differences_of_single_draws_are_the_textbooks(random):
    first, second = (torch.randn(1, n, generator=random, dtype=DOUBLE) for n in (30, 50))
    pools = Drawn(first, torch.arange(30)), Drawn(second, torch.arange(50))
    found = mean_difference(*pools)
    assert float(found.value) == pytest.approx(float(second.mean() - first.mean()))
    assert float(found.se) == pytest.approx(float((first.var() / 30 + second.var() / 50).sqrt()), rel=1e-12)
    below = probability_below(*pools)
    assert float(below.value) == pytest.approx(mannwhitneyu(second[0], first[0]).statistic / 1500, rel=1e-12)
    above = (second[0][None] > first[0][:, None]).double()
    expected = above.mean(1).var() / 30 + above.mean(0).var() / 50  # DeLong, DeLong and Clarke-Pearson 1988
    assert float(below.se) == pytest.approx(float(expected.sqrt()), rel=1e-12)
    tied = Drawn(first.round(), torch.arange(30)), Drawn(second.round(), torch.arange(50))
    ours = float(probability_below(*tied).value)
    assert ours == pytest.approx(mannwhitneyu(tied[1].values[0], tied[0].values[0]).statistic / 1500, rel=1e-12)


def test_the_same_draws_twice_are_no_more_known(random):
    first, second = (torch.randn(2, n, generator=random, dtype=DOUBLE) for n in (30, 50))
    once = Drawn(first, torch.arange(30)), Drawn(second, torch.arange(50))
    twice = tuple(Drawn(part.values.repeat(1, 2), part.images.repeat(2)) for part in once)
    for compare in (mean_difference, probability_below):
        assert torch.allclose(compare(*once).se, compare(*twice).se, rtol=1e-12)
        assert torch.allclose(compare(*once).mean([0, 1]).se, compare(*twice).mean([0, 1]).se, rtol=1e-12)


def test_two_pools_that_were_never_seen_have_a_standard_normal_z(shuffled, random):
    """1,000 relabellings of real images, of a denoiser of others, with fewer draws than images and with more."""
    others, images = shuffled[:1000], shuffled[1000:]
    clean = to_unit(images).repeat(4, 1, 1, 1)
    x = clean + 0.47 * torch.randn(clean.shape, generator=random)
    errors = [
        (denoiser(x, 0.47).double() - clean.double()).flatten(1).square().mean(1).view(4, -1)
        for denoiser in (EmpiricalDenoiser(others), GaussianDenoiser(estimate(others)))
    ]
    beyond = errors[0] - errors[1]
    heights = {"mean": [], "auc": []}

    def draw(some):
        chosen = some[torch.randint(len(some), (256,), generator=random)]
        return Drawn(beyond[torch.randint(4, (256,), generator=random), chosen][None], chosen)

    for _ in range(1000):
        labels = torch.randperm(len(images), generator=random)
        pools = draw(labels[:100]), draw(labels[100:])
        difference, auc = mean_difference(*pools), probability_below(*pools)
        heights["mean"].append(float(difference.value / difference.se))
        heights["auc"].append(float((auc.value - 0.5) / auc.se))
    for part in heights.values():
        assert kstest(part, "norm").pvalue > 0.01
        assert np.std(part) == pytest.approx(1, abs=0.08)


# the gap that D_G does not explain


def test_the_gaussian_has_no_gap_and_the_memoriser_is_told_apart(ruler, memoriser, shuffled):
    gaussian = ruler(ruler.references.gaussian)
    for end in ("", *(f"/sigma_{name}" for name in ("1p5", "0p47", "0p117"))):
        assert abs(float(gaussian[f"gap/mse{end}"])) < 1e-7
        assert float(gaussian[f"freedom/trace_gap{end}"]) == pytest.approx(0, abs=1e-4)
    raw = float(gaussian["denoising/mse/heldout/sigma_0p47"]) - float(gaussian["denoising/mse/train/sigma_0p47"])
    assert raw > 0.005  # which it would have if it were not taken less D_G's
    assert float(memoriser["gap/auc/sigma_0p47"]) > 0.99
    assert float(memoriser["gap/auc_gaussian/sigma_0p117"]) > 0.7
    assert memoriser["gap/auc_gaussian/sigma_0p47"].value == gaussian["gap/auc_gaussian/sigma_0p47"].value


def test_the_gap_is_what_its_formula_says(memoriser):
    for level in ("1p5", "0p47", "0p117"):
        parts = [
            float(memoriser[f"denoising/{name}/{pool}/sigma_{level}"])
            for name in ("mse", "gaussian_mse")
            for pool in ("heldout", "train")
        ]
        gap = memoriser[f"gap/mse/sigma_{level}"]
        assert abs(gap.value - (parts[0] - parts[1] - parts[2] + parts[3])) < 4 * gap.se
        assert float(memoriser[f"gap/z/sigma_{level}"]) == pytest.approx(gap.value / gap.se)
    largest = max(float(memoriser[f"gap/z/sigma_{level}"]) for level in ("1p5", "0p47", "0p117"))
    assert float(memoriser["gap/z"]) == largest
    mean = np.mean([float(memoriser[f"gap/mse/sigma_{level}"]) for level in ("1p5", "0p47", "0p117")])
    assert float(memoriser["gap/mse"]) == pytest.approx(mean)


def test_a_memoriser_that_leaves_each_image_out_is_not_told_apart(shuffled, random):
    training, heldout = shuffled[:200], shuffled[200:400]
    errors, sigma = [], 0.47
    for images, out in ((training, True), (heldout, False)):
        clean = to_unit(images, DOUBLE)
        x = clean + sigma * torch.randn(clean.shape, generator=random, dtype=DOUBLE)
        rows = to_unit(training, DOUBLE).flatten(1)
        scores = -torch.cdist(x.flatten(1), rows).square() / (2 * sigma**2)
        if out:
            scores.fill_diagonal_(-torch.inf)
        else:
            scores[:, 0] = -torch.inf  # as many images
        errors.append((scores.softmax(1) @ rows - clean.flatten(1)).square().mean(1)[None])
    found = probability_below(*(Drawn(part, torch.arange(200)) for part in errors))
    assert abs(float(found.value) - 0.5) < 3 * float(found.se)


def test_pools_of_gaussian_data_are_not_told_apart_by_a_gaussian_of_others(random):
    root = torch.randn(16, 16, generator=random) / 4
    draws = (torch.randn(3000, 16, generator=random) @ root).view(-1, 1, 4, 4)
    moments = estimate(draws[:1000])
    ruler = Ruler(draws[1000:2000], draws[2000:], draws=512, sigmas=[0.5], samples=0, moments=moments)
    auc = ruler(ruler.references.gaussian)["gap/auc_gaussian/sigma_0p5"]
    assert abs(auc.value - 0.5) < 3 * auc.se


def test_without_one_of_the_pools_there_is_no_gap(shuffled):
    ruler = Ruler(shuffled[:50], shuffled[50:100], draws=32, samples=0, pools=("heldout",))
    found = ruler(ruler.references.gaussian)
    assert not [name for name in found if name.startswith(("gap/", "spectrum/", "freedom/trace_gap"))]
    assert "freedom/trace/heldout" in found


# degrees of freedom


def test_traces_of_the_gaussian_and_the_memoriser_are_known(ruler, memoriser, shuffled):
    gaussian = ruler(ruler.references.gaussian)
    lam = estimate(shuffled[:100]).eigenvalues
    rows = to_unit(shuffled[:100], DOUBLE).flatten(1)
    for sigma, name in zip(SIGMAS, ("1p5", "0p47", "0p117"), strict=True):
        for pool in ("train", "heldout"):
            own = gaussian[f"freedom/trace/{pool}/sigma_{name}"]
            assert own.value == pytest.approx(float((lam / (lam + sigma**2)).sum()), abs=1e-4)
            # tr Cov(x0 | x) / sigma^2 on the same draws, from the weights of the images
            expected = []
            for block in range(ruler.bank.blocks):
                x0, eps = (part.double() for part in ruler.bank.draw(pool, block))
                weights = (-torch.cdist((x0 + sigma * eps).flatten(1), rows).square() / (2 * sigma**2)).softmax(1)
                mean = weights @ rows
                expected.append(((weights @ rows.square().sum(1)) - mean.square().sum(1)) / sigma**2)
            found = memoriser[f"freedom/trace/{pool}/sigma_{name}"]
            assert abs(found.value - float(torch.cat(expected).mean())) < 4 * found.se + 1e-4
            assert memoriser[f"freedom/empirical_trace/{pool}/sigma_{name}"].value == pytest.approx(found.value)
        consistent = memoriser[f"freedom/consistency/train/sigma_{name}"]
        assert abs(consistent.value) < 4 * consistent.se  # an exact posterior mean on its own distribution
        assert abs(float(gaussian[f"freedom/consistency/train/sigma_{name}"])) < 1e-6
        errors = [float(memoriser[f"denoising/gaussian_mse/{pool}/sigma_{name}"]) for pool in ("heldout", "train")]
        of_gaussian = float(gaussian[f"freedom/consistency/heldout/sigma_{name}"])
        assert of_gaussian == pytest.approx(errors[0] - errors[1], abs=1e-6)
        gap = [float(memoriser[f"freedom/consistency/{pool}/sigma_{name}"]) for pool in ("heldout", "train")]
        difference = float(memoriser[f"freedom/consistency_gap/sigma_{name}"])
        assert difference == pytest.approx(gap[0] - gap[1] - of_gaussian, abs=1e-6)


def test_the_trace_of_a_network_is_that_of_its_jacobian(shuffled):
    torch.manual_seed(0)
    network = EDMDenoiser(build(ModelConfig(backbone="mlp", channels=32), (1, 8, 8)), 0.5).eval()
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # else its last layer is 0
    ruler = Ruler(shuffled[:300], shuffled[300:600], draws=512, sigmas=[0.47], samples=0)
    found = ruler(network)
    traces = []
    jacobian = torch.func.vmap(torch.func.jacrev(lambda x: network(x.view(1, 1, 8, 8), 0.47).flatten()))
    for block in range(ruler.bank.blocks):
        x0, eps = ruler.bank.draw("train", block)
        x = (x0 + 0.47 * eps).flatten(1)
        traces.append(jacobian(x).diagonal(dim1=1, dim2=2).sum(1).detach())
    ours = found["freedom/trace/train"]
    assert abs(ours.value - float(torch.cat(traces).mean())) < 4 * ours.se


def test_what_the_gaussian_explains_makes_no_noise_in_the_trace(ruler, shuffled):
    gaussian, memoriser = ruler.references.gaussian, EmpiricalDenoiser(shuffled[:100])

    def between(x, sigma):
        return 0.8 * gaussian(x, sigma) + 0.2 * memoriser(x, sigma)

    found, bank = ruler(between), ruler.bank
    plain = []
    for block in range(bank.blocks):
        x0, eps = bank.draw("train", block)
        plain.append((between(x0 + 0.47 * eps, 0.47) * eps).flatten(1).sum(1).mean() / 0.47)
    ours, unaided = found["freedom/trace/train/sigma_0p47"], torch.stack(plain)
    assert abs(ours.value - float(unaided.mean())) < 4 * float(unaided.std()) / len(plain) ** 0.5
    assert ours.se < 0.5 * float(unaided.std()) / len(plain) ** 0.5


# the spectral clock


def test_gains_are_the_closed_curve_of_gradient_flow(shuffled):
    images = shuffled[:400]
    moments = estimate(images)
    sigma, rate = 0.47, 0.05
    lam, basis, mean = moments.eigenvalues, moments.eigenvectors, moments.mean
    target, start = lam / (lam + sigma**2), torch.full_like(lam, 0.01)
    ruler = Ruler(images, shuffled[400:800], draws=512, sigmas=[sigma], samples=0)
    times = [0.0, *(1.2**step for step in range(-6, 40))]
    curves = {}
    for time in times:
        weights = target + (start - target) * torch.exp(-2 * rate * (lam + sigma**2) * time)

        def denoiser(x, level, weights=weights):
            centred = x.flatten(1).double() - mean
            return (mean + (weights * (centred @ basis)) @ basis.T).view_as(x).to(x.dtype)

        measured = ruler(denoiser, time)
        for place in component_places(len(lam)):
            gain = measured[f"{numbered(GAIN, place)}/sigma_0p47"]
            assert abs(gain.value - float(weights[place - 1])) < 4.5 * gain.se + 1e-6
            curves.setdefault(place, []).append(gain.value)
    for place in (1, 2, 5, 10, 20):
        found = emergence(times[1:], curves[place][1:], curves[place][0], float(target[place - 1]))
        half = float(np.log(2) / (2 * rate * (lam[place - 1] + sigma**2)))
        assert found.kind == "at"
        assert found.time == pytest.approx(half, rel=0.1)


def test_components_that_begin_near_their_end_are_not_timed():
    assert emergence([1, 2], [0.5, 0.6], 0.4, 0.6) is None
    assert emergence([1, 2], [0.3, 0.1], 0.9, 0.1).time == 1  # it falls, and had come half of its way when first seen
    assert emergence([1, 2], [0.1, 0.1], 0.05, 0.6).kind == "after"


def test_variances_of_samples_are_numpys(shuffled):
    moments = estimate(shuffled[:400])
    lam, basis = moments.eigenvalues[[0, 9]], moments.eigenvectors[:, [0, 9]]
    samples = to_unit(shuffled[400:430]).double()
    spread = Spread(30, moments.mean, basis, lam)
    spread.update(samples[12:], 12)
    spread.update(samples[:12], 0)
    spread.compute()
    along = samples.flatten(1).numpy() @ basis.numpy()
    expected = along.var(0, ddof=1) / lam.numpy()
    found = spread.estimates["spread"]
    assert found.value.numpy() == pytest.approx(expected, rel=1e-10)
    left_out = np.stack([np.delete(along, i, 0).var(0) for i in range(30)]) / lam.numpy()
    assert found.se.numpy() == pytest.approx(np.sqrt(29 / 30 * ((left_out - left_out.mean(0)) ** 2).sum(0)), rel=1e-10)


def test_samples_of_the_gaussian_have_its_variances_and_those_of_the_mean_none(ruler):
    gaussian, mean = ruler.references.gaussian, ruler.references.moments.mean.view(1, 8, 8).float()
    of_gaussian, of_mean = ruler(gaussian), ruler(lambda x, sigma: mean.expand_as(x))
    for place in component_places(50):
        name = numbered(SAMPLE_SPREAD, place)
        reference = numbered(SAMPLE_SPREAD_GAUSSIAN, place)
        assert of_gaussian[name].value == pytest.approx(of_gaussian[reference].value, rel=1e-4)
        assert of_mean[name].value < 1e-4
        if place < 20:  # 8 steps leave noise in smaller ones
            assert abs(of_gaussian[name].value - 1) < 4 * of_gaussian[name].se


def test_samples_of_the_memoriser_by_hand_are_nearest_to_training_images(shuffled, random):
    latents = torch.randn(16, 1, 8, 8, generator=random)
    drawn = sample(EmpiricalDenoiser(shuffled[:50]), latents, karras_sigmas(8))
    near, far = (NearestImages(part)(drawn) for part in (shuffled[:50], shuffled[50:400]))
    assert bool((near.first < far.first).all())
