"""Principal components of a covariance, judged by the Gaussian denoiser that they give at the smallest noise."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case
from gaussbias.data.images import to_unit
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.moments import Eigenmoments, Moments, decompose, estimate
from gaussbias.noise import SIGMA_MIN


def cases(images: Tensor) -> Iterator[Case]:
    """Against a singular value decomposition in float32; with all images, and with fewer than pixels."""
    shape, d = tuple(images.shape[1:]), images[0].numel()
    for count in (len(images), min(1000, d // 3)):
        some = images[:count]
        metric = Moments(shape, pixels=True).to(images.device)
        metric.update(some)
        mean, covariance = metric.compute()
        x = to_unit(images[:64], torch.float64)
        x = x + SIGMA_MIN * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        exact = _solve(mean, covariance, x)

        def usual(mean: Tensor = mean, covariance: Tensor = covariance, count: int = count) -> Eigenmoments:
            left, values, _ = torch.linalg.svd(covariance.float())
            return Eigenmoments(mean, values.double(), left.double(), count, shape)

        def ours(
            mean: Tensor = mean, covariance: Tensor = covariance, count: int = count, some: Tensor = some
        ) -> Eigenmoments:
            return decompose(mean, covariance, count, shape) if count > d else estimate(some)

        def error(moments: Eigenmoments, x: Tensor = x, exact: Tensor = exact) -> float:
            return float((GaussianDenoiser(moments, torch.float64)(x, SIGMA_MIN) - exact).abs().max())

        size, target = (d, 0.9) if count > d else (count, 6.9)
        # reduction, divide and conquer, and vectors; and for fewer images the Gram matrix and the way back
        flops = 14 / 3 * size**3 + (0 if count > d else 8 * count**2 * d)
        yield Case("eigendecomposition", f"d={d}, N={count}", usual, ours, error, target, flops, torch.float64)


def _solve(mean: Tensor, covariance: Tensor, x: Tensor) -> Tensor:
    """`mu + C (C + sigma^2 I)^-1 (x - mu)` in float64, without any decomposition into components."""
    total = covariance + SIGMA_MIN**2 * torch.eye(len(mean), dtype=torch.float64, device=x.device)
    centred = x.flatten(1) - mean
    denoised: Tensor = x.flatten(1) - SIGMA_MIN**2 * torch.linalg.solve(total, centred.T).T
    return denoised.view_as(x)
