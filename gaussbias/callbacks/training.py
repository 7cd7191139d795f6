"""The loss and the speed, and a stop where the loss is not a number."""

from __future__ import annotations

import time
from collections.abc import Set
from typing import Any

import lightning.pytorch as pl
import torch

from gaussbias import catalogue
from gaussbias.callbacks.base import images_per_step, log_row, progress, root_device
from gaussbias.system.errors import TrainingError


class TrainingLog(pl.Callback):
    """Logs values of the training steps since the last logged step.

    A loss that is not finite stops the run, before a measurement or a checkpoint is made of what follows it.
    Losses are added up on the device, so a step does not wait for it.

    Args:
        steps: Numbers of steps after which to log; those of measurements and checkpoints belong to them.
    """

    def __init__(self, steps: Set[int]) -> None:
        self.steps = steps
        self._total = torch.zeros((), dtype=torch.float64)
        self._first_bad = torch.full((), 2**62)
        self._count = self._before = 0  # steps in this process, and before a run was stopped
        self._since = self._paused = self._lr = 0.0
        self._restored: tuple[float, int] | None = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store the losses since the last logged step, of each rank; every rank comes here."""
        totals: Any = trainer.strategy.all_gather(self._total)
        checkpoint["losses"] = {"totals": totals.reshape(-1).tolist(), "count": self._before + self._count}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on counting; on another number of ranks each begins with the mean."""
        if "losses" in checkpoint:
            totals, count = checkpoint["losses"]["totals"], checkpoint["losses"]["count"]
            same = len(totals) == trainer.world_size
            self._restored = (totals[trainer.global_rank] if same else sum(totals) / len(totals), count)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting."""
        self._reset(trainer)
        if self._restored is not None:
            total, self._before = self._restored
            self._total += total
            self._restored = None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the time: measuring does not count."""
        self._paused = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the time of the measurement off."""
        self._since += time.perf_counter() - self._paused

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the learning rate of this step: after it the scheduler has moved on."""
        self._lr = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss of a step."""
        loss = outputs["loss"].detach().double()
        self._total += loss
        self._count += 1
        self._first_bad = torch.where(loss.isfinite(), self._first_bad, self._first_bad.clamp(max=trainer.global_step))
        if trainer.global_step in self.steps:
            self._log(trainer)

    def _log(self, trainer: pl.Trainer) -> None:
        total = trainer.strategy.reduce(self._total.clone(), reduce_op="mean")
        if not bool(torch.isfinite(total)):
            self._stop(trainer)
        seconds = time.perf_counter() - self._since
        values = {
            catalogue.LOSS.name: float(total) / (self._before + self._count),
            catalogue.LEARNING_RATE.name: self._lr,
            catalogue.SPEED.name: self._count * images_per_step(trainer) / seconds,
        }
        log_row(trainer, values)
        self._reset(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        """All ranks come here together: the mean over them is not finite."""
        bad = -trainer.strategy.reduce(-self._first_bad.clone(), reduce_op="max")
        step, each = int(bad), images_per_step(trainer) / 1000
        raise TrainingError(
            f"the loss is not finite from step {step} ({step * each:g} kimg); stopped at step "
            f"{trainer.global_step} ({progress(trainer)['kimg']:g} kimg), and nothing after step {step - 1} was saved. "
            "Try a smaller train.lr, or train.grad_clip=1"
        )

    def _reset(self, trainer: pl.Trainer) -> None:
        device = root_device(trainer)
        self._total = torch.zeros((), dtype=torch.float64, device=device)
        self._first_bad = torch.full((), 2**62, device=device)
        self._count = self._before = 0
        self._since = time.perf_counter()
