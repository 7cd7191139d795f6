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
        classes: Number of classes that it tells apart; 0 for a denoiser of images without labels.
        knows_none: Whether one with classes can be told none.
    """

    sigma_range: tuple[float, float] = (0.0, math.inf)
    at_once: int | None = None
    classes: int = 0
    knows_none: bool = True

    @abstractmethod
    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise.

        Args:
            x: Noisy images (B, C, H, W), in data units.
            sigma: Noise level, one or (B,), a standard deviation in data units.

        Returns:
            Clean images, of the shape and dtype of `x`.
        """

    def given(self, labels: Tensor | int) -> Denoiser:
        """The denoiser of images of a class; one without classes is the same for all of them.

        Args:
            labels: The number of a class, from 0, or one for each image that it will be called with (B,), int64; -1 is
                no class (`E[x0 | x]` of all of them, if the network was trained on that).
        """
        if not self.classes:
            return self
        return Given(self, labels)

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


class Given(Denoiser):
    """A denoiser of images with classes, of one class, or of a class for each image.

    Args:
        denoiser: Called with images (B, C, H, W), noise levels and labels (B,).
        labels: A number, or (B,), int64.

    Raises:
        ValueError: For a class that it does not have.
    """

    def __init__(self, denoiser: Denoiser, labels: Tensor | int) -> None:
        super().__init__()
        low, high = (int(label) for label in torch.aminmax(torch.as_tensor(labels)))
        least = -denoiser.knows_none
        if low < least or high >= denoiser.classes:
            raise ValueError(
                f"Expected `labels` from 0 to {denoiser.classes - 1}{', or -1 for none,' if least else ''} but got "
                f"{low if low < least else high}."
            )
        self.denoiser, self.labels = denoiser, labels
        self.sigma_range, self.at_once = denoiser.sigma_range, denoiser.at_once

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        result: Tensor = self.denoiser(x, sigma, torch.as_tensor(self.labels, device=x.device).expand(len(x)))
        return result

    def effective_sigma(self, sigma: float) -> float:
        """That of the denoiser."""
        return self.denoiser.effective_sigma(sigma)


class _Function(Denoiser):
    """Any function of images, noise levels and labels (B,), as a denoiser of as many classes as anyone asks for."""

    classes = 2**31

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self._call = call

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        return self._call(x, sigma, labels)


def given(denoiser: Evaluate, labels: Tensor | int | None) -> Evaluate:
    """A denoiser, or any function, at a class; `None` is no class, of images without labels.

    What is no `Denoiser` is called with images, noise levels and labels (B,).
    """
    if labels is None:
        return denoiser
    return (denoiser if isinstance(denoiser, Denoiser) else _Function(denoiser)).given(labels)


def unlabelled(denoiser: Evaluate) -> Evaluate:
    """A denoiser that was given a class, told none; others as they are."""
    return denoiser.denoiser.given(-1) if isinstance(denoiser, Given) else denoiser


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
