"""How nearly linear a denoiser is (Li, Dai and Qu 2024, Section 3.1 and Eq. 12, arXiv 2410.24060)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric

Evaluate = Callable[[Tensor, float], Tensor]

QUANTITIES = ("cosine", "cosine_signed", "nmse", "affine_cosine", "affine_nmse")


def linearity(denoiser: Evaluate, x: Tensor, output: Tensor, sigma: float, mean: Tensor) -> dict[str, Tensor]:
    """Compare a denoiser's value at a mixture of two noisy images with the mixture of its values.

    The mixture has a = b = 1/sqrt 2. `cosine`, `cosine_signed` and `nmse` compare `D(a x1 + b x2)` with
    `a D(x1) + b D(x2)`, as the paper does. There `a + b = sqrt 2` multiplies the bias of an affine map, which
    then is not perfectly linear: the affine forms mix deviations from `mean`, about `D(mean)`, and are
    perfect (1 and 0) for every affine map.

    Args:
        denoiser: Called with images (B, C, H, W) and a noise level.
        x: Noisy images (m, C, H, W), m even; image i is paired with image i + m/2.
        output: The denoiser's values there.
        sigma: The noise level.
        mean: (C, H, W), the point about which the affine forms mix.

    Returns:
        For each of `QUANTITIES`, one value per pair (m/2,), float64.
    """
    if len(x) % 2:
        raise ValueError(f"Expected an even number of images `x` but got {len(x)}.")
    a = math.sqrt(0.5)
    x1, x2 = x.chunk(2)
    plain, about_mean = a * (x1 + x2), mean + a * ((x1 - mean) + (x2 - mean))
    values = denoiser(torch.cat([plain, about_mean, mean[None].to(x.dtype)]), sigma).double().flatten(1)
    mixed, mixed_about, centre = values.split([len(x1), len(x1), 1])
    d1, d2 = output.double().flatten(1).chunk(2)

    signed, nmse = _compare(mixed, a * (d1 + d2))
    affine, affine_nmse = _compare(mixed_about - centre, a * ((d1 - centre) + (d2 - centre)))
    return {
        "cosine": signed.abs(),
        "cosine_signed": signed,
        "nmse": nmse,
        "affine_cosine": affine,
        "affine_nmse": affine_nmse,
    }


def _compare(value: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine, and distance over the norm of `value`; norms are not squared."""
    norm = value.norm(dim=1)
    cosine = (value * expected).sum(1) / (norm * expected.norm(dim=1))
    return cosine, (value - expected).norm(dim=1) / norm


class Linearity(BlockMetric):
    """Linearity at each noise level, averaged over pairs of draws.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
        mean: (C, H, W), the mean of the training images.
    """

    mean: Tensor

    def __init__(self, blocks: int, levels: int, mean: Tensor) -> None:
        super().__init__(blocks, levels, QUANTITIES)
        self.register_buffer("mean", mean)

    def update(self, denoiser: Evaluate, x: Tensor, output: Tensor, sigmas: list[float], block: int) -> None:
        """Measure a block: `x` and `output` are (S, m, C, H, W) at `sigmas` (S,)."""
        mean = self.mean.to(x)
        levels = [
            linearity(denoiser, x[s], output[s], sigma, mean) for s, sigma in enumerate(sigmas)
        ]
        self.fill(block, {name: torch.stack([level[name].mean() for level in levels]) for name in QUANTITIES})
