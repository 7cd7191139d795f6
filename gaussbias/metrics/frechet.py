"""The Frechet distance between two sets of images, as normal distributions of their features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from gaussbias.metrics.blocks import Estimate
from gaussbias.numerics.blocks import BLOCKS

Features = Callable[[Tensor], Tensor]
"""From images (B, C, H, W) in data units to features (B, F)."""
DIRECTIONS = 64
"""Leading principal directions of the training images in which `samples/frechet_pca` compares."""


@dataclass(frozen=True)
class NormalFeatures:
    """A normal distribution of features: mean (F,), and R (F, k) with `R R^T` the covariance; float64."""

    mean: Tensor
    root: Tensor


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
    if not all(bool(part.isfinite().all()) for part in (mean, covariance, other_mean, other_covariance)):
        return mean.new_tensor(torch.nan, dtype=torch.float64)
    return _distance(normal_of(mean, covariance), normal_of(other_mean, other_covariance))


def _distance(normal: NormalFeatures, other: NormalFeatures) -> Tensor:
    parts = (normal.mean, normal.root, other.mean, other.root)
    if not all(bool(part.isfinite().all()) for part in parts):
        return normal.mean.new_tensor(torch.nan)
    shared: Tensor = torch.linalg.svdvals(normal.root.T @ other.root).sum()
    between = (normal.mean - other.mean).square().sum()
    return (between + normal.root.square().sum() + other.root.square().sum() - 2 * shared).clamp(min=0)


def normal_of(mean: Tensor, covariance: Tensor) -> NormalFeatures:
    """A distribution from its mean (F,) and covariance (F, F)."""
    values, vectors = torch.linalg.eigh(covariance.double())
    return NormalFeatures(mean.double(), vectors * values.clamp(min=0).sqrt())


def normal_of_images(features: Features, batches: Iterable[Tensor]) -> NormalFeatures:
    """The distribution of the features of images, by sums in float64; the covariance is over n - 1.

    Raises:
        ValueError: For fewer than 2 images.
    """
    count, total, outer = 0, torch.zeros(()), torch.zeros(())
    for images in batches:
        rows = features(images).double().flatten(1)
        total = total.to(rows) + rows.sum(0)
        outer = outer.to(rows) + rows.T @ rows
        count += len(rows)
    _check(count)
    mean = total / count
    return normal_of(mean, (outer - count * torch.outer(mean, mean)) / (count - 1))


def frechet_estimate(rows: Tensor, reference: NormalFeatures) -> Estimate:
    """The distance of features (n, F) to a reference, with its jackknife over 16 groups of them."""
    value = _distance(_of_features(rows), reference)
    groups = torch.arange(len(rows)).tensor_split(min(BLOCKS, len(rows)))
    pseudo = [value]
    if len(rows) > 2:
        kept = torch.ones(len(groups), len(rows), dtype=torch.bool)
        for number, group in enumerate(groups):
            kept[number, group] = False
        count = len(groups)
        pseudo = [count * value - (count - 1) * _distance(_of_features(rows[k]), reference) for k in kept]
    return Estimate(value.cpu(), torch.stack(pseudo).cpu(), torch.tensor(True))


def _of_features(rows: Tensor) -> NormalFeatures:
    """The distribution of features (n, F); by the smaller of the two roots that it has."""
    count, size = rows.shape
    _check(count)
    mean = rows.mean(0)
    centred = (rows - mean) / (count - 1) ** 0.5
    if count <= size or not bool(centred.isfinite().all()):
        return NormalFeatures(mean, centred.T)
    return normal_of(mean, centred.T @ centred)


def _check(count: int) -> None:
    if count < 2:
        raise ValueError(f"Expected at least 2 images for a covariance but got {count}.")


class FrechetDistance(Metric):
    """The Frechet distance of images to a reference set.

    Covariances are over n - 1, as in the Frechet inception distance (Heusel et al. 2017, arXiv 1706.08500). The
    value has a bias above zero that falls with the number of images: compare equal numbers only. Its standard error
    is the jackknife's over 16 groups of images. The state is one row of features for each image.

    Args:
        features: Of images.
        size: F, the number of features.
        samples: Number of images; each rank fills in its own.
        reference: What to compare with (`normal_of_images`).
    """

    full_state_update = False
    rows: Tensor
    filled: Tensor

    def __init__(self, features: Features, size: int, samples: int, reference: NormalFeatures) -> None:
        super().__init__()
        self.features, self.reference = features, reference
        self.estimates: dict[str, Estimate] = {}
        self.missing = 0
        self.add_state("rows", torch.zeros(samples, size, dtype=torch.float64), "sum")
        self.add_state("filled", torch.zeros(samples, dtype=torch.float64), "sum")

    def update(self, images: Tensor, start: int = 0) -> None:
        """Add images (B, C, H, W), in data units; the first has number `start`."""
        rows = slice(start, start + len(images))
        self.rows[rows] = self.features(images).double().flatten(1)
        self.filled[rows] += 1

    def compute(self) -> Tensor:
        """The distance to the reference.

        Raises:
            ValueError: For fewer than 2 images, or one that came twice.
        """
        if (self.filled > 1).any():
            raise ValueError("Expected each image once but got some of them twice.")
        self.missing = int((self.filled == 0).sum())
        rows = self.rows[self.filled > 0]
        estimate = frechet_estimate(rows, self.reference)
        self.estimates = {"distance": estimate}
        return estimate.value
