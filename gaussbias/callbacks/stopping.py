"""Ends training when it is asked to, on all ranks at the same point."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from gaussbias.callbacks.base import root_device
from gaussbias.signals import Stopped, StopRequest


class Stopping(pl.Callback):
    """Raises `Stopped` between two steps, or in the middle of a measurement, once any rank was asked to stop.

    The request has to be patient: a rank that stopped elsewhere would leave the others waiting.

    It comes first of all callbacks. In a measurement a rank that was asked leaves it at once, and meets the others
    before the first thing that ranks do together there; all leave, and the measurement is made when the run goes on.

    Args:
        request: Notes signals.
    """

    def __init__(self, request: StopRequest) -> None:
        self.request = request
        self._agreed = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop before anything is done."""
        self._meet(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stop before this step."""
        self._meet(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave the measurement."""
        if self.request.received is not None:
            raise self.request.stopped()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Meet those who left."""
        self._meet(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Meet those who are still at work."""
        if isinstance(exception, Stopped) and not self._agreed:
            self._agree(trainer)

    def _meet(self, trainer: pl.Trainer) -> None:
        if self._agree(trainer):
            raise self.request.stopped()

    def _agree(self, trainer: pl.Trainer) -> bool:
        """Whether any rank was asked to stop; every rank comes here."""
        asked = self.request.received is not None
        if trainer.world_size > 1:
            flag = torch.tensor(float(asked), device=root_device(trainer))
            asked = bool(trainer.strategy.reduce(flag, reduce_op="max") > 0)
        self._agreed = asked
        return asked
