import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from torch import nn
from torch.distributions import MultivariateNormal

from gaussbias.data.images import mirror, to_unit
from gaussbias.data.sources import gaussian_moments
from gaussbias.denoisers import EDMDenoiser, EmpiricalDenoiser, GaussianDenoiser, LinearDenoiser
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.noise import karras_sigmas

SIGMAS = [0.002, 0.5, 80.0]
DOUBLE = torch.float64


def dense(moments):
    return (moments.eigenvectors * moments.eigenvalues) @ moments.eigenvectors.T


def noisy(x0, sigma, random):
    return x0 + sigma * torch.randn(x0.shape, generator=random, dtype=x0.dtype)


# the Gaussian


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("n", [1400, 30])
@pytest.mark.parametrize("batch", [1, 16])
def test_gaussian_denoiser_equals_a_dense_solve(sigma, n, batch, digits, random):
    moments = estimate(digits[:n])
    x = noisy(to_unit(digits[-batch:], DOUBLE), sigma, random)
    covariance, eye = dense(moments), torch.eye(64, dtype=DOUBLE)
    centred = (x.flatten(1) - moments.mean).T
    expected = moments.mean + (covariance @ torch.linalg.solve(covariance + sigma**2 * eye, centred)).T
    got = GaussianDenoiser(moments, DOUBLE)(x, sigma).flatten(1)
    # the solve's condition is lam/sigma^2, 2e6 at 0.002
    assert (got - expected).abs().max() < (1e-9 if sigma < 0.1 else 1e-12)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_gaussian_denoiser_is_tweedies_formula_on_gaussian_data(sigma, random):
    mean, eigenvalues, eigenvectors = gaussian_moments((1, 4, 4))
    moments = Eigenmoments(mean, eigenvalues, eigenvectors, 10**6, (1, 4, 4))
    x = (mean + 3 * torch.randn(8, 16, generator=random, dtype=DOUBLE)).requires_grad_()
    noisy_data = MultivariateNormal(mean, dense(moments) + sigma**2 * torch.eye(16, dtype=DOUBLE))
    (score,) = torch.autograd.grad(noisy_data.log_prob(x).sum(), x)
    expected = x + sigma**2 * score
    got = GaussianDenoiser(moments, DOUBLE)(x.view(8, 1, 4, 4), sigma).flatten(1)
    # x and sigma^2 score cancel: at 80 by three digits
    assert (got - expected).abs().max() < 1e-10


@pytest.mark.parametrize("n", [1400, 30])
def test_gaussian_denoiser_limits(n, random):
    moments = estimate(torch.randint(0, 256, (n, 1, 8, 8), generator=random, dtype=torch.uint8))
    x = torch.randn(8, 1, 8, 8, generator=random, dtype=DOUBLE)
    denoiser = GaussianDenoiser(moments, DOUBLE)
    assert (denoiser(x, 1e6).flatten(1) - moments.mean).abs().max() < 1e-9
    # to 0: the projection onto mu + span(y - mu), which is everything for N > d
    basis = moments.eigenvectors
    projected = moments.mean + (x.flatten(1) - moments.mean) @ basis @ basis.T
    assert (denoiser(x, 1e-6).flatten(1) - projected).abs().max() < 1e-9
    assert ((denoiser(x, 1e-6) - x).abs().max() < 1e-9) == (n > 64)


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_forward_grid_is_forward_at_each_level(dtype, digits, random):
    x0, eps = to_unit(digits[:5], dtype), torch.randn(5, 1, 8, 8, generator=random, dtype=dtype)
    moments = estimate(digits)
    sigmas = karras_sigmas(10)
    for denoiser in (GaussianDenoiser(moments, dtype), EmpiricalDenoiser(digits)):
        grid = denoiser.forward_grid(x0, eps, sigmas)
        assert grid.dtype == dtype
        tolerance = 1e-12 if dtype == DOUBLE else 2e-5
        for row, sigma in zip(grid, sigmas, strict=True):
            assert (row - denoiser(x0 + sigma * eps, sigma)).abs().max() < tolerance
            assert (row - denoiser(x0 + sigma * eps, torch.full((5,), sigma, dtype=dtype))).abs().max() < tolerance


def test_each_image_may_have_its_own_sigma(digits, random):
    x = noisy(to_unit(digits[:3], DOUBLE), 1.0, random)
    sigmas = torch.tensor(SIGMAS, dtype=DOUBLE)
    for denoiser in (
        GaussianDenoiser(estimate(digits), DOUBLE),
        EmpiricalDenoiser(digits),
        EDMDenoiser(Double()),
    ):
        together = denoiser(x, sigmas)
        for i, sigma in enumerate(SIGMAS):
            assert (together[i] - denoiser(x[i : i + 1], sigma)[0]).abs().max() < 1e-12


def test_float32_is_accurate_to_its_digits(digits, random):
    moments = estimate(digits)
    for sigma in SIGMAS:
        x = noisy(to_unit(digits[:64]), sigma, random)
        exact = GaussianDenoiser(moments, DOUBLE)(x.double(), sigma)
        assert (GaussianDenoiser(moments)(x, sigma) - exact).norm() < 2e-6 * exact.norm()


# the memoriser


def brute_force(images, x, sigma):
    y, flat = to_unit(images, DOUBLE).flatten(1), x.double().flatten(1)
    logits = -(flat[:, None] - y).square().sum(-1) / (2 * sigma**2)
    return (torch.softmax(logits, 1) @ y).view(x.shape)


@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.1, 0.3, 0.5, 1.0, 4.0, 80.0])
@pytest.mark.parametrize("chunk", [100, 4096])
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_empirical_denoiser_equals_brute_force(sigma, chunk, dtype, digits, random):
    x = noisy(to_unit(digits[-20:], dtype), sigma, random)
    got = EmpiricalDenoiser(digits[:1500], chunk=chunk)(x, sigma)
    # float32: 1e-3 is the stated bound on the logits that are not computed in float64; measured 3e-7
    assert (got - brute_force(digits[:1500], x, sigma)).abs().max() < (1e-12 if dtype == DOUBLE else 2e-6)


def test_empirical_denoiser_decides_near_ties_in_float64(digits, random):
    """Two images, and a float32 point between them where only float64 can tell which is nearer, at sigma 0.002."""
    images = torch.randint(0, 256, (200, 3, 32, 32), generator=random, dtype=torch.uint8)
    images[1] = images[0]
    images[1, 0, 0, :3] += 1
    weights = []
    for shift in (0.4990, 0.4998, 0.5, 0.5002, 0.5010):
        pair = to_unit(images[:2], DOUBLE)
        x = ((1 - shift) * pair[0] + shift * pair[1])[None].float()
        got = EmpiricalDenoiser(images)(x, 0.002)
        assert (got - brute_force(images, x, 0.002)).abs().max() < 1e-6 * 1 / 127.5 + 6e-8
        weights.append(float(((got - pair[0]) / (pair[1] - pair[0]))[0, 0, 0, 0]))
    assert weights == sorted(weights)
    assert 0.2 < weights[2] < 0.8


def near_copies(copies, others, size, random):
    """Images that differ from one another by one level of one pixel, and others that put the centre far from them."""
    base = torch.randint(2, 254, (1, 3, size, size), generator=random, dtype=torch.uint8)
    images = base.repeat(copies, 1, 1, 1)
    for i in range(copies):
        images[i].view(-1)[i] += 1
    others = torch.randint(0, 256, (others, 3, size, size), generator=random, dtype=torch.uint8)
    return base, torch.cat([images, others])


def test_empirical_denoiser_with_more_near_ties_than_candidates(random):
    """There float32 products are off by several units of logit, so all have to be computed in float64."""
    base, images = near_copies(60, 60, 16, random)
    x = noisy(to_unit(base).repeat(2, 1, 1, 1), 0.002, random)
    denoiser = EmpiricalDenoiser(images, chunk=32)
    for sigma in (0.002, 0.01):
        assert (denoiser(x, sigma) - brute_force(images, x, sigma)).abs().max() < 2e-7
    # of two images one may need it and the other not
    both = denoiser(x, torch.tensor([0.002, 80.0]))
    for i, sigma in enumerate((0.002, 80.0)):
        assert (both[i] - brute_force(images, x[i : i + 1], sigma)[0]).abs().max() < 2e-7
    eps = torch.randn(x.shape, generator=random)
    for row, sigma in zip(denoiser.forward_grid(to_unit(base).repeat(2, 1, 1, 1), eps, SIGMAS), SIGMAS, strict=True):
        exact = brute_force(images, to_unit(base) + sigma * eps, sigma)
        assert (row - exact).abs().max() < 2e-7


def test_empirical_denoiser_with_more_near_ties_than_are_measured_one_by_one(random):
    """600 that differ by one level of one pixel, all of which count at sigma 0.002."""
    base, images = near_copies(600, 50, 16, random)
    x = noisy(to_unit(base).repeat(3, 1, 1, 1), 0.002, random)
    for sigma in (0.002, 0.01, 1.0):
        assert (EmpiricalDenoiser(images, chunk=100)(x, sigma) - brute_force(images, x, sigma)).abs().max() < 2e-7


@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("order", [1, -1])
def test_empirical_denoiser_whatever_the_order_of_its_images(order, sigma, digits, random):
    """From the farthest to the nearest: each chunk has a logit above all before it; and the other way round."""
    x = noisy(to_unit(digits[-1:]), sigma, random)
    distances = (to_unit(digits[:1000]).flatten(1) - x.flatten(1)).norm(dim=1)
    images = digits[distances.argsort(descending=order > 0)]
    got = EmpiricalDenoiser(images, chunk=16)(x, sigma)
    assert (got - brute_force(images, x, sigma)).abs().max() < 2e-6


def test_empirical_denoiser_at_the_centre_of_images_that_are_equally_far(random):
    """The products vanish there, but not the round-off of the images' own norms."""
    signs = torch.from_numpy(hadamard(64)).float()
    images = (0.7 * signs).view(64, 1, 8, 8)
    x = images.mean(0, keepdim=True) + 1e-4 * torch.randn(1, 1, 8, 8, generator=random)
    for sigma in (0.1, 0.02, 0.002):
        assert (EmpiricalDenoiser(images)(x, sigma) - brute_force(images, x, sigma)).abs().max() < 1e-6


def test_empirical_denoiser_is_finite_where_float32_misses_the_nearest_image(random):
    _, images = near_copies(150, 200, 48, random)
    x = to_unit(images[:20])
    got = EmpiricalDenoiser(images)(x, 1e-4)
    assert (got - x).abs().max() < 1e-6


def test_empirical_denoiser_limits(digits, random):
    images = digits[:300]
    denoiser = EmpiricalDenoiser(images)
    x = noisy(to_unit(digits[-5:], DOUBLE), 0.3, random)
    moments = estimate(images)
    assert (denoiser(x, 1e5) - GaussianDenoiser(moments, DOUBLE)(x, 1e5)).abs().max() < 1e-8
    assert (denoiser(x, 1e5).flatten(1) - moments.mean).abs().max() < 1e-8
    nearest = (x.flatten(1)[:, None] - to_unit(images, DOUBLE).flatten(1)).norm(dim=-1).argmin(1)
    assert (denoiser(x, 1e-3) - to_unit(images[nearest], DOUBLE)).abs().max() < 1e-12
    assert (denoiser(to_unit(images[:4], DOUBLE), 0.002) - to_unit(images[:4], DOUBLE)).abs().max() < 1e-12


def test_empirical_denoiser_with_mirrored_copies_and_few_images(digits, random):
    x = noisy(to_unit(digits[-5:], DOUBLE), 0.5, random)
    both = torch.cat([digits[:3], mirror(digits[:3])])
    assert (EmpiricalDenoiser(digits[:3], flip=True)(x, 0.5) - brute_force(both, x, 0.5)).abs().max() < 1e-12
    assert (EmpiricalDenoiser(digits[:1])(x, 0.5) - to_unit(digits[:1], DOUBLE)).abs().max() < 1e-12
    floats = to_unit(digits[:50], torch.float32)
    assert (EmpiricalDenoiser(floats)(x, 0.5) - brute_force(floats, x, 0.5)).abs().max() < 1e-12
    with pytest.raises(ValueError, match="N > 0"):
        EmpiricalDenoiser(digits[:0])


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_the_best_affine_fit_of_the_memoriser_on_its_data_is_the_gaussian_denoiser(sigma, random):
    """math: for any posterior mean, cov(D_M, x) cov(x)^-1 under its own noisy data is W_G, exactly."""
    images = torch.randn(4, 1, 1, 2, generator=random, dtype=DOUBLE)
    moments = estimate(images)
    # the noisy distribution of 4 points by Gauss-Hermite quadrature, exact to round-off for these smooth functions
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    eps = torch.cartesian_prod(torch.tensor(nodes), torch.tensor(nodes))
    mass = torch.cartesian_prod(torch.tensor(weights), torch.tensor(weights)).prod(1)
    mass = (mass / mass.sum()).repeat(4) / 4
    x = (images.view(4, 1, 2) + sigma * eps).flatten(0, 1)
    values = EmpiricalDenoiser(images.float().double())(x.view(-1, 1, 1, 2), sigma).flatten(1)
    centred = x - mass @ x
    cross = ((values - mass @ values) * mass[:, None]).T @ centred
    fitted = cross @ torch.linalg.inv((centred * mass[:, None]).T @ centred)
    shrink = (moments.eigenvectors * moments.eigenvalues / (moments.eigenvalues + sigma**2)) @ moments.eigenvectors.T
    assert (fitted - shrink).abs().max() < 1e-6


# the network


class Double(nn.Module):
    def forward(self, x, c_noise):
        return 2 * x + c_noise[:, None, None, None]


@pytest.mark.parametrize("sigma_data", [0.5, 0.2])
def test_edm_coefficients_give_unit_variance_to_input_and_target(sigma_data):
    denoiser = EDMDenoiser(Double(), sigma_data)
    sigma = torch.tensor([*SIGMAS, 0.2, 7.0], dtype=DOUBLE)
    c_skip, c_out, c_in, c_noise = denoiser.coefficients(sigma)
    one = torch.ones_like(sigma)
    assert torch.allclose(c_in**2 * (sigma**2 + sigma_data**2), one, rtol=1e-12)
    # target: (x0 - c_skip (x0 + sigma eps)) / c_out
    assert torch.allclose(((1 - c_skip) ** 2 * sigma_data**2 + c_skip**2 * sigma**2) / c_out**2, one, rtol=1e-9)
    # and c_skip is the choice that needs the smallest c_out
    for other in (c_skip * 1.01, c_skip * 0.99):
        assert ((1 - other) ** 2 * sigma_data**2 + other**2 * sigma**2 > c_out**2).all()
    assert torch.allclose(denoiser.loss_weight(sigma) * c_out**2, one, rtol=1e-12)
    assert torch.allclose((4 * c_noise).exp(), sigma)


def test_edm_denoiser_wraps_its_backbone(random):
    x = torch.randn(3, 1, 2, 2, generator=random, dtype=DOUBLE)
    got = EDMDenoiser(Double(), 0.5)(x, 2.0)
    assert torch.allclose(
        got,
        0.25 / 4.25 * x + 2 * 0.5 / 4.25**0.5 * (2 * x / 4.25**0.5 + torch.tensor(2.0).log().double() / 4),
    )


# the affine surrogate


def test_linear_denoiser_applies_the_map_of_its_level(random):
    sigmas = torch.tensor([80.0, 0.47])
    weights, biases = torch.randn(2, 4, 4, generator=random), torch.randn(2, 4, generator=random)
    denoiser = LinearDenoiser(sigmas, weights, biases, (1, 2, 2))
    x = torch.randn(3, 1, 2, 2, generator=random)
    for i, sigma in enumerate((80.0, 0.47)):
        assert torch.allclose(denoiser(x, sigma).flatten(1), x.flatten(1) @ weights[i].T + biases[i], atol=1e-6)
    mixed = denoiser(x, torch.tensor([80.0, 0.47, 80.0]))
    assert torch.allclose(mixed[:2].flatten(1)[1], weights[1] @ x[1].flatten() + biases[1], atol=1e-6)
    assert torch.equal(mixed[2], denoiser(x, 80.04)[2])  # within 1e-3
    with pytest.raises(ValueError, match=r"stored levels 80, 0\.47 but got 1"):
        denoiser(x, 1.0)
    with pytest.raises(ValueError, match="Expected `weights`"):
        LinearDenoiser(sigmas, weights, biases, (1, 2, 3))


def test_linear_denoiser_of_the_gaussian_is_the_gaussian(digits, random):
    moments = estimate(digits)
    shrink = moments.eigenvectors * (moments.eigenvalues / (moments.eigenvalues + 0.25))
    weight = shrink @ moments.eigenvectors.T
    bias = moments.mean - weight @ moments.mean
    linear = LinearDenoiser(torch.tensor([0.5], dtype=DOUBLE), weight[None], bias[None], (1, 8, 8))
    x = noisy(to_unit(digits[:4], DOUBLE), 0.5, random)
    assert (linear(x, 0.5) - GaussianDenoiser(moments, DOUBLE)(x, 0.5)).abs().max() < 1e-12
