"""When things happen: measurements, logged training values, checkpoints. All are sets of steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Set

import lightning.pytorch as pl


def total_steps(kimg: float, batch_size: int) -> int:
    """Steps in a run of `kimg` thousand images."""
    return math.ceil(round(1000 * kimg / batch_size, 6))


def even_steps(kimg: float, every_kimg: float, batch_size: int) -> set[int]:
    """Steps about every `every_kimg` thousand images, and the last one."""
    last = total_steps(kimg, batch_size)
    count = int(kimg / every_kimg + 1e-9)
    return {min(last, max(1, round(1000 * i * every_kimg / batch_size))) for i in range(1, count + 1)} | {last}


def measurement_steps(kimg: float, first_kimg: float, every_kimg: float, batch_size: int) -> set[int]:
    """Steps at 0, at `first_kimg`, then at twice the time each, until `every_kimg` apart, then evenly; and at the end.

    >>> sorted(measurement_steps(kimg=20, first_kimg=1, every_kimg=4, batch_size=1000))
    [0, 1, 2, 4, 8, 12, 16, 20]
    """
    last = total_steps(kimg, batch_size)
    times, time = [0.0], first_kimg
    while time < kimg:
        times.append(time)
        time += min(time, every_kimg)
    return {min(last, max(round(1000 * t / batch_size), int(t > 0))) for t in times} | {last}


class MeasurementSchedule(pl.Callback):
    """Runs validation after the given steps, and before the first one if 0 is among them.

    The trainer needs `val_check_interval` set to a number of batches, and `check_val_every_n_epoch=None`.

    Args:
        steps: Numbers of steps taken.
    """

    def __init__(self, steps: Set[int]) -> None:
        self.steps = steps

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the untrained network; a run that is continued has that row already."""
        trainer.val_check_batch = sys.maxsize
        if trainer.global_step or 0 not in self.steps:
            return
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Let Lightning validate after this batch if it is time."""
        batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        due = trainer.global_step + 1 in self.steps
        # Lightning validates after batches whose count is a multiple of this number
        trainer.val_check_batch = batches if due else sys.maxsize
