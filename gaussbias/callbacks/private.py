"""All that is used of Lightning beside its documented interface, as it is in the versions named here.

A test compares what is used with the installed version, so that another one is looked at before it is allowed.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn

VERSIONS = "2.6"
"""For which this holds; pyproject.toml allows no others."""


def datamodule_of(trainer: pl.Trainer) -> Any:
    """The LightningDataModule that the trainer was given; `None` without one."""
    return trainer.datamodule  # type: ignore[attr-defined]


def callbacks_in(trainer: pl.Trainer) -> list[pl.Callback]:
    """The callbacks of a trainer."""
    return list(trainer.callbacks)  # type: ignore[attr-defined]


def is_trial(trainer: pl.Trainer) -> bool:
    """Whether the trainer only tries its code (`fast_dev_run`)."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def without_signal_handlers(trainer: pl.Trainer) -> None:
    """Leave signals to `Stopping`.

    Lightning's own handler has ranks do something together in the middle of whatever they do, and ranks ask each other
    for it before each step, and wait for the answer of the device.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def begin_although_done(trainer: pl.Trainer) -> None:
    """Have Lightning begin although all steps are taken."""
    trainer.fit_loop.epoch_loop.max_steps += 1


def set_steps(trainer: pl.Trainer, steps: int) -> None:
    """Have training end after so many steps."""
    trainer.fit_loop.epoch_loop.max_steps = steps


def validate_now(trainer: pl.Trainer) -> None:
    """Run validation before the first step."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True


def validate_after_this_batch(trainer: pl.Trainer, due: bool) -> None:
    """Have Lightning validate after the batch that begins, or not; it does after multiples of a count of batches."""
    batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    trainer.val_check_batch = batches if due else sys.maxsize


def never_validate(trainer: pl.Trainer) -> None:
    """Have Lightning validate after no batch until it is told to."""
    trainer.val_check_batch = sys.maxsize


def average_of(averaging: WeightAveraging) -> nn.Module | None:
    """The model that holds the averaged weights, or in validation the others; `None` before there is one."""
    return averaging._average_model
