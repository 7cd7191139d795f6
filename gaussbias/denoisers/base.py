"""What every denoiser is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gaussbias.numerics.precision import full_precision

Evaluate = Callable[[Tensor, Tensor], Tensor]
"""A denoiser, or any function of images (B, C, H, W) and noise levels (B,)."""


class Denoiser(nn.Module, ABC):
    """A map from noisy images to clean ones: `D(x, sigma) ~ E[x0 | x0 + sigma eps = x]`.

    Its score is `(D(x, sigma) - x) / sigma^2`.

    Attributes:
        sigma_range: Smallest and largest noise level that it can denoise.
        at_once: Images that a network evaluates at once; `None`: all that it is given.
    """

    sigma_range: tuple[float, float] = (0.0, math.inf)
    at_once: int | None = None

    @abstractmethod
    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise.

        Args:
            x: Noisy images (B, C, H, W), in data units.
            sigma: Noise level, one or (B,), a standard deviation in data units.

        Returns:
            Clean images, of the shape and dtype of `x`.
        """

    def effective_sigma(self, sigma: float) -> float:
        """The noise level that it takes `sigma` for: for some networks the nearest of those that they know."""
        return sigma

    def told_range(self) -> str:
        """The noise levels that it can denoise, in words."""
        low, high = self.sigma_range
        if (low, high) == (0.0, math.inf):
            return "any"
        return f"{low:.4g} to {'any' if math.isinf(high) else f'{high:.4g}'}"

    def check_sigma(self, sigma: Tensor | float) -> None:
        """Raise `ValueError` for a noise level that is not in `sigma_range`."""
        low, high = self.sigma_range
        if (low, high) == (0.0, math.inf):  # nothing to wait for on a device
            return
        least, most = torch.aminmax(torch.as_tensor(sigma))
        # float32 may round the ends outwards
        if not (float(least) >= low * (1 - 1e-6) and float(most) <= high * (1 + 1e-6)):
            outside = float(least) if not float(least) >= low else float(most)
            raise ValueError(f"Expected `sigma` from {low:.4g} to {high:.4g} but got {outside:.4g}.")

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level; denoisers that can share work over levels do.

        Args:
            x0: Clean images (B, C, H, W).
            eps: Standard normal noise, of the same shape.
            sigmas: Noise levels (S,).

        Returns:
            (S, B, C, H, W).
        """
        return torch.stack([self(x0 + sigma * eps, sigma) for sigma in sigmas])


def at_levels(denoiser: Evaluate, x: Tensor, sigmas: Tensor, chunk: int = 256) -> Tensor:
    """A denoiser's values at images (S, B, C, H, W) that have noise levels (S,), `chunk` images at a time."""
    # a copy of so few numbers from the host is staged at once: there is nothing to wait for
    levels = sigmas.to(x, non_blocking=True).repeat_interleave(x.shape[1])
    parts = zip(x.flatten(0, 1).split(chunk), levels.split(chunk), strict=True)
    with full_precision(x.device):
        return torch.cat([denoiser(images, sigma) for images, sigma in parts]).view_as(x)


def on_grid(sigmas: Sequence[float], x0: Tensor) -> Tensor:
    """The noise levels of images (B, C, H, W) at each of several levels, (S, B), float64, on their device."""
    return torch.tensor(sigmas, dtype=torch.float64, device=x0.device)[:, None].expand(-1, len(x0))


def per_image(sigma: Tensor | float, x: Tensor) -> Tensor:
    """A noise level as (B, 1, 1, 1), on the device and in the dtype of `x` (B, C, H, W)."""
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device)
    return level.reshape(-1, *[1] * (x.ndim - 1)).expand(len(x), *[1] * (x.ndim - 1))
