"""The estimator of the linear surrogate against normal equations, closed forms and known optima, in float64."""

import math

import pytest
import torch

from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser, LinearDenoiser
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.surrogate import QUARTERS, Pool, Sums, describe_weights, fewest_draws, fit_affine, fitting


def pool_of(variances):
    """A pool whose basis is that of the coordinates, with a mean of 0."""
    d = len(variances)
    moments = Eigenmoments(torch.zeros(d).double(), variances, torch.eye(d).double(), 10**6, (1, 1, d))
    return Pool(moments, moments)


def sums_of(c, y):
    sums = Sums(c.shape[1])
    for quarter in range(QUARTERS):
        sums.update(quarter, c[quarter::QUARTERS], y[quarter::QUARTERS])
    return sums


def normal(n, variances, random):
    return torch.randn(n, len(variances), generator=random, dtype=torch.float64) * variances.sqrt()


def quadratic(c, variances, size, random):
    """A nonlinear part of variance `size` in each output that no affine map explains: (u^2 - 1) of a normal u."""
    place = torch.randperm(len(variances), generator=random)
    return size**0.5 * ((c / variances.sqrt())[:, place].square() - 1) / 2**0.5


def spectrum(d):
    return 3.0 / torch.arange(1, d + 1, dtype=torch.float64) ** 1.2


@pytest.mark.parametrize("sigma", [0.002, 0.5, 80.0])
@pytest.mark.parametrize("shrink", [True, False])
def test_affine_maps_are_recovered(sigma, shrink, random):
    d = 24
    pool = pool_of(spectrum(d))
    weights, bias = (torch.randn(*size, generator=random, dtype=torch.float64) for size in ((d, d), (d,)))
    for n in (3 * d, 10 * d):
        c = normal(n, spectrum(d) + sigma**2, random)
        fit = fit_affine(sums_of(c, c @ weights.T + bias), pool, sigma, shrink)
        assert float((fit.weights - weights).norm() / weights.norm()) < 1e-6
        assert torch.allclose(fit.bias, bias, atol=1e-6 * (1 + sigma))
        assert fit.draws == n
        assert fit.weight_error < 1e-10
        assert fit.nonlinear_share < 1e-9


def test_without_shrinkage_it_is_least_squares_with_an_intercept(random):
    d, n = 16, 100
    variances = spectrum(d) + 0.3
    c = normal(n, variances, random)
    y = torch.tanh(c @ torch.randn(d, d, generator=random, dtype=torch.float64)) + 0.2
    oracle = torch.linalg.lstsq(torch.cat([c, torch.ones(n, 1).double()], 1), y).solution
    fit = fit_affine(sums_of(c, y), pool_of(spectrum(d)), 0.3**0.5, shrink=False)
    assert torch.allclose(fit.weights, oracle[:d].T, atol=1e-10)
    assert torch.allclose(fit.bias, oracle[d], atol=1e-10)


def test_the_shrunk_fit_goes_to_least_squares_as_lambda_goes_to_0(random, monkeypatch):
    d, n = 16, 100
    c = normal(n, spectrum(d) + 0.3, random)
    sums = sums_of(c, torch.tanh(c @ torch.randn(d, d, generator=random, dtype=torch.float64)))
    plain = fit_affine(sums, pool_of(spectrum(d)), 0.3**0.5, shrink=False)
    for smallest in (1e-4, 1e-8):
        monkeypatch.setattr(fitting, "LAMBDAS", torch.tensor([smallest], dtype=torch.float64))
        fit = fit_affine(sums, pool_of(spectrum(d)), 0.3**0.5)
        assert float((fit.weights - plain.weights).norm()) < 30 * smallest * float(plain.weights.norm())


def test_the_diagonal_is_fitted_first(random):
    """A denoiser that differs from the Gaussian's along its own directions alone takes few draws, far below d."""
    d, sigma = 100, 1.0
    variances = spectrum(d) + sigma**2
    gaussian = spectrum(d) / variances
    slopes = gaussian + 0.3
    c = normal(50, variances, random)
    y = c * slopes + quadratic(c, variances, 0.01, random)
    fit = fit_affine(sums_of(c, y), pool_of(spectrum(d)), sigma)
    error = float((fit.weights - slopes.diag()).square().sum() / slopes.square().sum())
    assert error < 0.02
    assert float((gaussian - slopes).square().sum() / slopes.square().sum()) > 0.5  # what W_G has


def mixture(n, means, spread, random):
    """Draws of a Gaussian mixture with its moments."""
    place = torch.randint(len(means), (n,), generator=random)
    return means[place] + spread * torch.randn(n, means.shape[1], generator=random, dtype=torch.float64)


def test_the_posterior_mean_of_a_mixture_converges_to_its_gaussian_without_a_floor(random):
    d, sigma, spread = 12, 0.8, 0.3
    means = torch.randn(5, d, generator=random, dtype=torch.float64)
    means -= means.mean(0)
    covariance = means.T @ means / len(means) + spread**2 * torch.eye(d)
    eigenvalues, vectors = torch.linalg.eigh(covariance.double())
    moments = Eigenmoments(torch.zeros(d).double(), eigenvalues.flip(0), vectors.flip(1), 10**6, (1, 1, d))
    pool = Pool(moments, moments)

    def posterior_mean(x):
        variance = spread**2 + sigma**2
        weights = (-(x[:, None] - means).square().sum(2) / (2 * variance)).softmax(1)
        prior = weights @ means
        return prior + spread**2 / variance * (x - prior)

    optimum = pool.gaussian(sigma)[0]
    errors = []
    for n in (200, 3200, 51200):
        found = []
        for _ in range(8):
            x = mixture(n, means, spread, random) + sigma * torch.randn(n, d, generator=random, dtype=torch.float64)
            sums = sums_of(pool.along(x[:, None, None, :]), pool.along(posterior_mean(x)[:, None, None, :]))
            plain, shrunk = fit_affine(sums, pool, sigma, shrink=False), fit_affine(sums, pool, sigma)
            norm = optimum.square().sum()
            found.append([float((fit.weights - optimum).square().sum() / norm) for fit in (plain, shrunk)])
        errors.append(torch.tensor(found).mean(0))
    plain, shrunk = torch.stack(errors).T
    ratios = plain[:-1] / plain[1:]  # 16 times as many draws; d / (n - d - 1) gives 17.0 and 16.1
    assert torch.all((ratios > 11) & (ratios < 24)), ratios
    assert torch.all(shrunk < plain), (shrunk, plain)


def test_the_memoriser_on_its_own_images_has_the_gaussian_as_its_surrogate(digits, random):
    images, sigma = digits[:40], 0.5  # 40 images in 64 dimensions: the pool has directions without variance
    moments = estimate(images)
    pool, memoriser = Pool(moments, moments), EmpiricalDenoiser(images)
    assert torch.allclose(pool.basis.T @ pool.basis, torch.eye(64).double(), atol=1e-12)
    x0 = to_unit(images[torch.randint(40, (30_000,), generator=random)])
    x = x0 + sigma * torch.randn(x0.shape, generator=random)
    sums = sums_of(pool.along(x), pool.along(memoriser(x, sigma)))
    gaussian, norm = pool.gaussian(sigma)[0], float(pool.gaussian(sigma)[0].square().sum())
    for shrink in (True, False):
        fit = fit_affine(sums, pool, sigma, shrink)
        assert abs(fit.weight_nmse) < 3 * fit.weight_nmse_se < 0.01
        away = float((fit.weights - gaussian).square().sum()) / norm
        assert away < 0.01
    assert away == pytest.approx(fit.weight_nmse_floor, rel=0.1)  # of least squares all that is found is noise


TABLE = {
    # evaluations / d until the squared error of W is 1 % of W: least squares, known covariance, this fit
    4.07: (2.7, 9.0, 1.8),
    1.50: (12.5, 20.9, 4.9),
    0.47: (36.0, 48.0, 18.0),
    0.117: (10.3, 18.6, 5.5),
}


@pytest.mark.parametrize("sigma", TABLE)
def test_evaluations_that_a_synthetic_network_takes(sigma, random):
    """The design's counts. Gap and nonlinear part of the teacher follow from the two that have a closed form.

    Then the third one follows from how much of the gap is diagonal: 80 %, at all levels, gives it within 30 %.
    """
    d = 192
    plain, known, ours = TABLE[sigma]
    noise = 0.01 * (plain - 1)  # least squares errs by nl d / (n - d - 1), in units of ||W||^2 and for S = 1
    gap = 0.01 * known - noise  # the moment of all of y - W_G c by E||y - W_G c||^2 d / n
    variances = torch.ones(d).double()
    lam = torch.linspace(0.9, 0.1, d, dtype=torch.float64)  # lam + sigma^2 = 1, whatever the level
    gaussian = lam.diag()
    rest = torch.randn(d, d, generator=random, dtype=torch.float64)
    rest.fill_diagonal_(0)
    slopes = torch.randn(d, generator=random, dtype=torch.float64).diag()
    size = gaussian.square().sum()
    weights = (
        gaussian + (0.8 * gap * size).sqrt() * slopes / slopes.norm() + (0.2 * gap * size).sqrt() * rest / rest.norm()
    )
    norm = float(weights.square().sum())
    c = normal(64 * d, variances, random)
    y = c @ weights.T + quadratic(c, variances, noise * norm / d, random)
    level = math.sqrt(1e-9)
    pool = pool_of(lam)
    pool.variances, pool.gaussian = variances, lambda sigma: (gaussian, torch.zeros(d).double())

    def needed(fit, start):
        n = start * d
        while float((fit(int(n)) - weights).square().sum()) > 0.01 * norm:
            n *= 1.07
        return n / d

    def least_squares(n):
        return torch.linalg.solve(c[:n].T @ c[:n], c[:n].T @ y[:n]).T

    def moment(n):
        return gaussian + (y[:n] - c[:n] @ gaussian.T).T @ c[:n] / n

    def exact(n):
        return fit_affine(sums_of(c[:n], y[:n]), pool, level).weights

    assert needed(least_squares, 0.65 * plain) == pytest.approx(plain, rel=0.3)
    assert needed(moment, 0.65 * known) == pytest.approx(known, rel=0.3)
    assert needed(exact, 0.4 * ours) < 1.3 * ours  # fewer than half of them at 4.07


def test_the_distance_to_the_gaussian_is_unbiased_whatever_the_fit_is_shrunk_to(random):
    """From half a draw a dimension on, where the fit itself is nearly the Gaussian's."""
    d, sigma = 32, 0.7
    variances = spectrum(d) + sigma**2
    gaussian = (spectrum(d) / variances).diag()
    weights = gaussian + 0.1 * torch.randn(d, d, generator=random, dtype=torch.float64) / d**0.5
    truth = float((weights - gaussian).square().sum() / gaussian.square().sum())
    for draws in (0.5, 4):
        found = []
        for _ in range(150):
            c = normal(int(draws * d), variances, random)
            fit = fit_affine(
                sums_of(c, c @ weights.T + quadratic(c, variances, 0.01, random)), pool_of(spectrum(d)), sigma
            )
            found.append([fit.weight_nmse, fit.weight_nmse_se])
        values, errors = torch.tensor(found).T
        assert abs(float(values.mean()) - truth) < 3.5 * float(values.std()) / 150**0.5
        assert 0.7 < float(errors.square().mean().sqrt() / values.std()) < 1.5


@pytest.mark.parametrize(("draws", "shrink"), [(2.5, True), (4, True), (16, True), (4, False), (16, False)])
def test_predicted_errors_are_what_is_measured(draws, shrink, random):
    """Means over repetitions within 20 %, and standard errors that are what single ones are off by."""
    d, sigma = 48, 0.7
    variances = spectrum(d) + sigma**2
    gaussian = (spectrum(d) / variances).diag()
    weights = gaussian + 0.05 * torch.randn(d, d, generator=random, dtype=torch.float64) / d**0.5
    weights += 0.1 * torch.randn(d, generator=random, dtype=torch.float64).diag()
    pool = pool_of(spectrum(d))
    rows = []
    for _ in range(20):
        c = normal(int(draws * d), variances, random)
        y = c @ weights.T + quadratic(c, variances, 0.003, random)
        fit = fit_affine(sums_of(c, y), pool, sigma, shrink)
        gap = fit.weights - weights
        off = fit.bias  # the truth is 0, and so is the mean of c
        function = float((gap.square() * variances).sum() + off.square().sum()) / d
        size = float(fit.weights.square().sum())
        weight = float(gap.square().sum()) / size
        rows.append([fit.error, function, fit.error_se, fit.weight_error, weight, fit.weight_error_se])
        assert abs(fit.nonlinear_share * float(y.var(0, correction=0).sum()) / (0.003 * d) - 1) < 0.25
    error, function, _, weight_error, weight, _ = torch.tensor(rows).mean(0).tolist()
    assert error == pytest.approx(function, rel=0.2)
    assert weight_error == pytest.approx(weight, rel=0.2)
    for value, true, se in ((0, 1, 2), (3, 4, 5)):
        off_by = torch.tensor([(row[value] - row[true]) / row[se] for row in rows])
        assert 0.3 < float(off_by.square().mean().sqrt()) < 1.7  # 1 is right; 20 repetitions know it to 16 %
    if not shrink:  # the closed form of least squares, with the draws that the intercept takes
        n = draws * d
        assert function == pytest.approx(0.003 * d / (n - d - 2), rel=0.15)


def test_the_error_of_a_denoiser_that_is_the_gaussian_is_noise_of_the_size_that_is_stated(random):
    d, sigma = 32, 0.7
    variances = spectrum(d) + sigma**2
    gaussian = (spectrum(d) / variances).diag()
    rows = []
    for _ in range(100):
        c = normal(2 * d, variances, random)
        fit = fit_affine(
            sums_of(c, c @ gaussian.T + quadratic(c, variances, 0.01, random)), pool_of(spectrum(d)), sigma
        )
        gap = fit.weights - gaussian
        rows.append([fit.error, float((gap.square() * variances).sum()) / d, fit.error_se])
    values, truth, errors = torch.tensor(rows).T
    assert 0.4 < float(((values - truth) / errors).square().mean().sqrt()) < 1.7


def test_the_bias_counts(random):
    """In two dimensions a third of the error of least squares is that of the bias; held-out errors have it too."""
    d, n, noise = 2, 48, 0.04
    variances = torch.ones(d).double() * 2
    rows = []
    for _ in range(400):
        c = normal(n, variances, random)
        y = 5 + noise**0.5 * torch.randn(n, d, generator=random, dtype=torch.float64)
        pool = pool_of(torch.ones(d).double())
        plain, shrunk = fit_affine(sums_of(c, y), pool, 1.0, shrink=False), fit_affine(sums_of(c, y), pool, 1.0)
        truth = float((plain.weights.square() * variances).sum() + (plain.bias - 5).square().sum()) / d
        rows.append([plain.error, truth, plain.heldout_error, shrunk.heldout_error])
    error, truth, heldout, shrunk = torch.tensor(rows).mean(0).tolist()
    assert error == pytest.approx(truth, rel=0.12)
    assert truth == pytest.approx(noise * (d / (n - d - 2) + 1 / n), rel=0.12)
    assert heldout == pytest.approx(noise * (1 + 3 / (n / 2)), rel=0.04)


def test_weak_shrinkage_is_forbidden_where_it_would_interpolate(random):
    """Of an affine teacher the weakest is the best, and from 3 d draws on it is taken."""
    d = 24
    weights = torch.randn(d, d, generator=random, dtype=torch.float64)
    errors = []
    for n in (5 * d // 2, 3 * d):
        c = normal(n, spectrum(d) + 0.25, random)
        fit = fit_affine(sums_of(c, c @ weights.T), pool_of(spectrum(d)), 0.5)
        errors.append(float((fit.weights - weights).norm() / weights.norm()))
    assert errors[0] > 1e-5
    assert errors[1] < 1e-7


def test_few_draws_never_blow_up(random):
    """From d / 8 to 3 d draws the fit is about as good as the Gaussian or better, where least squares diverge."""
    d, sigma = 64, 0.5
    variances = spectrum(d) + sigma**2
    gaussian = (spectrum(d) / variances).diag()
    weights = gaussian + 0.1 * torch.randn(d, d, generator=random, dtype=torch.float64) / d**0.5
    pool = pool_of(spectrum(d))
    start = float((gaussian - weights).square().sum())
    for n in (8, d // 2, d - 1, d, d + 1, 5 * d // 4, 2 * d, 3 * d - 1):
        c = normal(n, variances, random)
        y = c @ weights.T + quadratic(c, variances, 0.05, random)
        fit = fit_affine(sums_of(c, y), pool, sigma)
        assert float((fit.weights - weights).square().sum()) < 1.25 * start, n
    for n in (d, 3 * d - 1):
        with pytest.raises(ValueError, match="at least 192 independent draws"):
            fit_affine(sums_of(c[:n], y[:n]), pool, sigma, shrink=False)
    assert fewest_draws(d, shrink=False) == 3 * d


def test_a_fit_on_held_out_images_shrinks_to_the_gaussian_of_the_training_images(digits, random):
    train, heldout, sigma = estimate(digits[:1000]), estimate(digits[1000:1400]), 0.6
    pool = Pool(heldout, train)
    weights, bias = pool.in_pixels(*pool.gaussian(sigma))
    surrogate = LinearDenoiser(torch.tensor([sigma]), weights[None], bias[None], (1, 8, 8))
    x = torch.randn(7, 1, 8, 8, generator=random, dtype=torch.float64)
    assert torch.allclose(surrogate(x, sigma), GaussianDenoiser(train, torch.float64)(x, sigma), atol=1e-12)
    # an affine teacher is recovered in data units, about whatever mean
    affine = torch.randn(64, 64, generator=random, dtype=torch.float64)
    x = to_unit(digits[1000:1400], torch.float64).repeat(4, 1, 1, 1)
    x += sigma * torch.randn(x.shape, generator=random, dtype=torch.float64)
    y = (x.flatten(1) @ affine.T + 0.3).view_as(x)
    fit = fit_affine(sums_of(pool.along(x), pool.along(y)), pool, sigma)
    found, offset = pool.in_pixels(fit.weights, fit.bias)
    assert torch.allclose(found, affine, atol=1e-5)
    assert torch.allclose(offset, torch.full((64,), 0.3).double(), atol=1e-5)


def test_images_that_do_not_differ_are_refused(digits):
    same = estimate(digits[:1].repeat(5, 1, 1, 1))
    with pytest.raises(ValueError, match="images that differ"):
        Pool(same, same)


def test_the_gaussian_described_as_a_surrogate_is_the_gaussian(digits):
    moments, sigmas = estimate(digits), [5.0, 0.5, 0.01]
    pool = Pool(moments, moments)
    maps = [pool.in_pixels(*pool.gaussian(sigma)) for sigma in sigmas]
    denoiser = LinearDenoiser(
        torch.tensor(sigmas).double(), torch.stack([w for w, _ in maps]), torch.stack([b for _, b in maps]), (1, 8, 8)
    )
    found = describe_weights(denoiser, moments)
    assert torch.allclose(found["singular_values"], found["shrinkage"], atol=1e-6)
    assert torch.allclose(found["diagonal"], found["shrinkage"], atol=1e-6)
    assert float(found["asymmetry"].max()) < 1e-6
    assert float(found["weight_nmse"].max()) < 1e-10
    distinct = 20  # leading eigenvalues of digits are far apart
    assert torch.allclose(found["vectors"][:2, :distinct, :distinct], torch.eye(distinct), atol=1e-5)
    assert torch.allclose(found["overlap"][:2, :4], torch.ones(2, 4), atol=1e-5)
    assert bool(found["vectors"][2].isnan().all())  # W is nearly 1 at low noise
    turned = denoiser.weights.clone()
    turned[0] = turned[0].roll(1, 0)
    other = describe_weights(LinearDenoiser(denoiser.sigmas, turned, denoiser.biases, (1, 8, 8)), moments)
    assert float(other["asymmetry"][0]) > 0.1
    size = turned[0].square().sum()
    gap = (turned[0] - denoiser.weights[0]).square().sum() / size  # permuted rows leave the norm as it is
    assert float(other["weight_nmse"][0]) == pytest.approx(float(gap), rel=1e-5)
