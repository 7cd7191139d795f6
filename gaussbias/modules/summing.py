"""Modules that add up sums over batches instead of descending a gradient, on any number of ranks."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn


class SummingStrategy(DDPStrategy):
    """DDP without its wrapper, which refuses modules in which nothing needs a gradient.

    Ranks add up on their own, and reduce when a sum is needed.
    """

    def configure_ddp(self) -> None:
        """Nothing: the module stays as it is."""


class SummingModule(pl.LightningModule):
    """What such modules share. Steps are counted as Lightning does, by an optimizer; this one has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.nothing = nn.Parameter(torch.zeros(0), requires_grad=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An optimizer without a gradient."""
        return torch.optim.SGD([self.nothing], lr=0.0)

    def count_step(self) -> None:
        """Count a step, or take it if there is a gradient."""
        optimizer: Any = self.optimizers()
        optimizer.step()

    def over_ranks(self, value: Tensor) -> Tensor:
        """The sum over all ranks; every rank comes here. The value stays what it is, and alone it is the sum."""
        if self.trainer.world_size == 1:
            return value
        total: Tensor = self.trainer.strategy.reduce(value.clone(), reduce_op="sum")
        return total
