import math

import pytest
import torch

from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import gaussian_flow, sample, sample_gaussian

DOUBLE = torch.float64
GRID = karras_sigmas(10)


def setting(digits, random, n=1400):
    moments = estimate(digits[:n])
    latents = torch.randn(6, 1, 8, 8, generator=random, dtype=DOUBLE)
    return moments, GaussianDenoiser(moments, DOUBLE), latents


def along(moments, x):
    return (x.flatten(1) - moments.mean) @ moments.eigenvectors


@pytest.mark.parametrize("n", [1400, 30])
def test_euler_on_the_gaussian_has_its_closed_gain_in_each_mode(n, digits, random):
    moments, denoiser, latents = setting(digits, random, n)
    samples = sample(denoiser, latents, GRID, "euler")
    gain = torch.ones_like(moments.eigenvalues)
    for here, there in zip(GRID, [*GRID[1:], 0.0], strict=True):
        gain = gain * (1 + (there - here) * here / (moments.eigenvalues + here**2))
    expected = gain * along(moments, GRID[0] * latents)
    assert (along(moments, samples) - expected).abs().max() < 1e-10


def test_heun_converges_to_the_closed_solution_in_second_order(digits, random):
    moments, denoiser, latents = setting(digits, random)
    exact = gaussian_flow(denoiser, latents, 80.0)
    errors = []
    for steps in (40, 80, 160):
        # down to a sigma that is small beside every mode that matters: the last step, to 0, is of first order
        samples = sample(denoiser, latents, karras_sigmas(steps, sigma_min=1e-5), "heun")
        strong = moments.eigenvalues > 1e-3
        errors.append(float(along(moments, samples - exact + moments.mean.view(1, 8, 8))[:, strong].abs().max()))
    assert errors[2] < 2e-3
    assert 3 < errors[0] / errors[1] < 5
    assert 3 < errors[1] / errors[2] < 5


def test_the_closed_solution_solves_the_ode(digits, random):
    _moments, denoiser, latents = setting(digits, random)
    for sigma in (0.05, 1.0, 20.0):
        h = 1e-5 * sigma
        states = [gaussian_flow(denoiser, latents, 80.0, s) for s in (sigma - h, sigma, sigma + h)]
        slope = (states[2] - states[0]) / (2 * h)
        expected = (states[1] - denoiser(states[1], sigma)) / sigma
        assert (slope - expected).abs().max() < 1e-6
    assert (gaussian_flow(denoiser, latents, 80.0, 80.0) - 80 * latents).abs().max() < 1e-11


@pytest.mark.parametrize("method", ["heun", "euler"])
@pytest.mark.parametrize("n", [1400, 30])
def test_sampling_the_gaussian_in_its_eigenbasis_is_sampling_it(method, n, digits, random):
    _, denoiser, latents = setting(digits, random, n)
    ours = sample_gaussian(denoiser, latents, GRID, method)
    assert (ours - sample(denoiser, latents, GRID, method)).abs().max() < 1e-11


def test_the_memoriser_samples_training_images(digits, random):
    samples = sample(EmpiricalDenoiser(digits[:50]), torch.randn(4, 1, 8, 8, generator=random), karras_sigmas(18))
    images = digits[:50].flatten(1) / 127.5 - 1
    assert (samples.flatten(1)[:, None] - images).norm(dim=-1).amin(1).max() < 1e-3


def test_evaluations_path_and_dtype(random):
    calls = []

    def denoiser(x, sigma):
        calls.append((x.dtype, float(sigma[0]), len(sigma)))
        return 0 * x

    latents = torch.randn(3, 1, 2, 2, generator=random)
    samples, path = sample(denoiser, latents, GRID, "heun", path=True)
    assert len(calls) == 19  # two a step, one in the last
    assert {call[0] for call in calls} == {torch.float32}
    assert min(call[1] for call in calls) == pytest.approx(0.002)
    assert samples.dtype == torch.float32
    assert path.shape == (11, 3, 1, 2, 2)
    assert path.dtype == DOUBLE
    assert torch.equal(path[0], latents.double() * GRID[0])
    # for D = 0 the flow is x(s) = x_T s/s_T, which both methods follow exactly
    assert torch.allclose(path[4], latents.double() * GRID[4])
    calls.clear()
    sample(denoiser, latents, GRID, "euler")
    assert len(calls) == 10


def test_labels_and_guidance_are_those_of_the_denoiser_at_each_step(random):
    """Of a denoiser whose samples are known: with D = m the ODE ends at m, whatever its start."""

    def denoiser(x, sigma, labels):
        means = torch.where(labels < 0, 10.0, labels.float())
        return means[:, None, None, None].expand_as(x)

    latents = torch.randn(3, 1, 2, 2, generator=random)
    labels = torch.tensor([2, 0, 5])
    for guidance in (0.0, 0.5, 1.0, 3.0):
        ends = sample(denoiser, latents, GRID, labels=labels, guidance=guidance)
        expected = 10 + guidance * (labels - 10)
        assert torch.allclose(ends, expected.to(ends)[:, None, None, None].expand_as(ends), atol=1e-5)
    assert torch.equal(sample(denoiser, latents, GRID, labels=4), sample(lambda x, s: x * 0 + 4, latents, GRID))
    with pytest.raises(ValueError, match="Expected `labels` with guidance=2 but got none"):
        sample(denoiser, latents, GRID, guidance=2.0)


def test_wrong_arguments_are_refused(random):
    latents = torch.randn(1, 1, 2, 2, generator=random)
    for sigmas in ([1.0], [1.0, 2.0], [1.0, 0.0], [2.0, 2.0]):
        with pytest.raises(ValueError, match="that descend and are above 0"):
            sample(lambda x, s: x, latents, sigmas)
    with pytest.raises(ValueError, match="heun, euler but got rk4"):
        sample(lambda x, s: x, latents, GRID, "rk4")
    assert math.isfinite(float(sample(lambda x, s: x, latents, GRID).sum()))
