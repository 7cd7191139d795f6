"""How nearly linear a denoiser is (Li, Dai and Qu 2024, Section 3.1 and Eq. 12, arXiv 2410.24060)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gaussbias.denoisers import Evaluate, at_levels
from gaussbias.metrics.blocks import BlockMetric

QUANTITIES = ("cosine", "cosine_signed", "nmse", "affine_cosine", "affine_nmse")


def points(draws: int) -> int:
    """At how many points a denoiser is evaluated for the mixtures of so many draws, besides the draws.

    >>> points(32), points(2)
    (17, 3)
    """
    return 2 * _mixtures(draws) + 1


def _mixtures(draws: int) -> int:
    """Mixtures of each kind, plain and about the mean: half of the pairs for each, and one pair for both if it must."""
    return (draws // 2 + 1) // 2


def linearity(denoiser: Evaluate, x: Tensor, output: Tensor, sigmas: Tensor, mean: Tensor) -> dict[str, Tensor]:
    """Compare a denoiser's value at a mixture of two noisy images with the mixture of its values.

    The mixture has a = b = 1/sqrt 2. `cosine`, `cosine_signed` and `nmse` compare `D(a x1 + b x2)` with
    `a D(x1) + b D(x2)`, as the paper does. There `a + b = sqrt 2` multiplies the bias of an affine map, which
    then is not perfectly linear: the affine forms mix deviations from `mean`, about `D(mean)`, and are
    perfect (1 and 0) for every affine map.

    Pairs are disjoint: each image is in one of them, and each pair in one mixture, the first half of the pairs in plain
    ones and the second half in those about the mean (of an odd number of pairs one is in both).

    Args:
        denoiser: Called with images (B, C, H, W) and noise levels (B,).
        x: Noisy images (S, m, C, H, W), m even; image i is paired with image i + m/2.
        output: The denoiser's values there.
        sigmas: Noise levels (S,).
        mean: (C, H, W), the point about which the affine forms mix.

    Returns:
        For each of `QUANTITIES`, one value per level and mixture (S, m/4 rounded up), float64.

    Raises:
        ValueError: For an odd number of images.
    """
    if x.shape[1] % 2:
        raise ValueError(f"Expected an even number of images `x` at each level but got {x.shape[1]}.")
    a, count = math.sqrt(0.5), _mixtures(x.shape[1])
    x1, x2 = x.chunk(2, 1)
    d1, d2 = output.double().flatten(2).chunk(2, 1)
    plain = a * (x1[:, :count] + x2[:, :count])
    about_mean = mean + a * ((x1[:, -count:] - mean) + (x2[:, -count:] - mean))
    where = torch.cat([plain, about_mean, mean.to(x).expand_as(x[:, :1])], 1)
    values = at_levels(denoiser, where, sigmas).double().flatten(2)
    mixed, mixed_about, centre = values.split([count, count, 1], 1)

    signed, nmse = _compare(mixed, a * (d1[:, :count] + d2[:, :count]))
    affine, affine_nmse = _compare(mixed_about - centre, a * ((d1[:, -count:] - centre) + (d2[:, -count:] - centre)))
    return dict(zip(QUANTITIES, (signed.abs(), signed, nmse, affine, affine_nmse), strict=True))


def _compare(value: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine, and distance over the norm of `value`; norms are not squared. Two zeros are the same: 1 and 0."""
    norm, other = value.norm(dim=-1), expected.norm(dim=-1)
    same = (norm == 0) & (other == 0)  # a memoriser that gives one image for all three points
    cosine = (value * expected).sum(-1) / (norm * other)
    distance = (value - expected).norm(dim=-1) / norm
    return cosine.masked_fill(same, 1.0), distance.masked_fill(same, 0.0)


class Linearity(BlockMetric):
    """Linearity at each noise level, averaged over mixtures of two draws.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
        mean: (C, H, W), the mean of the training images.
    """

    mean: Tensor

    def __init__(self, blocks: int, levels: int, mean: Tensor) -> None:
        super().__init__(blocks, levels, QUANTITIES)
        self.register_buffer("mean", mean)

    def update(self, denoiser: Evaluate, x: Tensor, output: Tensor, sigmas: Tensor, block: int) -> None:
        """Measure a block: `x` and `output` are (S, m, C, H, W) at `sigmas` (S,)."""
        values = linearity(denoiser, x, output, sigmas, self.mean.to(x))
        self.fill(block, {name: value.mean(1) for name, value in values.items()})
