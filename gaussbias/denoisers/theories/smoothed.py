"""The smoothed closed form: the memoriser, averaged over inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.theories.empirical import EmpiricalDenoiser
from gaussbias.numerics.seeding import derive


class SmoothedDenoiser(Denoiser):
    """The mean of D_M over M inputs `x + c eta_m`, eta standard normal (Scarvelis et al. 2023, arXiv 2310.12395).

    The eta are the same for all x, and come in pairs of opposite sign, so that their mean is 0 and the mean of the
    scores is the score of this mean. c = 0 is D_M.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        c: In data units, at least 0.
        count: M, even.
        flip: Count the mirrored copy of each image as well.
        seed: Of the eta.
    """

    eta: Tensor

    def __init__(self, images: Tensor, c: float, count: int = 16, flip: bool = False, seed: int = 0) -> None:
        super().__init__()
        if not c >= 0:
            raise ValueError(f"Expected `c` of at least 0 but got {c:g}.")
        if count < 2 or count % 2:
            raise ValueError(f"Expected an even `count` of at least 2 but got {count}.")
        self.c, self.memoriser = c, EmpiricalDenoiser(images, flip)
        generator = torch.Generator().manual_seed(derive(seed, "smoothed"))
        half = torch.randn(count // 2, *images.shape[1:], generator=generator)
        self.register_buffer("eta", torch.cat([half, -half]))

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        total = torch.zeros_like(x, dtype=torch.float64)
        for eta in self.eta:
            total += self.memoriser(x + self.c * eta.to(x.dtype), sigma)
        return (total / len(self.eta)).to(x.dtype)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level, as D_M does.

        Returns:
            (S, B, C, H, W).
        """
        total = x0.new_zeros(len(sigmas), *x0.shape, dtype=torch.float64)
        for eta in self.eta:
            total += self.memoriser.forward_grid(x0 + self.c * eta.to(x0.dtype), eps, sigmas)
        return (total / len(self.eta)).to(x0.dtype)
