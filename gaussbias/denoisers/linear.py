"""One affine map per noise level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.denoisers.base import Denoiser
from gaussbias.numerics.precision import full_precision


class LinearDenoiser(Denoiser):
    """`D_L(x, sigma) = W_sigma x + b_sigma`, at its stored noise levels only.

    Args:
        sigmas: Noise levels (S,).
        weights: (S, d, d).
        biases: (S, d).
        shape: (C, H, W) of the images, with d = C*H*W.

    Raises:
        ValueError: If the shapes do not fit together.
    """

    sigmas: Tensor
    weights: Tensor
    biases: Tensor

    TOLERANCE = 1e-3
    """Relative difference up to which a noise level counts as a stored one."""

    def __init__(self, sigmas: Tensor, weights: Tensor, biases: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        d = torch.Size(shape).numel()
        if weights.shape != (len(sigmas), d, d) or biases.shape != (len(sigmas), d):
            raise ValueError(
                f"Expected `weights` {(len(sigmas), d, d)} and `biases` {(len(sigmas), d)} for {len(sigmas)} "
                f"levels of images {shape} but got {tuple(weights.shape)} and {tuple(biases.shape)}."
            )
        self.shape = shape
        self.register_buffer("sigmas", sigmas)
        self.register_buffer("weights", weights)
        self.register_buffer("biases", biases)

    def level(self, sigma: float) -> int:
        """Position of a noise level.

        Raises:
            ValueError: If it is not stored.
        """
        return self._level(sigma, self.sigmas.tolist())

    def _level(self, sigma: float, stored: Sequence[float]) -> int:
        distances = [abs(level / sigma - 1) for level in stored]
        nearest = min(range(len(stored)), key=distances.__getitem__)
        if not distances[nearest] <= self.TOLERANCE:
            told = ", ".join(f"{level:.4g}" for level in stored)
            raise ValueError(f"Expected `sigma` to be one of the stored levels {told} but got {sigma:.4g}.")
        return nearest

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        flat = x.flatten(1)
        levels = torch.as_tensor(sigma, dtype=torch.float64).reshape(-1).expand(len(x)).tolist()
        stored = self.sigmas.tolist()
        result = torch.empty_like(flat)
        with full_precision(x.device):
            for value in dict.fromkeys(levels):
                places = [place for place, level in enumerate(levels) if level == value]
                rows = torch.tensor(places).to(x.device, non_blocking=True)
                place = self._level(value, stored)
                result[rows] = flat[rows] @ self.weights[place].to(x.dtype).T + self.biases[place].to(x.dtype)
        return result.view_as(x)
