"""Averages over numbered blocks of draws, or over numbered samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric


class BlockMetric(Metric):
    """A metric whose state is one float64 row per block: each rank fills its own, and the sum over ranks is all.

    Blocks are the same whatever the number of ranks, the size of a batch and the order, and so are the values.
    After `compute`, `gathered` holds the rows of all ranks (blocks, levels, quantities).

    Args:
        blocks: Number of blocks; for what is measured once a sample, of samples.
        levels: Number of noise levels S.
        quantities: Names of what is measured at each level.
    """

    full_state_update = False
    rows: Tensor
    filled: Tensor

    def __init__(self, blocks: int, levels: int, quantities: Sequence[str]) -> None:
        super().__init__()
        self.quantities = tuple(quantities)
        self.gathered: Tensor | None = None
        self.add_state("rows", torch.zeros(blocks, levels, len(self.quantities), dtype=torch.float64), "sum")
        self.add_state("filled", torch.zeros(blocks, dtype=torch.float64), "sum")

    def fill(self, blocks: int | slice, values: dict[str, Tensor]) -> None:
        """Set the row of a block from the means over its draws, (S,) for each quantity, or many rows, (B, S)."""
        self.rows[blocks] = torch.stack([values[name].to(self.rows) for name in self.quantities], -1)
        self.filled[blocks] += 1

    def compute(self) -> dict[str, Tensor]:
        """The mean over the blocks that were filled, (S,) for each quantity.

        Raises:
            ValueError: If a block was filled twice, by one rank or by two.
        """
        if (self.filled > 1).any():
            raise ValueError(f"Expected each block to be filled once but got counts {self.filled.tolist()}.")
        self.gathered = self.rows[self.filled > 0].cpu()
        means = self.gathered.mean(0)
        return {name: means[:, i] for i, name in enumerate(self.quantities)}
