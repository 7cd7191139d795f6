"""Which of several means is least at each noise level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means


class Least(BlockMetric):
    """The number that stands for the least of several means over draws, `place`, at each noise level.

    It jumps from one number to another, and so has no standard error. It is left out where a mean is not a number.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels S.
        places: By name of what is compared, the number that stands for it.
    """

    def __init__(self, blocks: int, levels: int, places: Mapping[str, float]) -> None:
        super().__init__(blocks, levels, list(places))
        self.places = torch.tensor(list(places.values()), dtype=torch.float64)

    def update(self, values: Mapping[str, Tensor], block: int) -> None:
        """Measure a block: values (S, m) by name."""
        self.fill(block, {name: values[name].double().mean(1) for name in self.quantities})

    def derive(self, means: Means) -> Means:
        """From means over blocks (..., S)."""
        return {"place": self.places[torch.stack([means[name] for name in self.quantities], -1).argmin(-1)]}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """The number at each level."""
        exact = Estimate.exact(super().estimate(rows)["place"].value)
        return {"place": replace(exact, reference=False, defined=rows.mean(0).isfinite().all(-1))}
