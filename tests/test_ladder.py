"""The error ladder against fits by least squares, dense solves, and known truths."""

from dataclasses import replace

import pytest
import torch

from gaussbias.backbones.mlp import MLP
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EDMDenoiser, EmpiricalDenoiser, GaussianDenoiser, at_levels
from gaussbias.history import quantile
from gaussbias.metrics import DenoisingErrors, Ladder, Pairs, gaussian_mse, ladder
from gaussbias.metrics.ladder import gaussian_weights
from gaussbias.metrics.pairs import GROUPS, Controls, _groups, group_count, leading_groups, with_controls
from gaussbias.moments import Eigenmoments, estimate, project

DOUBLE = torch.float64
SIGMAS = [1.5, 0.4]
NAMES = ("total", "affine", "nonlinear", "weight_gap", "r2", "mse")


def image_set(count, random, shift=0.3, size=12):
    """Images of 2 rows whose variances fall over two decades."""
    scales = torch.logspace(0, -1, size, dtype=DOUBLE)
    x = torch.randn(count, size, generator=random, dtype=DOUBLE) * scales + shift
    turn = torch.linalg.qr(torch.randn(size, size, generator=random, dtype=DOUBLE)).Q
    return (x @ turn).view(count, 1, 2, size // 2)


class Rungs:
    """The ladder and the denoising errors of the same draws."""

    def __init__(self, blocks, sigmas, moments, pool, expected, position=False):
        self.ladder = Ladder(blocks, sigmas, moments, pool)
        self.errors = DenoisingErrors(blocks, expected, position)

    def update(self, output, gaussian, block, pairs, x0, empirical):
        self.ladder.update(output, gaussian, block, pairs)
        self.errors.update(output, empirical, gaussian, x0, block)

    def compute(self):
        return self.ladder.compute() | self.errors.compute()

    @property
    def estimates(self):
        return self.ladder.estimates | self.errors.estimates


class Setting:
    """Training images, a pool that may be another one, and a nonlinear denoiser."""

    def __init__(self, pool_is_train, random):
        self.random = random
        self.train, other = image_set(60, random), image_set(40, random, shift=0.0)
        self.pool = self.train if pool_is_train else other
        self.moments, self.pool_moments = estimate(self.train), estimate(self.pool)
        self.gaussian = GaussianDenoiser(self.moments, DOUBLE)
        self.weight = 0.3 * torch.randn(12, 12, generator=random, dtype=DOUBLE)
        self.expected = gaussian_mse(self.moments, project(self.moments, self.pool), SIGMAS)

    def denoiser(self, x, sigma):
        flat = x.flatten(1)
        return (flat @ self.weight + 0.5 * torch.tanh(3 * flat)).view_as(x)

    def draws(self, count):
        chosen = torch.randint(len(self.pool), (count,), generator=self.random)
        return self.pool[chosen], torch.randn(count, 1, 2, 6, generator=self.random, dtype=DOUBLE)

    def truth(self, count=1_500_000):
        """By a fit of W and b on very many draws."""
        x0, eps = self.draws(count)
        found = []
        for sigma in SIGMAS:
            x = x0 + sigma * eps
            value = self.denoiser(x, sigma).flatten(1)
            g = value - self.gaussian(x, sigma).flatten(1)
            inputs = torch.cat([x.flatten(1), torch.ones(count, 1, dtype=DOUBLE)], 1)
            fit = torch.linalg.lstsq(inputs, g).solution
            total, affine = g.square().sum(1).mean() / 12, (inputs @ fit).square().sum(1).mean() / 12
            variance = value.var(0).sum() / 12
            mse = (value - x0.flatten(1)).square().mean()
            found.append([total, affine, total - affine, fit[:-1].square().sum(), 1 - (total - affine) / variance, mse])
        return torch.tensor(found, dtype=DOUBLE).T

    def measured(self, blocks=16, size=32):
        metric = Rungs(blocks, SIGMAS, self.moments, self.pool_moments, self.expected)
        for block in range(blocks):
            x0, eps = self.draws(size)
            x = [x0 + sigma * eps for sigma in SIGMAS]
            output = torch.stack([self.denoiser(*pair) for pair in zip(x, SIGMAS, strict=True)])
            reference = self.gaussian.forward_grid(x0, eps, SIGMAS)
            metric.update(output, reference, block, Pairs(self.pool_moments, x0, eps, SIGMAS), x0, reference)
        return metric.compute()


@pytest.mark.parametrize("pool_is_train", [pytest.param(True, marks=pytest.mark.long), False])
def test_the_ladder_matches_a_brute_force_fit_and_its_intervals_cover_it(pool_is_train, random):
    """500 measurements of 512 draws, the default: means within 3.5 errors, 95 % intervals cover 92 to 98 %."""
    setting = Setting(pool_is_train, random)
    truth = setting.truth()
    repeats = 500
    results = [setting.measured() for _ in range(repeats)]
    values = torch.stack([torch.stack([r[name] for name in NAMES]) for r in results])
    errors = torch.stack([torch.stack([r[f"{name}_se"] for name in NAMES]) for r in results])
    unbiased = [i for i, name in enumerate(NAMES) if name != "r2"]  # a ratio has a bias of the order of 1/n
    distance = (values.mean(0) - truth) / (values.std(0) / repeats**0.5)
    assert distance[unbiased].abs().max() < 3.5, distance
    assert (values.mean(0) - truth)[NAMES.index("r2")].abs().max() < 0.005
    covered = ((values - truth).abs() <= quantile(16) * errors).double().mean(0)
    assert covered.min() > 0.92, covered
    assert covered.max() < 0.98, covered
    # the error of a mean over levels is the jackknife's of the mean: levels share draws
    band = torch.stack([r["total"].mean() for r in results])
    assert ((band - truth[0].mean()).abs() <= quantile(16) * errors[:, 0].mean(1)).double().mean() > 0.9


def test_the_sample_fit_obeys_pythagoras_to_round_off(random):
    """With the moments of the draws themselves, and pairs of a draw with itself, it is least squares."""
    x = image_set(50, random)
    moments, sigma = estimate(x), 1e-9  # noise so small that the draws' moments are the pool's
    pairs = Pairs(moments, x, torch.randn(x.shape, generator=random, dtype=DOUBLE), [sigma])
    g = torch.tanh(2 * x.flatten(1)) + x.flatten(1).square()
    c = x.flatten(1) - moments.mean
    alone = 1 + (c @ torch.linalg.inv(c.T @ c / 50) * c).sum(1)
    affine = (50 * 49 * pairs.means(0, g @ g.T)[0] + (g.square().sum(1) * alone).sum()) / 50**2
    inputs = torch.cat([c, torch.ones(50, 1, dtype=DOUBLE)], 1)
    fit = inputs @ torch.linalg.lstsq(inputs, g).solution
    assert float(affine) == pytest.approx(float(fit.square().sum(1).mean()), rel=1e-7)
    residual = float((g - fit).square().sum(1).mean())
    assert float(g.square().sum(1).mean() - affine) == pytest.approx(residual, rel=1e-6)


@pytest.mark.parametrize("count", [200, 4, 1])  # more images than pixels, fewer, and one, 0: pure noise
def test_weights_of_pairs_equal_a_dense_solve(count, random):
    images = image_set(count, random) if count > 1 else torch.zeros(1, 1, 2, 6, dtype=DOUBLE)
    if count > 1:
        pool = estimate(images)
    else:
        pool = Eigenmoments(
            torch.zeros(12, dtype=DOUBLE), torch.zeros(0), torch.zeros(12, 0, dtype=DOUBLE), 1, (1, 2, 6)
        )
    covariance = pool.eigenvectors * pool.eigenvalues @ pool.eigenvectors.T
    x0 = images[torch.randint(count, (7,), generator=random)]
    eps = torch.randn(7, 1, 2, 6, generator=random, dtype=DOUBLE)
    sigmas = [80.0, 0.5, 0.002]
    pairs = Pairs(pool, x0, eps, sigmas)
    off = ~torch.eye(7, dtype=torch.bool)
    for level, sigma in enumerate(sigmas):
        c = (x0 + sigma * eps).flatten(1) - pool.mean
        s = covariance + sigma**2 * torch.eye(12, dtype=DOUBLE)
        z = torch.linalg.solve(s, c.T).T
        # at sigma 0.002 a dense solve of a flat covariance has a condition number of 1e6
        assert torch.allclose(pairs.affine[level][off], (1 + c @ z.T)[off], rtol=1e-7, atol=1e-7)
        assert torch.allclose(pairs.gap[level][off], (z @ z.T)[off], rtol=1e-6, atol=1e-7 * float(z.square().max()))
        assert pairs.affine[level].diagonal().abs().max() == 0 == pairs.gap[level].diagonal().abs().max()
        assert float(pairs.scale[level].sum()) == pytest.approx(float(s.trace()), rel=1e-9)


def affine_metric(images, weight, bias, random, sigmas, blocks=16, size=24):
    """The ladder of `D_G + weight c + bias` on its training images."""
    moments = estimate(images)
    gaussian = GaussianDenoiser(moments, DOUBLE)
    metric = Ladder(blocks, sigmas, moments, moments)
    for block in range(blocks):
        x0 = to_unit(images[torch.randint(len(images), (size,), generator=random)], DOUBLE)
        eps = torch.randn(x0.shape, generator=random, dtype=DOUBLE)
        reference = gaussian.forward_grid(x0, eps, sigmas)
        c = torch.stack([(x0 + s * eps).flatten(1) - moments.mean for s in sigmas])
        output = reference + (c @ weight.T + bias).view_as(reference)
        metric.update(output, reference, block, Pairs(moments, x0, eps, sigmas))
    return metric, moments


@pytest.mark.parametrize("count", [1400, 30])
def test_an_affine_network_has_no_nonlinear_part_and_the_known_weight_gap(count, digits, random):
    sigmas = [80.0, 1.0, 0.1]
    weight = torch.randn(64, 64, generator=random, dtype=DOUBLE) / 8
    bias = torch.randn(64, generator=random, dtype=DOUBLE)
    metric, moments = affine_metric(digits[:count], weight, bias, random, sigmas)
    values = metric.compute()
    assert (values["nonlinear"].abs() < 4 * values["nonlinear_se"]).all()
    assert ((values["weight_gap"] - weight.square().sum()).abs() < 4 * values["weight_gap_se"]).all()
    assert torch.allclose(values["weight_nmse"] * gaussian_weights(moments, sigmas), values["weight_gap"])
    covariance = moments.eigenvectors * moments.eigenvalues @ moments.eigenvectors.T
    for level, sigma in enumerate(sigmas):
        s = covariance + sigma**2 * torch.eye(64, dtype=DOUBLE)
        expected = (bias.square().sum() + (weight @ s @ weight.T).trace()) / 64
        assert abs(values["affine"][level] - expected) < 4 * values["affine_se"][level]
        dense = covariance @ torch.linalg.inv(s)
        assert float(gaussian_weights(moments, [sigma])) == pytest.approx(float(dense.square().sum()), rel=1e-9)


@pytest.mark.parametrize("count", [1400, 30])
def test_other_blocks_foretell_the_noise_of_a_map_that_scales_directions(count, digits, random):
    """Such maps are what networks begin as, `c_skip x - D_G`; the plain means over pairs have far larger errors."""
    sigmas = [80.0, 1.0, 0.1]
    moments = estimate(digits[:count])
    basis = moments.eigenvectors
    outside = torch.eye(64, dtype=DOUBLE) - basis @ basis.T
    shares = torch.rand(basis.shape[1], generator=random, dtype=DOUBLE)
    weight = basis * shares @ basis.T + 0.7 * outside
    bias = 3 * basis[:, 1] + torch.randn(64, generator=random, dtype=DOUBLE) / 8  # untrained means are off by far
    metric, _ = affine_metric(digits[:count], weight, bias, random, sigmas)
    values = metric.compute()
    assert (values["nonlinear"].abs() < 4 * values["nonlinear_se"]).all()
    assert ((values["weight_gap"] - weight.square().sum()).abs() < 4 * values["weight_gap_se"]).all()
    plain = metric.estimate(metric.rows)
    for name in ("nonlinear", "weight_gap"):
        assert (values[f"{name}_se"] < 0.6 * plain[name].se).all(), name
    assert (values["nonlinear_se"] < 0.2 * plain["nonlinear"].se).all()


def test_the_a_and_b_of_a_block_never_come_from_itself(random):
    affine, gap = torch.randn(2, 5, 3, generator=random, dtype=DOUBLE)
    shapes = Controls.shapes(3, 2)
    controls = Controls(**{name: torch.randn(5, 3, *shapes[name], generator=random, dtype=DOUBLE) for name in shapes})
    scale, groups = torch.rand(3, 3, generator=random, dtype=DOUBLE), torch.tensor([0, 1])
    before = with_controls(affine, gap, controls, scale, groups)
    for name in ("scaled_slope", "mean"):  # what b and a are made of
        changed = replace(controls, **{name: getattr(controls, name).clone()})
        getattr(changed, name)[2, :, 0] += 100
        for old, new in zip(before, with_controls(affine, gap, changed, scale, groups), strict=True):
            assert ((old - new).abs() < 1e-9).all(1).tolist() == [False, False, True, False, False]
    first = Controls(*(part[:1] for part in vars(controls).values()))
    assert torch.equal(with_controls(affine[:1], gap[:1], first, scale, groups)[0], affine[:1])


@pytest.mark.parametrize("count", [200, 4])
def test_controls_are_the_ladder_of_the_denoiser_less_an_affine_map(count, random):
    """For any a and b: `affine + 2 Q(g, h) - Q(h, h)` is the total of g less the nonlinear part of g - h."""
    pool = estimate(image_set(count, random))
    sigma, rank = 0.5, pool.eigenvectors.shape[1]
    x0 = image_set(count, torch.Generator().manual_seed(0))[torch.randint(count, (7,), generator=random)]
    pool = estimate(image_set(count, torch.Generator().manual_seed(0)))
    eps, g = torch.randn(2, 7, 1, 2, 6, generator=random, dtype=DOUBLE)
    pairs, g = Pairs(pool, x0, eps, [sigma]), g.flatten(1) + 1
    a, b = torch.randn(rank, generator=random, dtype=DOUBLE), torch.randn(rank + 1, generator=random, dtype=DOUBLE)
    c = (x0 + sigma * eps).flatten(1) - pool.mean
    inside = c @ pool.eigenvectors
    h = (a + b[:-1] * inside) @ pool.eigenvectors.T + b[-1] * (c - inside @ pool.eigenvectors.T)

    def parts(values):
        affine, gap = pairs.means(0, values @ values.T)
        return float(values.square().sum(1).mean() - affine), float(gap)

    # a block whose fellows are such that their a and b are these
    own = pairs.controls(0, g)
    none = Controls(*(torch.zeros_like(part) for part in vars(own).values()))
    fellow = replace(none, scaled_slope=b * pairs.scale[0], mean=a)
    stacked = Controls.stack([Controls.stack([part]) for part in (own, fellow)])
    affine, gap = pairs.means(0, g @ g.T)
    values = torch.stack([affine, affine])[:, None], torch.stack([gap, gap])[:, None]
    better, better_gap = with_controls(*values, stacked, pairs.scale, leading_groups(pool))
    nonlinear, rest_gap = parts(g - h)
    assert float(better[0, 0]) == pytest.approx(float(g.square().sum(1).mean()) - nonlinear, rel=1e-9)
    # the gap of g - h, and what is known of it: 2 <A_g, A_h> by g's own slopes, and ||A_h||^2 by the draws'
    whitened = inside / (pool.eigenvalues + sigma**2)
    outside, g_outside = c - inside @ pool.eigenvectors.T, g - g @ pool.eigenvectors @ pool.eigenvectors.T
    slopes = torch.cat(
        [(g @ pool.eigenvectors * whitened).mean(0), (g_outside * outside).sum(1).mean()[None] / sigma**2]
    )
    squares = torch.cat([(inside * whitened).mean(0), outside.square().sum(1).mean()[None] / sigma**2])
    expected = rest_gap + 2 * float(b @ slopes) - float(b.square() @ squares)
    assert float(better_gap[0, 0]) == pytest.approx(expected, rel=1e-9)


def test_groups_cover_all_directions_and_the_leading_ones_stand_alone():
    for rank in (1, 5, GROUPS, GROUPS + 1, 3072):
        pool = Eigenmoments(torch.zeros(rank), torch.ones(rank), torch.zeros(rank, rank), 9, (1, 1, rank))
        assert group_count(pool) <= GROUPS + 2
        groups = _groups(rank)
        assert groups.unique().tolist() == list(range(group_count(pool) - 1))
        assert groups[:5].tolist() == list(range(min(5, rank)))
        assert (groups.diff() >= 0).all()


def test_the_memorisers_best_affine_fit_is_the_gaussian_on_its_images_only(digits, random):
    images, heldout = digits[:30], digits[1000:1300]
    moments = estimate(images)
    gaussian, memoriser = GaussianDenoiser(moments, DOUBLE), EmpiricalDenoiser(images)
    sigmas, values, smallest = [0.7, 0.4], {}, []
    for name, pool in (("train", images), ("heldout", heldout)):
        known = estimate(pool)
        expected = gaussian_mse(moments, project(moments, pool), sigmas)
        metric = Rungs(16, sigmas, moments, known, expected, position=name == "train")
        for block in range(16):
            x0 = to_unit(pool[torch.randint(len(pool), (64,), generator=random)], DOUBLE)
            eps = torch.randn(x0.shape, generator=random, dtype=DOUBLE)
            grids = [d.forward_grid(x0, eps, sigmas) for d in (gaussian, memoriser)]
            metric.update(grids[1], grids[0], block, Pairs(known, x0, eps, sigmas), x0, grids[1])
        values[name] = metric.compute()
        smallest.append(float(metric.ladder.observed()[..., 1].min()))
    train, heldout_values = values["train"], values["heldout"]
    for name in ("affine", "weight_gap"):
        assert (train[name].abs() < 4 * train[f"{name}_se"]).all()
        assert (heldout_values[name] > 4 * heldout_values[f"{name}_se"]).all()
    assert torch.allclose(train["position"], torch.ones(2, dtype=DOUBLE))
    assert torch.allclose(train["mse"], train["empirical_mse"])
    assert smallest[0] < 0  # a small part may be measured below 0, and stays there
    assert "position" not in heldout_values


def test_the_gaussians_error_is_its_expectation_and_another_one_has_less_noise(digits, random):
    moments, pool = estimate(digits[:1000]), digits[1000:]
    gaussian, sigmas = GaussianDenoiser(moments, DOUBLE), [1.0, 0.1]
    expected = gaussian_mse(moments, project(moments, pool), sigmas)
    metrics = [Rungs(16, sigmas, moments, None, expected) for _ in range(2)]
    for block in range(16):
        x0 = to_unit(pool[torch.randint(len(pool), (32,), generator=random)], DOUBLE)
        eps = torch.randn(x0.shape, generator=random, dtype=DOUBLE)
        reference = gaussian.forward_grid(x0, eps, sigmas)
        for metric, output in zip(metrics, (reference, 0.9 * reference), strict=True):
            metric.update(output, reference, block, None, x0, reference)
    itself, other = (metric.compute() for metric in metrics)
    assert torch.allclose(itself["mse"], expected, rtol=1e-12)
    assert itself["mse_se"].max() < 1e-12
    plain = metrics[1].errors.rows[..., metrics[1].errors.quantities.index("error")]
    assert float(other["mse_se"][0]) < 0.3 * float(plain[:, 0].std() / 4)
    assert float(other["mse_se"][1]) < float(plain[:, 1].std() / 4)
    assert ((other["mse"] - plain.mean(0)).abs() < 4 * plain.std(0) / 4).all()
    assert set(itself) == {f"{n}{end}" for n in ("total", "mse", "empirical_mse") for end in ("", "_se")}


def test_ratios_are_left_out_where_they_mean_nothing(digits, random):
    """`r2` of a denoiser whose output has no variance to speak of, `position` where D_M is no better than D_G."""
    images = digits[:200]
    moments = estimate(images)
    gaussian, memoriser = GaussianDenoiser(moments, DOUBLE), EmpiricalDenoiser(images)
    sigmas = [80.0, 0.5]
    metric = Rungs(16, sigmas, moments, moments, gaussian_mse(moments, project(moments, images), sigmas), True)
    for block in range(16):
        x0 = to_unit(images[torch.randint(200, (8,), generator=random)], DOUBLE)
        eps = torch.randn(x0.shape, generator=random, dtype=DOUBLE)
        grids = [d.forward_grid(x0, eps, sigmas) for d in (gaussian, memoriser)]
        output = grids[1].clone()
        output[0] = 1.0
        metric.update(output, grids[0], block, Pairs(moments, x0, eps, sigmas), x0, grids[1])
    metric.compute()
    assert metric.estimates["r2"].defined.tolist() == [False, True]
    assert metric.estimates["position"].defined.tolist() == [False, True]
    assert metric.estimates["affine"].defined.all()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_images_that_hardly_differ_have_the_errors_of_any_other(dtype, random):
    """One image of 36 is one level brighter in one pixel. D = 0.9 x + 0.05 has its error in closed form."""
    images = torch.full((36, 1, 8, 8), 100, dtype=torch.uint8)
    images[3, 0, 2, 2] = 101
    moments = estimate(images)
    gaussian, memoriser = GaussianDenoiser(moments, dtype), EmpiricalDenoiser(images)
    sigmas = [2.0, 0.1]
    seen = project(moments, images)
    metric = Rungs(16, sigmas, moments, moments, gaussian_mse(moments, seen, sigmas), True)
    for block in range(16):
        x0 = to_unit(images[torch.randint(36, (4,), generator=random)], dtype)
        eps = torch.randn(x0.shape, generator=random, dtype=dtype)
        x = torch.stack([x0 + sigma * eps for sigma in sigmas])
        grids = [d.forward_grid(x0, eps, sigmas) for d in (gaussian, memoriser)]
        metric.update(0.9 * x + 0.05, grids[0], block, Pairs(moments, x0, eps, sigmas), x0, grids[1])
    values = metric.compute()
    clean = to_unit(images, DOUBLE)
    for level, sigma in enumerate(sigmas):
        exact = float((0.05 - 0.1 * clean).square().mean()) + (0.9 * sigma) ** 2
        mse, error = float(values["mse"][level]), float(values["mse_se"][level])
        assert abs(mse - exact) < 4 * error
        assert error < 0.05 * exact
        assert float(values["nonlinear"][level]) == pytest.approx(0, abs=5 * float(values["nonlinear_se"][level]))


def test_draws_that_are_not_independent_are_refused(digits, random):
    moments = estimate(digits[:100])
    x0 = to_unit(digits[:8], DOUBLE)
    eps = torch.randn(x0.shape, generator=random)
    for noise in (torch.cat([eps[:4], eps[:4]]), torch.cat([eps[:4], -eps[:4]])):
        with pytest.raises(ValueError, match="independent draws but got some with the same noise"):
            Pairs(moments, x0, noise, [1.0])
    with pytest.raises(ValueError, match="at least 2 draws"):
        Pairs(moments, x0[:1], eps[:1], [1.0])
    with pytest.raises(ValueError, match="from the images that the moments of the pool were taken of"):
        Pairs(estimate(digits[1000:1020]), x0, eps, [1.0])
    metric = Ladder(2, [1.0], moments, moments)
    pairs = Pairs(moments, x0, eps, [1.0])
    same = Pairs(moments, x0.flip(0), eps.flip(0), [1.0])  # in another order
    for block, one in enumerate((pairs, same)):
        metric.update(torch.zeros(1, 8, 1, 8, 8), torch.ones(1, 8, 1, 8, 8), block, one)
    with pytest.raises(ValueError, match="same draws under two numbers"):
        metric.compute()


def test_the_order_of_blocks_and_of_draws_does_not_matter(digits, random):
    moments = estimate(digits[:100])
    gaussian, sigmas = GaussianDenoiser(moments, DOUBLE), [2.0, 0.3]
    blocks = []
    for _ in range(16):
        x0 = to_unit(digits[torch.randint(100, (6,), generator=random)], DOUBLE)
        blocks.append((x0, torch.randn(x0.shape, generator=random, dtype=DOUBLE)))
    values = []
    for order, draws in ((range(16), torch.arange(6)), (torch.randperm(16, generator=random), torch.randperm(6))):
        metric = Ladder(16, sigmas, moments, moments)
        for block in order:
            x0, eps = (part[draws] for part in blocks[block])
            output = torch.stack([torch.tanh(x0 + s * eps) for s in sigmas])
            metric.update(output, gaussian.forward_grid(x0, eps, sigmas), int(block), Pairs(moments, x0, eps, sigmas))
        values.append(metric.compute())
    for name in values[0]:
        assert torch.allclose(values[0][name], values[1][name], rtol=1e-12, atol=1e-15), name


def test_how_many_images_the_network_sees_at_once_does_not_matter(digits, random):
    moments, levels = estimate(digits[:100]), torch.tensor([2.0, 0.3], dtype=DOUBLE)
    network = EDMDenoiser(MLP((1, 8, 8), 8)).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=random)
    gaussian, values = GaussianDenoiser(moments, DOUBLE), []
    for chunk in (256, 7):
        metric, draws = Ladder(16, levels.tolist(), moments, moments), torch.Generator().manual_seed(1)
        for block in range(16):
            x0 = to_unit(digits[torch.randint(100, (6,), generator=draws)], DOUBLE)
            eps = torch.randn(x0.shape, generator=draws, dtype=DOUBLE)
            x = torch.stack([x0 + s * eps for s in levels])
            with torch.no_grad():
                output = at_levels(network, x, levels, chunk)
            reference = gaussian.forward_grid(x0, eps, levels.tolist())
            metric.update(output, reference, block, Pairs(moments, x0, eps, levels.tolist()))
        values.append(metric.compute())
    for name in values[0]:
        assert torch.allclose(values[0][name], values[1][name], rtol=1e-12, atol=1e-14), name


def test_without_moments_only_the_total_is_known(random):
    output, gaussian = torch.randn(2, 3, 4, 1, 2, 2, generator=random)
    found = ladder(output, gaussian).values
    assert found.keys() == {"total"}
    expected = (output - gaussian).double().square().sum((2, 3, 4)).mean(1)
    assert torch.allclose(found["total"], expected)
