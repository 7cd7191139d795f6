"""How far a denoiser is from the Gaussian's, from the memoriser's, and from the clean images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric
from gaussbias.moments import Eigenmoments, Projection

QUANTITIES = ("gaussian/rmse", "gaussian/nmse", "empirical/rmse", "denoising/mse", "denoising/empirical_mse")


def agreement(output: Tensor, x0: Tensor, gaussian: Tensor, empirical: Tensor) -> dict[str, Tensor]:
    """Distances of a denoiser's values to three others.

    - `gaussian/rmse`: `sqrt(||D - D_G||^2 / d)`; its mean is one of roots (Li, Dai and Qu, Eq. 10).
    - `gaussian/nmse`: `||D - D_G|| / ||D||` (Eq. 53).
    - `empirical/rmse`: like the first, to the memoriser D_M.
    - `denoising/mse`: `||D - x0||^2 / d`; and `denoising/empirical_mse`, that of D_M.

    Args:
        output: D (..., C, H, W).
        x0: The clean images, of a shape that broadcasts to it.
        gaussian: D_G at the same points.
        empirical: D_M at the same points.

    Returns:
        For each of `QUANTITIES`, one value per image (...), float64.
    """
    value, gauss, memory = (part.double().flatten(-3) for part in (output, gaussian, empirical))
    clean = x0.double().flatten(-3)
    distance = (value - gauss).norm(dim=-1)
    root = value.shape[-1] ** 0.5
    return {
        "gaussian/rmse": distance / root,
        "gaussian/nmse": distance / value.norm(dim=-1),
        "empirical/rmse": (value - memory).norm(dim=-1) / root,
        "denoising/mse": (value - clean).square().mean(-1),
        "denoising/empirical_mse": (memory - clean).square().mean(-1),
    }


def gaussian_mse(moments: Eigenmoments, pool: Projection, sigmas: Sequence[float]) -> Tensor:
    """The expected error `E||D_G - x0||^2 / d` of the Gaussian denoiser on a pool, in closed form.

    With W = U diag(lam/(lam+sigma^2)) U^T of the training data and the pool's mean and covariance:
    `tr[(I-W) Sigma_P (I-W)^T] + sigma^2 ||W||_F^2 + ||(I-W)(mu_P-mu)||^2`. On the training data itself this is
    `sum_i lam_i sigma^2 / (lam_i + sigma^2)`.

    Returns:
        (S,), float64.
    """
    levels = torch.tensor(list(sigmas), dtype=torch.float64, device=moments.mean.device)[:, None]
    kept = moments.eigenvalues / (moments.eigenvalues + levels.square())
    lost = 1 - kept
    error = (lost.square() * (pool.variances + pool.offset.square())).sum(1) + (levels * kept).square().sum(1)
    return (error + pool.variance_outside + pool.offset_outside) / len(moments.mean)


class Agreement(BlockMetric):
    """Distances at each noise level, averaged over draws.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
    """

    def __init__(self, blocks: int, levels: int) -> None:
        super().__init__(blocks, levels, QUANTITIES)

    def update(self, output: Tensor, x0: Tensor, gaussian: Tensor, empirical: Tensor, block: int) -> None:
        """Measure a block: `x0` is (m, C, H, W), the others (S, m, C, H, W)."""
        values = agreement(output, x0, gaussian, empirical)
        self.fill(block, {name: value.mean(1) for name, value in values.items()})


SAMPLE_QUANTITIES = ("samples/gaussian_cosine", "samples/gaussian_rmse")


def sample_agreement(samples: Tensor, others: Tensor, mean: Tensor) -> dict[str, Tensor]:
    """Cosine after subtracting `mean` (C, H, W), and `sqrt(||x - y||^2 / d)`, of paired samples (B, C, H, W).

    Returns:
        For each of `SAMPLE_QUANTITIES`, one value per pair (B,), float64.
    """
    x, y = ((part.double() - mean.double()).flatten(1) for part in (samples, others))
    cosine = (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))
    return dict(zip(SAMPLE_QUANTITIES, (cosine, (x - y).square().mean(1).sqrt()), strict=True))


class SampleAgreement(BlockMetric):
    """Agreement of two denoisers' samples from the same latents, averaged over samples.

    Args:
        samples: Number of samples.
        mean: (C, H, W), the mean of the training images.
    """

    mean: Tensor

    def __init__(self, samples: int, mean: Tensor) -> None:
        super().__init__(samples, 1, SAMPLE_QUANTITIES)
        self.register_buffer("mean", mean)

    def update(self, samples: Tensor, others: Tensor, start: int = 0) -> None:
        """Compare samples with others (B, C, H, W); the first has number `start`."""
        values = sample_agreement(samples, others, self.mean)
        self.fill(slice(start, start + len(samples)), {name: value[:, None] for name, value in values.items()})
