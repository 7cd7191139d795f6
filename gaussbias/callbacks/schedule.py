"""When things happen: measurements, logged training values, checkpoints. All are sets of steps."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

import lightning.pytorch as pl

from gaussbias.callbacks import private


def total_steps(kimg: float, batch_size: int) -> int:
    """Steps in a run of `kimg` thousand images."""
    return math.ceil(round(1000 * kimg / batch_size, 6))


def even_steps(kimg: float, every_kimg: float, batch_size: int) -> set[int]:
    """Steps about every `every_kimg` thousand images, and the last one."""
    last = total_steps(kimg, batch_size)
    count = int(kimg / every_kimg + 1e-9)
    return {min(last, max(1, round(1000 * i * every_kimg / batch_size))) for i in range(1, count + 1)} | {last}


def measurement_steps(
    kimg: float, first_kimg: float, every_kimg: float, batch_size: int, growth: float = 2.0
) -> set[int]:
    """Steps at 0, at `first_kimg`, then at `growth` times the time before, until `every_kimg` apart, then evenly.

    And at the end.

    >>> sorted(measurement_steps(kimg=20, first_kimg=1, every_kimg=4, batch_size=1000))
    [0, 1, 2, 4, 8, 12, 16, 20]
    """
    last = total_steps(kimg, batch_size)
    times, time = [0.0], first_kimg
    while time < kimg:
        times.append(time)
        time += min(time * (growth - 1), every_kimg)
    return {min(last, max(round(1000 * t / batch_size), int(t > 0))) for t in times} | {last}


class MeasurementSchedule(pl.Callback):
    """Runs validation after the given steps, and before the first one if 0 is among them.

    The trainer needs `val_check_interval` set to a number of batches, and `check_val_every_n_epoch=None`.

    Args:
        steps: Numbers of steps taken.
    """

    def __init__(self, steps: Set[int]) -> None:
        self.steps = steps
        self._measured = self._restored = -1
        self._ended = False
        self._max_steps = 0

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store whether the measurement after this step is done, and whether training has ended before its time."""
        checkpoint["measured"] = self._measured == trainer.global_step
        checkpoint["ended"] = self._ended or trainer.should_stop

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take down what is left to do."""
        self._restored, self._ended = checkpoint["global_step"], checkpoint.get("ended", False)
        self._measured = self._restored if checkpoint.get("measured", True) else -1

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have Lightning begin even if only a measurement is left to do."""
        self._max_steps = trainer.max_steps
        if self._due(self._restored) and trainer.max_steps == self._restored:
            private.begin_although_done(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the untrained network, or what a run that was stopped in the middle of a measurement had reached."""
        private.never_validate(trainer)
        private.set_steps(trainer, self._max_steps)
        if self._due(trainer.global_step):
            trainer.should_stop = self._ended  # a checkpoint is written after the last measurement
            private.validate_now(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that it is done."""
        if not trainer.sanity_checking:
            self._measured = trainer.global_step

    def _due(self, step: int) -> bool:
        return (step in self.steps or self._ended) and step != self._measured

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Let Lightning validate after this batch if it is time."""
        private.validate_after_this_batch(trainer, trainer.global_step + 1 in self.steps)
