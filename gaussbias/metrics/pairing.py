"""How alike two images are that were made from the same latent."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric

QUANTITIES = ("r", "r2")
COVERED = 0.025
"""Of the median's interval, what is left out at each end, at most."""


def likeness(samples: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """Pearson correlation and coefficient of determination of pairs of images (B, C, H, W).

    - `r`: correlation over all pixels and channels, each image less its own mean (Kamb and Ganguli 2024, arXiv
      2412.20292, who call it r^2);
    - `r2`: `1 - ||a - b||^2 / (n var b)`, b the sample, n its numbers, a what is predicted (Lukoianov et al. 2025,
      arXiv 2509.09672); at most 1, below 0 where the sample's own mean is a better prediction.

    Returns:
        A value per pair (B,), float64; NaN for an image of one colour.
    """
    b, a = (part.double().flatten(1) for part in (samples, predicted))
    rest = (a - b).square().sum(1)
    b, a = (part - part.mean(1, keepdim=True) for part in (b, a))
    total = b.square().sum(1)
    return {"r": (a * b).sum(1) / (total * a.square().sum(1)).sqrt(), "r2": 1 - rest / total}


class Likeness(BlockMetric):
    """`likeness` of pairs, `r` and `r2` averaged over them, and the median of r with the ends of its interval.

    Args:
        samples: Number of pairs.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples, 1, QUANTITIES)

    def update(self, samples: Tensor, predicted: Tensor, start: int = 0) -> None:
        """Compare samples with what is predicted (B, C, H, W); the first has number `start`."""
        values = likeness(samples, predicted)
        self.fill(slice(start, start + len(samples)), {name: value[:, None] for name, value in values.items()})

    def compute(self) -> dict[str, Tensor]:
        """The means, and as `r_median`, `r_median_low` and `r_median_high` the median and its interval, numbers."""
        values = {name: value.squeeze() for name, value in super().compute().items()}
        middle = median(self.estimates["r"].pseudo[:, 0])
        return values | dict(zip(("r_median", "r_median_low", "r_median_high"), middle, strict=True))


def median(values: Tensor) -> Tensor:
    """The median of values (n,), and the ends of its 95 % interval (3,).

    The interval is that of the sign test, which holds for any distribution: its ends are values themselves, such that
    fewer than 2.5 % of samples have their median beyond either. NaN ends for 5 values or fewer, which have none.
    """
    ordered = values.sort().values
    count, tail, place = len(values), 0.0, 0
    while place < count:
        tail += math.comb(count, place) / 2**count  # so likely are so many values below it
        if tail > COVERED:
            break
        place += 1
    ends = (ordered[place - 1], ordered[count - place]) if place else (values.new_tensor(math.nan),) * 2
    return torch.stack([ordered.quantile(0.5), *ends])
