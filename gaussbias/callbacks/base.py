"""What callbacks share: how far training is, one logged row, and a trainer's parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch

from gaussbias.callbacks.private import callbacks_in, datamodule_of
from gaussbias.modules.datamodule import ImageDataModule
from gaussbias.system.errors import UserError

log = logging.getLogger("gaussbias")
Kind = TypeVar("Kind", bound=pl.Callback)


class RowCallback(pl.Callback):
    """Adds `values` to the row of a measurement, set by the end of the validation epoch on every rank."""

    values: dict[str, float]


def images_per_step(trainer: pl.Trainer) -> int:
    """Images that all devices see in a step.

    Raises:
        UserError: If the training batches do not say how large they are.
    """
    data = datamodule_of(trainer)
    if isinstance(data, ImageDataModule):
        return data.batch_size
    loader: Any = trainer.train_dataloader
    sizes = (getattr(part, "batch_size", None) for part in (loader, getattr(loader, "batch_sampler", None)))
    size = next((size for size in sizes if isinstance(size, int)), None)
    if size is None:
        raise UserError(
            "expected a training DataLoader with a batch size, which the axis of images seen (kimg) takes, got "
            f"{type(loader).__name__}; give a DataLoader with batch_size, or an ImageDataModule"
        )
    return size * trainer.world_size * trainer.accumulate_grad_batches


def progress(trainer: pl.Trainer) -> dict[str, float]:
    """How far training is: `kimg`, thousands of images seen, and `epoch`, passes over the training images."""
    images = trainer.global_step * images_per_step(trainer)
    data = datamodule_of(trainer)
    if isinstance(data, ImageDataModule):
        return {"kimg": images / 1000, "epoch": images / len(data.images)}
    loader: Any = trainer.train_dataloader
    try:
        count = len(loader.dataset)
    except TypeError:  # of an iterable data set
        return {"kimg": images / 1000}
    return {"kimg": images / 1000, "epoch": images / count}


def log_row(trainer: pl.Trainer, values: Mapping[str, float]) -> None:
    """Give one row, with `kimg` and `epoch`, to every logger."""
    row = progress(trainer) | dict(values)
    for logger in trainer.loggers:
        logger.log_metrics(row, step=trainer.global_step)


def callbacks_of(trainer: pl.Trainer, kind: type[Kind]) -> list[Kind]:
    """The callbacks of a trainer that are of a kind."""
    return [c for c in callbacks_in(trainer) if isinstance(c, kind)]


def root_device(trainer: pl.Trainer) -> torch.device:
    """The device that this rank computes on."""
    return trainer.strategy.root_device
