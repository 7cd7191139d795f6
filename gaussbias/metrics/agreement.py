"""How far a denoiser is from the Gaussian's and from the memoriser's."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.catalogue import EMPIRICAL_RMSE, GAUSSIAN_RELATIVE, GAUSSIAN_RMSE, SAMPLE_COSINE, SAMPLE_RMSE
from gaussbias.metrics.blocks import BlockMetric

QUANTITIES = (GAUSSIAN_RMSE.name, GAUSSIAN_RELATIVE.name, EMPIRICAL_RMSE.name)


def agreement(output: Tensor, gaussian: Tensor, empirical: Tensor) -> dict[str, Tensor]:
    """Distances of a denoiser's values to those of two others.

    - `gaussian/rmse`: `sqrt(||D - D_G||^2 / d)`; its mean is one of roots (Li, Dai and Qu, Eq. 10).
    - `gaussian/nmse`: `||D - D_G|| / ||D||` (Eq. 53).
    - `empirical/rmse`: like the first, to the memoriser D_M.

    Args:
        output: D (..., C, H, W).
        gaussian: D_G at the same points.
        empirical: D_M at the same points.

    Returns:
        For each of `QUANTITIES`, one value per image (...), float64.
    """
    value, gauss, memory = (part.double().flatten(-3) for part in (output, gaussian, empirical))
    distance = (value - gauss).norm(dim=-1)
    root = value.shape[-1] ** 0.5
    values = distance / root, distance / value.norm(dim=-1), (value - memory).norm(dim=-1) / root
    return dict(zip(QUANTITIES, values, strict=True))


def rmse(output: Tensor, other: Tensor) -> Tensor:
    """`sqrt(||D - D'||^2 / d)` of values (..., C, H, W) of two denoisers, (...), float64."""
    return (output.double() - other.double()).flatten(-3).square().mean(-1).sqrt()


class Agreement(BlockMetric):
    """Distances at each noise level, averaged over draws.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
    """

    def __init__(self, blocks: int, levels: int) -> None:
        super().__init__(blocks, levels, QUANTITIES)

    def update(self, output: Tensor, gaussian: Tensor, empirical: Tensor, block: int) -> None:
        """Measure a block; all are (S, m, C, H, W)."""
        levels = [agreement(*parts) for parts in zip(output, gaussian, empirical, strict=True)]
        self.fill(block, {name: torch.stack([level[name].mean() for level in levels]) for name in QUANTITIES})


SAMPLE_QUANTITIES = (SAMPLE_COSINE.name, SAMPLE_RMSE.name)


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
