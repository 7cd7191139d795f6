"""Callbacks that measure a denoiser while it trains, and those that say when."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.checkpoints import Checkpoints
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.frechet import FrechetCallback, load_features
from gaussbias.callbacks.gaussian import GaussianCallback
from gaussbias.callbacks.generalization import GeneralizationCallback
from gaussbias.callbacks.linearity import LinearityCallback
from gaussbias.callbacks.pictures import PicturesCallback
from gaussbias.callbacks.progress import ProgressBar
from gaussbias.callbacks.samples import SamplesCallback
from gaussbias.callbacks.schedule import MeasurementSchedule, even_steps, measurement_steps, total_steps
from gaussbias.callbacks.training import TrainingLog
from gaussbias.config import Config
from gaussbias.data import ImageDataModule, ProbeBank
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics.frechet import Features
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import Eigenmoments, estimate

__all__ = [
    "EMA",
    "Checkpoints",
    "FrechetCallback",
    "GaussianCallback",
    "GeneralizationCallback",
    "LinearityCallback",
    "MeasurementSchedule",
    "PicturesCallback",
    "ProbeCallback",
    "ProgressBar",
    "SamplesCallback",
    "TrainingLog",
    "build",
    "load_features",
    "measurements",
    "total_steps",
]


def measurements(
    bank: ProbeBank,
    images: Tensor,
    heldout: Tensor,
    moments: Eigenmoments | None = None,
    features: Features | None = None,
) -> list[ProbeCallback]:
    """All measuring callbacks: linearity, distances to D_G and D_M, generalisation, and samples if the bank has any.

    Args:
        bank: The probe bank whose loaders are the validation loaders.
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        heldout: Held-out images of the same kind.
        moments: Of the training images, with their mirrored copies if the bank flips; estimated if not given.
        features: A network of your own for `samples/fid`.
    """
    moments = estimate(images, bank.flip) if moments is None else moments
    gaussian, empirical = GaussianDenoiser(moments), EmpiricalDenoiser(images, bank.flip)
    of_draws = [LinearityCallback(bank, gaussian), GaussianCallback(bank, gaussian, moments, empirical)]
    if not bank.samples:
        return of_draws
    nearest = NearestImages(images, bank.flip)
    by_features: list[ProbeCallback] = []
    if features is not None:
        by_features = [FrechetCallback(bank, gaussian, images, heldout, features, "samples/fid")]
    return [
        *of_draws,
        GeneralizationCallback(bank, gaussian, nearest, heldout),
        SamplesCallback(bank, gaussian),
        FrechetCallback(bank, gaussian, images, heldout),
        *by_features,
        PicturesCallback(bank, gaussian, empirical, nearest),
    ]


def build(
    config: Config,
    data: ImageDataModule,
    moments: Eigenmoments,
    folder: Path,
    features: Features | None = None,
) -> list[pl.Callback]:
    """The callbacks of a run, in the order in which they have to come."""
    train, probes = config.train, config.probes
    measured = measurement_steps(train.kimg, probes.first_kimg, probes.every_kimg, train.batch_size)
    saved = even_steps(train.kimg, train.checkpoint_every_kimg, train.batch_size)
    logged = even_steps(train.kimg, train.log_every_kimg, train.batch_size)
    averaging: list[pl.Callback] = []
    if train.ema_halflife_kimg is not None:
        averaging = [EMA(train.batch_size, train.ema_halflife_kimg, train.ema_rampup_ratio)]
    return [
        *averaging,  # first: it swaps the average in before anything is measured
        TrainingLog(logged | measured | saved),
        *measurements(data.bank, data.images, data.heldout, moments, features),
        MeasurementSchedule(measured),
        ProgressBar(),
        Checkpoints(folder / "checkpoints", saved, measured),
    ]
