"""The least of several means at each noise level, and which it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Means


class Least(BlockMetric):
    """Means over draws of several numbers at each noise level.

    - `least`: the smallest mean;
    - `place`: the number that stands for it, as `places` has it.

    The smallest of means that are nearly equal is a little below each of their expectations.

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
        least, which = torch.stack([means[name] for name in self.quantities], -1).min(-1)
        return {"least": least, "place": self.places[which]}
