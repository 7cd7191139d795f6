"""Another denoiser at each range of noise levels, as local machines whose windows grow with the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gaussbias.denoisers.base import Denoiser, per_image


class ScaledDenoiser(Denoiser):
    """A denoiser that is another one in each range of noise levels.

    Kamb and Ganguli (2024, arXiv 2412.20292) let the window of a local score machine shrink with the noise, as that of
    the network does:

        windows = {0.3: 3, 2.0: 7, math.inf: 15}
        ScaledDenoiser({end: LocalDenoiser(images, window) for end, window in windows.items()})

    Args:
        members: By the largest noise level that each is for; the last is for all larger ones, and has `inf`.

    Raises:
        ValueError: Without one for the largest levels.
    """

    def __init__(self, members: Mapping[float, Denoiser]) -> None:
        super().__init__()
        self.ends = sorted(members)
        if not self.ends or self.ends[-1] != math.inf:
            raise ValueError(f"Expected `members` with one up to inf but got them up to {self.ends}.")
        self.members = nn.ModuleList(members[end] for end in self.ends)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels, result = per_image(sigma, x).flatten(), torch.empty_like(x)
        low = -math.inf
        for end, member in zip(self.ends, self.members, strict=True):
            chosen = (levels > low) & (levels <= end)
            if chosen.any():
                result[chosen] = member(x[chosen], levels[chosen])
            low = end
        return result
