"""Callbacks that measure a denoiser while it trains, and those that say when."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.checkpoints import Checkpoints
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.gaussian import GaussianCallback
from gaussbias.callbacks.generalization import GeneralizationCallback
from gaussbias.callbacks.linearity import LinearityCallback
from gaussbias.callbacks.samples import SamplesCallback
from gaussbias.callbacks.schedule import MeasurementSchedule, even_steps, measurement_steps, total_steps
from gaussbias.callbacks.training import TrainingLog
from gaussbias.config import Config
from gaussbias.data import ImageDataModule
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.moments import Eigenmoments

__all__ = [
    "EMA",
    "Checkpoints",
    "GaussianCallback",
    "GeneralizationCallback",
    "LinearityCallback",
    "MeasurementSchedule",
    "ProbeCallback",
    "SamplesCallback",
    "TrainingLog",
    "build",
    "total_steps",
]


def build(config: Config, data: ImageDataModule, moments: Eigenmoments, folder: Path) -> list[pl.Callback]:
    """The callbacks of a run, in the order in which they have to come."""
    train, probes = config.train, config.probes
    gaussian = GaussianDenoiser(moments)
    measured = measurement_steps(train.kimg, probes.first_kimg, probes.every_kimg, train.batch_size)
    saved = even_steps(train.kimg, train.checkpoint_every_kimg, train.batch_size)
    logged = even_steps(train.kimg, train.log_every_kimg, train.batch_size)
    averaging: list[pl.Callback] = []
    if train.ema_halflife_kimg is not None:
        averaging = [EMA(train.batch_size, train.ema_halflife_kimg, train.ema_rampup_ratio)]
    return [
        *averaging,  # first: it swaps the average in before anything is measured
        TrainingLog(logged | measured | saved),
        LinearityCallback(data.bank, gaussian),
        GaussianCallback(data.bank, gaussian, moments, data.images, data.flip),
        GeneralizationCallback(data.bank, gaussian, data.images, data.heldout, data.flip),
        SamplesCallback(data.bank, gaussian),
        MeasurementSchedule(measured),
        Checkpoints(folder / "checkpoints", saved, measured),
    ]
