"""The Gaussian denoiser on the measurement grid, and its samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case, relative
from gaussbias.data.images import to_unit
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample, sample_gaussian


def cases(images: Tensor) -> Iterator[Case]:
    """Against the matrix W of each level, `mu + W (x - mu)`."""
    d = images[0].numel()
    moments = estimate(images)
    gaussian = GaussianDenoiser(moments).to(images.device)
    exact = GaussianDenoiser(moments, torch.float64).to(images.device)
    sigmas = karras_sigmas(10)

    def matrix(x: Tensor, sigma: float) -> Tensor:
        basis = gaussian.eigenvectors
        weight = (basis * gaussian.shrinkage(sigma)) @ basis.T
        return (gaussian.mean + (x.flatten(1) - gaussian.mean) @ weight.T).view_as(x)

    for batch in (64, 256):
        x0 = to_unit(images[:batch])
        eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1)).to(x0)
        reference = exact.forward_grid(x0.double(), eps.double(), sigmas)

        def usual(x0: Tensor = x0, eps: Tensor = eps) -> Tensor:
            return torch.stack([matrix(x0 + sigma * eps, sigma) for sigma in sigmas])

        def ours(x0: Tensor = x0, eps: Tensor = eps) -> Tensor:
            return gaussian.forward_grid(x0, eps, sigmas)

        def error(value: Tensor, reference: Tensor = reference) -> float:
            return relative(value, reference)

        flops = 2 * (2 + len(sigmas)) * d * len(moments.eigenvalues) * batch
        yield Case("D_G, 10 levels", f"d={d}, B={batch}", usual, ours, error, 12, flops)

    latents = torch.randn(64, *images.shape[1:], generator=torch.Generator().manual_seed(2)).to(gaussian.mean)

    def usual_samples() -> Tensor:
        x = latents.flatten(1) * sigmas[0]
        for here, there in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            x = x + (there - here) / here * (x - matrix(x, here))
        return x.view_as(latents)

    sampled = torch.as_tensor(sample(exact, latents.double(), sigmas, "euler"))
    yield Case(
        "D_G, Euler, 10 steps",
        f"d={d}, B=64",
        usual_samples,
        lambda: sample_gaussian(gaussian, latents, sigmas, "euler"),
        lambda value: relative(value, sampled),
        60,
        4 * d * len(moments.eigenvalues) * 64,
    )
