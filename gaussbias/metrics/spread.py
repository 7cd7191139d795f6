"""Variances of samples along directions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means


class Spread(BlockMetric):
    """Variances of samples along unit vectors, over those that are expected.

    The jackknife's mean pseudo-value of a variance is the unbiased one, and that is the value.

    Args:
        samples: Number of samples, at least 2.
        mean: (d,), near that of the samples.
        directions: (d, K), unit vectors.
        variances: (K,), above 0.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, samples: int, mean: Tensor, directions: Tensor, variances: Tensor) -> None:
        super().__init__(samples, len(variances), ("value", "square"))
        self.register_buffer("mean", mean.double())
        self.register_buffer("directions", directions.double())
        self.variances = variances.cpu().double()

    def update(self, samples: Tensor, start: int = 0) -> None:
        """Measure samples (B, C, H, W) in data units, the first of which has number `start`."""
        along = (samples.double().flatten(1) - self.mean) @ self.directions
        self.fill(slice(start, start + len(samples)), {"value": along, "square": along.square()})

    def derive(self, means: Means) -> Means:
        """The variances from means over samples (..., K)."""
        return {"spread": (means["square"] - means["value"].square()) / self.variances}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Unbiased variances (K,) with their errors; NaN for one sample."""
        found = super().estimate(rows)["spread"]
        unbiased = found.pseudo.mean(0) if len(rows) > 1 else torch.full_like(found.value, torch.nan)
        return {"spread": replace(found, value=unbiased)}
