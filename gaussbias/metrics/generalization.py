"""How far samples are from the training images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Means
from gaussbias.metrics.neighbours import NearestImages

QUANTITIES = ("relative_distance", "memorized")


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927).

    >>> low, high = wilson_interval(0, 100)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.037)
    """
    z = 1.959963984540054
    share = successes / trials
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == trials else middle + half)


class GeneralizationScore(BlockMetric):
    """GL score and memorised fraction of samples (Li, Dai and Qu 2024, Section 2, arXiv 2410.24060).

    - `gl_score`: mean of `||x - NN(x)|| / ||x||`; the paper calls above 0.6 generalising. It rewards blur, so it
      means something beside the value of held-out images only.
    - `memorized_fraction`: share of samples at most a third as far from the nearest training image as from the
      next different one, with its 95 % Wilson interval in `memorized_fraction_low` and `_high`; NaN without a different
      one.

    Args:
        nearest: Search among the training images.
        samples: Number of samples.
    """

    def __init__(self, nearest: NearestImages, samples: int) -> None:
        super().__init__(samples, 1, QUANTITIES)
        self.nearest = nearest

    def update(self, samples: Tensor, start: int = 0) -> None:
        """Measure samples (B, C, H, W) in data units, the first of which has number `start`."""
        neighbours = self.nearest(samples)
        # where all training images are the same there is no next one, and nothing to be memorised rather than it
        memorized = neighbours.memorized.double().masked_fill(neighbours.second.isinf(), math.nan)
        values = dict(zip(QUANTITIES, (neighbours.relative, memorized), strict=True))
        self.fill(slice(start, start + len(samples)), {name: value[:, None] for name, value in values.items()})

    def derive(self, means: Means) -> Means:
        """The reported names."""
        return {"gl_score": means["relative_distance"], "memorized_fraction": means["memorized"]}

    def compute(self) -> dict[str, Tensor]:
        """The values by name, each a number."""
        values = {name: value.squeeze() for name, value in super().compute().items()}
        memorized = self.estimates["memorized_fraction"].pseudo
        low, high = wilson_interval(float(memorized.sum().round()), len(memorized))
        return values | {
            "memorized_fraction_low": torch.tensor(low, dtype=torch.float64),
            "memorized_fraction_high": torch.tensor(high, dtype=torch.float64),
        }
