"""Denoisers made of those of classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.denoisers.base import Denoiser, Evaluate, Given
from gaussbias.denoisers.theories.mixture import MixtureDenoiser


class MixedClasses(Denoiser):
    """`sum_c p(c | x) D(x, c)`, what a class-conditional denoiser says of images whose class is not known.

    If every D(., c) is the posterior mean of its class and p(c | x) the posterior of the class this is that of all
    images (the law of total expectation); the mean over classes is no denoiser of anything. p(c | x) is that of
    normal classes here, with weights, means and covariances of the training images.

    Args:
        denoiser: With classes.
        mixture: Of the Gaussians of these classes.
        classes: Which ones (K,).

    Raises:
        ValueError: If there are not as many.
    """

    def __init__(self, denoiser: Denoiser, mixture: MixtureDenoiser, classes: Sequence[int]) -> None:
        super().__init__()
        if len(mixture.weights) != len(classes):
            raise ValueError(f"Expected {len(mixture.weights)} `classes` but got {len(classes)}.")
        self.denoiser, self.mixture, self.numbers = denoiser, mixture, list(classes)
        self.sigma_range = denoiser.sigma_range

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        posterior = self.mixture.posterior(x, sigma)
        total = torch.zeros_like(x, dtype=torch.float64)
        for weight, label in zip(posterior.unbind(1), self.numbers, strict=True):
            chosen = self.denoiser.given(label)
            total += weight[:, None, None, None] * chosen(x, sigma).double()
        return total.to(x.dtype)

    def effective_sigma(self, sigma: float) -> float:
        """That of the denoiser."""
        return self.denoiser.effective_sigma(sigma)


def guided(denoiser: Evaluate, weight: float) -> Evaluate:
    """A denoiser that was given a class, guided by the same one told none; others as they are."""
    if weight == 1 or not isinstance(denoiser, Given):
        return denoiser
    return GuidedDenoiser(denoiser.denoiser, weight).given(denoiser.labels)


class GuidedDenoiser(Denoiser):
    """`D_w(x, c) = D(x) + w (D(x, c) - D(x))`, classifier-free guidance (Ho and Salimans 2022, arXiv 2207.12598).

    w = 1 is the conditional denoiser, w = 0 the unconditional one; their own guidance scale is w - 1.

    Args:
        denoiser: With classes, evaluated twice.
        weight: w.
        without: The unconditional denoiser; `None`: the same one, told no class.

    Raises:
        ValueError: If that cannot be told none.
    """

    def __init__(self, denoiser: Denoiser, weight: float, without: Denoiser | None = None) -> None:
        super().__init__()
        if without is None and not denoiser.knows_none:
            raise ValueError("Expected `without`, an unconditional denoiser, for one that cannot be told no class.")
        self.denoiser, self.weight, self.without = denoiser, weight, without
        self.classes, self.sigma_range = denoiser.classes, denoiser.sigma_range

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,), for the classes `labels` (B,)."""
        if labels is None or self.weight == 0:
            return self._unconditional(x, sigma)
        conditional: Tensor = self.denoiser(x, sigma, labels)
        if self.weight == 1:
            return conditional
        return torch.lerp(self._unconditional(x, sigma), conditional, self.weight)

    def _unconditional(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        without = self.denoiser.given(-1) if self.without is None else self.without
        result: Tensor = without(x, sigma)
        return result

    def effective_sigma(self, sigma: float) -> float:
        """That of the denoiser."""
        return self.denoiser.effective_sigma(sigma)
