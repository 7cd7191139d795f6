"""The Frechet distance between two sets of images, as normal distributions of their features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric

Features = Callable[[Tensor], Tensor]
"""From images (B, C, H, W) in data units to features (B, F)."""
DIRECTIONS = 64
"""Leading principal directions of the training images in which `samples/frechet_pca` compares."""


def frechet_distance(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """`||m1 - m2||^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)`, the squared distance of Frechet (1957).

    The last trace is the nuclear norm of R1^T R2 for any roots C = R R^T: a sum of singular values, which is real and
    keeps its digits where covariances are flat. In float64.

    Args:
        mean: (F,).
        covariance: (F, F).
        other_mean: (F,).
        other_covariance: (F, F).

    Returns:
        The distance, at least 0; NaN if anything is not finite.
    """
    numbers = [part.double() for part in (mean, covariance, other_mean, other_covariance)]
    if not all(bool(part.isfinite().all()) for part in numbers):
        return numbers[0].new_tensor(torch.nan)
    m1, c1, m2, c2 = numbers
    shared: Tensor = torch.linalg.svdvals(_root(c1).T @ _root(c2)).sum()
    return ((m1 - m2).square().sum() + c1.trace() + c2.trace() - 2 * shared).clamp(min=0)


def _root(covariance: Tensor) -> Tensor:
    """R with `R R^T` the covariance."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp(min=0).sqrt()
    return root


class FrechetDistance(Metric):
    """The Frechet distance of images to a reference set, by sums of features and of their products in float64.

    Covariances are over n - 1, as in the Frechet inception distance (Heusel et al. 2017, arXiv 1706.08500). The
    value has a bias above zero that falls with the number of images: compare equal numbers only.

    Set `reference` to the `moments()` of the images to compare with, before `compute`.

    Args:
        features: Of images.
        size: F, the number of features.
    """

    full_state_update = False
    count: Tensor
    total: Tensor
    outer: Tensor

    def __init__(self, features: Features, size: int) -> None:
        super().__init__()
        self.features = features
        self.add_state("count", torch.zeros((), dtype=torch.float64), "sum")
        self.add_state("total", torch.zeros(size, dtype=torch.float64), "sum")
        self.add_state("outer", torch.zeros(size, size, dtype=torch.float64), "sum")
        self.reference: tuple[Tensor, Tensor] | None = None

    def update(self, images: Tensor) -> None:
        """Add images (B, C, H, W), in data units."""
        features = self.features(images).double().flatten(1)
        self.count += len(features)
        self.total += features.sum(0)
        self.outer += features.T @ features

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean (F,) and covariance (F, F) of the features so far.

        Raises:
            ValueError: For fewer than 2 images.
        """
        if self.count < 2:
            raise ValueError(f"Expected at least 2 images for a covariance but got {int(self.count)}.")
        mean = self.total / self.count
        return mean, (self.outer - self.count * torch.outer(mean, mean)) / (self.count - 1)

    def compute(self) -> Tensor:
        """The distance to the reference.

        Raises:
            ValueError: Without a reference, or for fewer than 2 images.
        """
        if self.reference is None:
            raise ValueError("Expected `reference`, the mean and covariance to compare with, but got none.")
        return frechet_distance(*self.moments(), *self.reference)
