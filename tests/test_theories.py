"""Denoisers that can be written down, against plain loops, closed forms and one another."""

import itertools
import math

import numpy as np
import pytest
import torch
from runs import SMALL

from gaussbias import Ruler
from gaussbias.config.trust import names_code
from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers.theories import (
    BootstrapDenoiser,
    EmpiricalDenoiser,
    EquivariantDenoiser,
    GaussianDenoiser,
    LocalDenoiser,
    MixtureDenoiser,
    ScaledDenoiser,
    SmoothedDenoiser,
    WienerDenoiser,
    bootstraps,
    clustered,
    mixture_of,
    theory,
)
from gaussbias.fit import main as fit
from gaussbias.history import last
from gaussbias.metrics.between import lowest
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import BetweenProbe

DOUBLE = torch.float64
SIGMAS = [4.0, 0.5, 0.1]


@pytest.fixture
def small(random):
    """Twenty images, (20, 2, 4, 4), and five noisy ones."""
    images = torch.randint(0, 256, (20, 2, 4, 4), generator=random, dtype=torch.uint8)
    x = to_unit(images[:5], DOUBLE) + 0.3 * torch.randn(5, 2, 4, 4, generator=random, dtype=DOUBLE)
    return images, x


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def dense(moments):
    return (moments.eigenvectors * moments.eigenvalues) @ moments.eigenvectors.T


def window(y, x, reach, size=4):
    return slice(max(0, y - reach), min(size, y + reach + 1)), slice(max(0, x - reach), min(size, x + reach + 1))


def every(images, moments, random):
    """One of each kind, in float64."""
    groups = torch.arange(len(images)) % 3
    return {
        "bootstrap": BootstrapDenoiser(images, moments, 0.4),
        "mixture": mixture_of(images, groups),
        "local": LocalDenoiser(images, 3),
        "equivariant": EquivariantDenoiser(images, 3),
        "wiener": WienerDenoiser(moments, 3),
        "smoothed": SmoothedDenoiser(images, 0.2),
    }


@pytest.mark.parametrize("name", ["bootstrap", "mixture", "local", "equivariant", "wiener", "smoothed"])
def test_all_levels_together_are_each_by_itself(name, small, random):
    images, x = small
    denoiser = every(images, estimate(images), random)[name]
    eps = torch.randn(x.shape, generator=random, dtype=DOUBLE)
    grid = denoiser.forward_grid(x, eps, SIGMAS)
    assert grid.shape == (3, 5, 2, 4, 4)
    levels = torch.tensor(SIGMAS, dtype=DOUBLE)
    mixed = denoiser(torch.stack([x[0] + s * eps[0] for s in SIGMAS]), levels)
    for level, sigma in enumerate(SIGMAS):
        assert (grid[level] - denoiser(x + sigma * eps, sigma)).abs().max() < 1e-10
        assert (grid[level, 0] - mixed[level]).abs().max() < 1e-10
    single = denoiser.forward_grid(x.float(), eps.float(), SIGMAS)
    assert single.dtype == torch.float32
    assert (single - grid).abs().max() < 1e-5


# the bootstrap


@pytest.mark.parametrize("h", [0.2, 0.7])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_bootstrap_is_a_loop_over_its_model(h, sigma, small):
    """By the posterior of each component with dense matrices, in pixels."""
    images, x = small
    moments = estimate(images)
    mu, covariance, eye = moments.mean.numpy(), dense(moments).numpy(), np.eye(32)
    total = np.linalg.inv(h**2 * covariance + sigma**2 * eye)
    for noisy, found in zip(x, BootstrapDenoiser(images, moments, h)(x, sigma), strict=True):
        point = noisy.flatten().numpy()
        logits, means = [], []
        for image in to_unit(images, DOUBLE).flatten(1).numpy():
            m = mu + np.sqrt(1 - h**2) * (image - mu)
            logits.append(-(point - m) @ total @ (point - m) / 2)
            means.append(m + h**2 * covariance @ total @ (point - m))
        assert found.flatten().numpy() == pytest.approx(softmax(np.array(logits)) @ np.stack(means), abs=1e-11)


@pytest.mark.parametrize("flip", [False, True])
def test_the_bootstrap_ends_at_the_memoriser_and_at_the_gaussian(flip, digits, random):
    images = digits[:80]
    moments = estimate(images, flip)
    x0, eps = to_unit(digits[100:108], DOUBLE), torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    sigmas = karras_sigmas(10)
    ends = {0: EmpiricalDenoiser(images, flip), 1: GaussianDenoiser(moments, DOUBLE)}
    for h, expected in ends.items():
        found = BootstrapDenoiser(images, moments, h, flip).forward_grid(x0, eps, sigmas)
        assert (found - expected.forward_grid(x0, eps, sigmas)).abs().max() < 1e-9


def test_the_model_of_the_bootstrap_has_the_moments_of_the_images(digits, random):
    """And its denoiser is best on its own samples, whose error is known there for h = 1."""
    images, h, count = digits[:50], 0.5, 200_000
    moments = estimate(images)
    values = to_unit(images, DOUBLE).flatten(1)
    drawn = values[torch.randint(0, 50, (count,), generator=random)]
    noise = torch.randn(count, len(moments.eigenvalues), generator=random, dtype=DOUBLE)
    model = moments.mean + (1 - h**2) ** 0.5 * (drawn - moments.mean)
    model += h * (noise * moments.eigenvalues.sqrt()) @ moments.eigenvectors.T
    assert (model.mean(0) - moments.mean).abs().max() < 5 / count**0.5
    assert (torch.cov(model.T, correction=0) - dense(moments)).abs().max() < 10 / count**0.5

    clean = model[:4000].view(-1, 1, 8, 8)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=random, dtype=DOUBLE)
    errors = {
        k: float((BootstrapDenoiser(images, moments, k)(noisy, 0.5) - clean).square().mean()) for k in (0.3, 0.5, 0.7)
    }
    assert min(errors, key=errors.__getitem__) == 0.5


def test_mirrored_copies_are_images(digits, random):
    images = digits[:60]
    both, moments = torch.cat([images, mirror(images)]), estimate(images, flip=True)
    x = to_unit(digits[60:68], DOUBLE) + torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    pairs = (
        (BootstrapDenoiser(images, moments, 0.4, flip=True), BootstrapDenoiser(both, moments, 0.4)),
        (LocalDenoiser(images, 3, flip=True), LocalDenoiser(both, 3)),
        (EquivariantDenoiser(images, 3, flip=True), EquivariantDenoiser(both, 3)),
        (SmoothedDenoiser(images, 0.2, flip=True), SmoothedDenoiser(both, 0.2)),
    )
    for flipped, plain in pairs:
        for sigma in SIGMAS:
            assert (flipped(x, sigma) - plain(x, sigma)).abs().max() < 1e-11


def test_those_of_a_family_share_what_they_are_made_of(digits, random):
    images, moments = digits[:100], estimate(digits[:100])
    family = bootstraps(images, moments, [0.2, 0.5, 0.9])
    x = to_unit(digits[100:104], DOUBLE)
    assert len({one.eigenvectors.data_ptr() for one in family}) == 1
    for one, h in zip(family, (0.2, 0.5, 0.9), strict=True):
        assert (one(x, 0.5) - BootstrapDenoiser(images, moments, h)(x, 0.5)).abs().max() < 1e-12
    before = [one.kept[0.5] for one in family]
    family[0](x, 0.3)
    assert all(0.3 in one.kept and one.kept[0.5] is kept for one, kept in zip(family, before, strict=True))


def test_chunks_of_images_change_nothing(digits, random):
    x = to_unit(digits[300:304], DOUBLE) + torch.randn(4, 1, 8, 8, generator=random, dtype=DOUBLE)
    moments = estimate(digits[:200])
    for make in (
        lambda chunk: BootstrapDenoiser(digits[:200], moments, 0.4, chunk=chunk),
        lambda chunk: LocalDenoiser(digits[:200], 3, chunk=chunk),
    ):
        one, many = make(200), make(7)
        for sigma in SIGMAS:
            assert (one(x, sigma) - many(x, sigma)).abs().max() < 1e-12


@pytest.mark.parametrize("h", [0.1, 0.5])
def test_the_bootstrap_in_float32_is_right_at_all_levels(h, digits, random):
    images = digits[:1400]
    moments = estimate(images)
    for x0 in (to_unit(digits[1400:1432]), to_unit(digits[:32])):
        eps = torch.randn(32, 1, 8, 8, generator=random)
        denoiser, sigmas = BootstrapDenoiser(images, moments, h), karras_sigmas(10)
        noisy = torch.stack([x0 + sigma * eps for sigma in sigmas])
        for level, sigma in enumerate(sigmas):
            exact = denoiser(noisy[level].double(), sigma)
            assert (denoiser(noisy[level], sigma) - exact).abs().max() < 3e-6


def test_the_bootstrap_by_integers_is_right(random, monkeypatch):
    """Many smooth images, for which products of integers pay."""
    coarse = torch.randint(0, 256, (4200, 1, 3, 3), generator=random, dtype=torch.uint8).float()
    images = torch.nn.functional.interpolate(coarse, size=8, mode="bilinear").round().byte()
    moments = estimate(images)
    denoiser = BootstrapDenoiser(images, moments, 0.3)
    x0, eps = to_unit(images[:16]), torch.randn(16, 1, 8, 8, generator=random)
    monkeypatch.setattr("gaussbias.numerics.integers.are_fast", lambda device: True)  # exact, if slow, everywhere
    assert denoiser.as_integers(x0)
    found = denoiser.forward_grid(x0, eps, SIGMAS)
    for level, sigma in enumerate(SIGMAS):
        exact = denoiser((x0 + sigma * eps).double(), sigma)
        assert (found[level] - exact).abs().max() < 5e-6


# mixtures


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_mixture_is_a_loop_over_components(sigma, small, random):
    _, x = small
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)
    means = torch.randn(3, 32, generator=random, dtype=DOUBLE)
    roots = torch.randn(3, 32, 40, generator=random, dtype=DOUBLE)
    covariances = roots @ roots.mT / 100
    found = MixtureDenoiser(weights, means, covariances, (2, 4, 4))(x, sigma)
    for noisy, clean in zip(x.flatten(1).numpy(), found.flatten(1).numpy(), strict=True):
        logits, parts = [], []
        for weight, mean, covariance in zip(weights.numpy(), means.numpy(), covariances.numpy(), strict=True):
            total = covariance + sigma**2 * np.eye(32)
            rest = np.linalg.solve(total, noisy - mean)
            logits.append(np.log(weight) - ((noisy - mean) @ rest + np.linalg.slogdet(total)[1]) / 2)
            parts.append(mean + covariance @ rest)
        assert clean == pytest.approx(softmax(np.array(logits)) @ np.stack(parts), abs=1e-10)


def test_mixtures_end_at_the_gaussian_and_at_the_memoriser(digits, random):
    images = digits[:60]
    x = to_unit(digits[60:68], DOUBLE) + torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    one, each = mixture_of(images, torch.zeros(60)), mixture_of(images, torch.arange(60))
    for sigma in (5.0, 0.5, 0.05):
        assert (one(x, sigma) - GaussianDenoiser(estimate(images), DOUBLE)(x, sigma)).abs().max() < 1e-11
        assert (each(x, sigma) - EmpiricalDenoiser(images)(x, sigma)).abs().max() < 1e-11


def test_components_are_shrunk_to_what_is_common_within_them(digits):
    images, groups = digits[:30], torch.arange(30) // 20
    found = mixture_of(images, groups)
    values = to_unit(images, DOUBLE).flatten(1).numpy()
    own = [np.cov(values[:20].T, bias=True), np.cov(values[20:].T, bias=True)]
    pooled = (20 * own[0] + 10 * own[1]) / 30
    expected = own[1] * 10 / 74 + pooled * 64 / 74
    basis = found.eigenvectors[1]
    assert ((basis * found.eigenvalues[1]) @ basis.T).numpy() == pytest.approx(expected, abs=1e-12)
    assert found.weights.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_clusters_are_found_with_mirrored_copies(digits):
    images = digits[:100]
    mirrored = clustered(images, 5, flip=True)
    assert len(mirrored.weights) == 5
    both = clustered(torch.cat([images, mirror(images)]), 5)
    x = to_unit(digits[100:104], DOUBLE)
    assert (mirrored(x, 0.5) - both(x, 0.5)).abs().max() < 1e-12
    with pytest.raises(ValueError, match="from 1 to 100 clusters but got 101"):
        clustered(images, 101)


# local machines


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("sigma", [1.0, 0.2])
def test_the_local_machine_is_a_loop_over_pixels(k, sigma, small):
    images, x = small
    values = to_unit(images, DOUBLE).numpy()
    found = LocalDenoiser(images, k)(x, sigma).numpy()
    for b, row, column in itertools.product(range(5), range(4), range(4)):
        ys, xs = window(row, column, k // 2)
        distances = ((x[b].numpy()[:, ys, xs] - values[:, :, ys, xs]) ** 2).sum((1, 2, 3))
        expected = softmax(-distances / (2 * sigma**2)) @ values[:, :, row, column]
        assert found[b, :, row, column] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("sigma", [1.0, 0.2])
def test_the_equivariant_machine_is_a_loop_over_pixels_that_stand_alike(sigma, small):
    images, x = small
    values = to_unit(images, DOUBLE).numpy()
    found = EquivariantDenoiser(images, 3)(x, sigma).numpy()

    def kind(place):
        return min(place, 1), min(3 - place, 1)

    for b, row, column in itertools.product(range(5), range(4), range(4)):
        ys, xs = window(row, column, 1)
        distances, pixels = [], []
        for other_row, other_column in itertools.product(range(4), range(4)):
            if (kind(row), kind(column)) == (kind(other_row), kind(other_column)):
                others = window(other_row, other_column, 1)
                distances.append(((x[b].numpy()[:, ys, xs] - values[:, :, *others]) ** 2).sum((1, 2, 3)))
                pixels.append(values[:, :, other_row, other_column])
        weights = softmax(-np.concatenate(distances) / (2 * sigma**2))
        assert found[b, :, row, column] == pytest.approx(weights @ np.concatenate(pixels), abs=1e-11)


@pytest.mark.parametrize("flip", [False, True])
def test_local_machines_of_the_whole_image_are_the_memoriser(flip, digits, random):
    images = digits[:60]
    x = to_unit(digits[60:68], DOUBLE) + torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    memoriser = EmpiricalDenoiser(images, flip)
    for sigma in (5.0, 0.5, 0.05):
        expected = memoriser(x, sigma)
        assert (LocalDenoiser(images, 15, flip)(x, sigma) - expected).abs().max() < 1e-11
        assert (EquivariantDenoiser(images, 15, flip)(x, sigma) - expected).abs().max() < 1e-11


def test_the_local_machine_in_float32_is_right_at_all_levels(digits, random):
    denoiser, sigmas = LocalDenoiser(digits[:1400], 3), karras_sigmas(10)
    for x0 in (to_unit(digits[1400:1408]), to_unit(digits[:8])):
        eps = torch.randn(8, 1, 8, 8, generator=random)
        found = denoiser.forward_grid(x0, eps, sigmas)
        for level, sigma in enumerate(sigmas):
            exact = denoiser(x0.double() + sigma * eps.double(), sigma)
            assert (found[level] - exact).abs().max() < 1e-5
            assert (found[level] - exact).square().mean().sqrt() < 3e-7


@pytest.mark.parametrize("k", [2, 0, -1])
def test_windows_are_odd(k, digits):
    with pytest.raises(ValueError, match="Expected an odd `window` of at least 1"):
        LocalDenoiser(digits[:5], k)
    with pytest.raises(ValueError, match="Expected an odd `window` of at least 1"):
        EquivariantDenoiser(digits[:5], k)
    with pytest.raises(ValueError, match="Expected an odd `window` of at least 1"):
        WienerDenoiser(estimate(digits[:50]), k)


# the local Wiener filter


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_wiener_filter_is_a_solve_for_each_pixel(sigma, small):
    images, x = small
    moments = estimate(images)
    covariance, mu = dense(moments).numpy().reshape(2, 4, 4, 2, 4, 4), moments.mean.numpy().reshape(2, 4, 4)
    denoiser = WienerDenoiser(moments, 3)
    found, loss = denoiser(x, sigma).numpy(), 0.0
    for row, column in itertools.product(range(4), range(4)):
        ys, xs = window(row, column, 1)
        centred = (x.numpy() - mu)[:, :, ys, xs].reshape(5, -1)
        size = centred.shape[1]
        within = covariance[:, ys, xs][..., ys, xs].reshape(size, size) + sigma**2 * np.eye(size)
        beside = covariance[:, ys, xs][..., row, column].reshape(size, 2)
        weights = np.linalg.solve(within, beside)
        assert found[:, :, row, column] == pytest.approx(mu[:, row, column] + centred @ weights, abs=1e-11)
        loss += np.trace(covariance[:, row, column, :, row, column] - beside.T @ weights)
    assert denoiser.expected_mse(sigma) == pytest.approx(loss / 32, rel=1e-11)


def test_the_wiener_filter_gets_better_with_its_window_and_ends_at_the_gaussian(digits, random):
    moments = estimate(digits[:400])
    x = to_unit(digits[400:408], DOUBLE) + torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    gaussian, whole = GaussianDenoiser(moments, DOUBLE), WienerDenoiser(moments, 15)
    lam = moments.eigenvalues
    for sigma in SIGMAS:
        losses = [WienerDenoiser(moments, k).expected_mse(sigma) for k in (1, 3, 5, 9)] + [whole.expected_mse(sigma)]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] == pytest.approx(float((lam * sigma**2 / (lam + sigma**2)).sum()) / 64, rel=1e-9)
        assert (whole(x, sigma) - gaussian(x, sigma)).abs().max() < 1e-9


# the smoothed memoriser


def test_the_smoothed_memoriser_is_a_mean_over_inputs(small):
    images, x = small
    memoriser = EmpiricalDenoiser(images)
    denoiser = SmoothedDenoiser(images, 0.3, count=6)
    expected = sum(memoriser(x + 0.3 * eta.double(), 0.5) for eta in denoiser.eta) / 6
    assert (denoiser(x, 0.5) - expected).abs().max() < 1e-12
    assert torch.equal(denoiser.eta[3:], -denoiser.eta[:3])
    assert (SmoothedDenoiser(images, 0.0)(x, 0.5) - memoriser(x, 0.5)).abs().max() < 1e-12
    scores = sum((memoriser(x + 0.3 * eta.double(), 0.5) - x - 0.3 * eta) / 0.25 for eta in denoiser.eta) / 6
    assert ((denoiser(x, 0.5) - x) / 0.25 - scores).abs().max() < 1e-5  # sums of eta, which is float32


# another one in each range of noise levels


def test_another_denoiser_is_taken_in_each_range_of_noise_levels(digits, random):
    images = digits[:50]
    filtered = WienerDenoiser(estimate(images), 3)
    members = {0.3: LocalDenoiser(images, 1), 2.0: LocalDenoiser(images, 3), math.inf: filtered}
    denoiser = ScaledDenoiser(members)
    x = to_unit(digits[50:54], DOUBLE) + torch.randn(4, 1, 8, 8, generator=random, dtype=DOUBLE)
    levels = torch.tensor([0.1, 0.3, 1.0, 5.0], dtype=DOUBLE)
    found = denoiser(x, levels)
    for i, end in enumerate((0.3, 0.3, 2.0, math.inf)):
        assert torch.equal(found[i : i + 1], members[end](x[i : i + 1], float(levels[i])))
    with pytest.raises(ValueError, match="with one up to inf"):
        ScaledDenoiser({1.0: LocalDenoiser(digits[:50], 1)})


# what is measured with them


def test_the_lowest_of_a_parabola_is_found():
    places = torch.linspace(0, 1, 11, dtype=DOUBLE)
    centres = torch.tensor([0.37, 0.0, 1.0, -0.2, 1.3, 0.05], dtype=DOUBLE)
    found, least = lowest(2 + (places - centres[:, None]) ** 2, places)
    inside = centres.clamp(0, 1)
    assert found.tolist() == pytest.approx(inside.tolist(), abs=1e-12)
    assert least.tolist() == pytest.approx((2 + (inside - centres) ** 2).tolist(), abs=1e-12)
    flat = lowest(torch.tensor([[1.0, 1.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]], dtype=DOUBLE), places[:3])
    assert flat[0][1:].tolist() == pytest.approx([0.2, 0.0])


@pytest.fixture(scope="module")
def compared(digits):
    theories = {f"local-{k}": theory("local", k) for k in (1, 3, 5)} | {"wiener-3": theory("wiener", 3)}
    how = {"draws": 128, "sigmas": [1.5, 0.47, 0.117], "samples": 0, "theories": theories, "also": [BetweenProbe]}
    return Ruler(digits[:300], digits[1400:], **how)


@pytest.mark.parametrize("h", [0.05, 0.37, 0.95])
def test_a_denoiser_of_the_family_is_found_in_it(h, compared, digits):
    references = compared.references
    measured = compared(BootstrapDenoiser(references.images, references.moments, h))
    for pool, sigma in itertools.product(("train", "heldout"), ("1p5", "0p47", "0p117")):
        found = measured[f"between/h/{pool}/sigma_{sigma}"]
        assert found.value == pytest.approx(h, abs=0.01)
        # a memoriser of small h jumps from one image to another, which no parabola follows
        assert measured[f"between/unexplained/{pool}/sigma_{sigma}"].value < (0.02 if h < 0.1 else 2e-3)


def test_a_theory_explains_all_of_itself_and_the_share_of_others_is_theirs(compared, digits):
    machine = LocalDenoiser(digits[:300], 3)
    measured = compared(machine)
    bank = compared.bank
    values, others, clean = [], [], []
    for block in range(bank.blocks):
        x0, eps = bank.draw("heldout", block)
        values.append(machine(x0 + 0.47 * eps, 0.47).flatten(1).double())
        others.append(compared.references["wiener-3"](x0 + 0.47 * eps, 0.47).flatten(1).double())
        clean.append(x0.flatten(1).double())
    assert measured["theory/local-3/unexplained/heldout"].value == pytest.approx(0, abs=1e-9)
    assert measured["theory/local-1/unexplained/heldout"].value > 0.05
    own, wiener, x0 = (torch.cat(parts) for parts in (values, others, clean))
    # the variance is that within blocks, which leaves out the noise between them
    within = torch.stack([part.var(0).sum() for part in values]).mean()
    assert measured["theory/wiener-3/unexplained/heldout/sigma_0p47"].value == pytest.approx(
        float((own - wiener).square().sum(1).mean() / within), rel=1e-5
    )
    # its error is that of the draws, less the noise that D_G's error on them foretells
    error = measured["theory/wiener-3/mse/heldout/sigma_0p47"]
    plain = (wiener - x0).square().mean(1)
    assert abs(error.value - float(plain.mean())) < 4 * float(plain.std()) / len(plain) ** 0.5
    assert error.se < 0.8 * float(plain.std()) / len(plain) ** 0.5


def test_the_best_theory_is_the_line_to_beat(compared):
    measured = compared(lambda x, sigma: x)
    names = [f"theory/{name}/mse" for name in ("local-1", "local-3", "local-5", "wiener-3")]
    names += ["denoising/gaussian_mse", "denoising/empirical_mse"]
    for sigma in ("1p5", "0p47", "0p117"):
        end = f"heldout/sigma_{sigma}"
        errors = [measured[f"{name}/{end}"].value for name in names]
        assert measured[f"theory/best_mse/{end}"].value <= min(errors) + 1e-12
    assert not any("train" in name for name in measured if name.startswith("theory/best_mse"))


def test_the_best_of_few_theories_is_one_of_them(digits):
    how = {"draws": 128, "sigmas": [1.5, 0.117], "samples": 0, "theories": {"local-3": theory("local", 3)}}
    measured = Ruler(digits[:300], digits[1400:], **how)(lambda x, sigma: x)
    names = ("theory/local-3/mse", "denoising/gaussian_mse", "denoising/empirical_mse")
    for sigma in ("1p5", "0p117"):
        end = f"heldout/sigma_{sigma}"
        best = min((measured[f"{name}/{end}"] for name in names), key=lambda found: found.value)
        assert measured[f"theory/best_mse/{end}"].value == pytest.approx(best.value, rel=1e-12)
    assert not any(name.startswith("local/") for name in measured)  # one window is no choice


def test_the_window_of_a_local_machine_is_found(compared, digits):
    measured = compared(LocalDenoiser(digits[:300], 3))
    for pool, sigma in itertools.product(("train", "heldout"), ("1p5", "0p47", "0p117")):
        found = measured[f"local/k/{pool}/sigma_{sigma}"]
        assert found.value == 3
        assert math.isnan(found.se)
    assert not any(name.startswith("local/") for name in compared(lambda x, sigma: x * math.nan))


def test_theories_are_compared_on_all_pools(digits):
    pools = ("train", "heldout", "trajectory", "noise")
    how = {"draws": 32, "sigmas": [1.5, 0.47], "samples": 0, "pools": pools, "also": [BetweenProbe]}
    ruler = Ruler(digits[:100], digits[1400:], theories={"local-3": theory("local", 3)}, **how)
    measured = ruler(ruler.references.gaussian)
    for pool in pools:
        assert measured[f"theory/local-3/rmse/{pool}/sigma_0p47"].value > 0
        assert measured[f"between/h/{pool}/sigma_0p47"].value == pytest.approx(1, abs=1e-3)
    assert {name.split("/")[3] for name in measured if name.startswith("theory/local-3/mse/")} >= {"train", "heldout"}
    assert not any(f"/mse/{pool}" in name for name in measured for pool in ("noise", "trajectory") if "theory" in name)


def test_only_theories_that_there_are_can_be_asked_for():
    with pytest.raises(ValueError, match=r"Expected a family of bootstrap, .* but got 'windows'"):
        theory("windows", 3)


def test_a_run_is_compared_with_theories(tmp_path):
    theories = "probes.theories=[bootstrap,mixture:5,local:1,local:3,wiener:3,small=bootstrap:0.2]"
    keys = [*SMALL, theories, "probes.sigmas=[1.5,0.47,0.117]", "data.n_train=100", "train.kimg=0.1"]
    assert fit([*keys, f"run.root={tmp_path}", "run.name=x"]) == 0
    values = last(tmp_path / "x")
    for name in ("mixture-5", "local-1", "local-3", "wiener-3", "small"):
        for pool in ("train", "heldout"):
            assert values[f"theory/{name}/rmse/{pool}/sigma_0p47"] > 0
            assert values[f"theory/{name}/mse/{pool}/sigma_0p47_se"] > 0
            assert values[f"theory/{name}/unexplained/{pool}/sigma_0p47_se"] > 0
    assert 0 <= values["between/h/heldout/sigma_0p47"] <= 1
    assert values["local/k/heldout/sigma_0p47"] in (1, 3)
    best = values["theory/best_mse/heldout/sigma_0p47"]
    assert 0 < best <= values["theory/local-3/mse/heldout/sigma_0p47"] + 1e-12


def test_a_theory_with_a_number_is_no_code():
    assert not names_code("probes.theories", ["bootstrap", "small=local:3", "smoothed:0.3"])
    assert names_code("probes.theories", ["local:3", "x=os:system"])
    assert names_code("probes.also", ["os:system=local:3"])
    assert names_code("data.source", "local:3")
