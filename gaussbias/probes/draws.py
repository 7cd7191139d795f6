"""Numbers of each draw, kept for comparing pools by their images."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.metrics.pools import Drawn
from gaussbias.probes.bank import ProbeBank


class EachDraw(BlockMetric):
    """Numbers of each draw of a pool at each noise level.

    After `compute`, `drawn` has by name those of all draws that any rank measured (S, M), with their images: then alone
    has a metric what the other ranks measured.

    Args:
        bank: The draws.
        pool: Of images.
        quantities: Names of the numbers.
    """

    def __init__(self, bank: ProbeBank, pool: str, quantities: tuple[str, ...]) -> None:
        super().__init__(bank.blocks, len(bank.sigmas), quantities, each=bank.block)
        self.bank, self.pool = bank, pool
        self.drawn: dict[str, Drawn] = {}

    def update(self, values: dict[str, Tensor], block: int) -> None:
        """Keep the numbers (S, m) of a block."""
        self.fill(block, values)

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """The mean of each number, by blocks."""
        blocks = self.filled.nonzero().flatten().tolist()
        images = torch.cat([self.bank.chosen(self.pool, block) for block in blocks])
        values = rows.permute(3, 1, 0, 2).flatten(2)
        self.drawn = {name: Drawn(part, images) for name, part in zip(self.quantities, values, strict=True)}
        return super().estimate(rows.mean(2))
