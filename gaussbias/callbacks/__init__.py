"""Callbacks that measure a denoiser while it trains, and those that say when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.callbacks.checkpoints import Checkpoints, Streamed
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.frechet import FrechetCallback, load_features
from gaussbias.callbacks.gaussian import GaussianCallback
from gaussbias.callbacks.generalization import GeneralizationCallback
from gaussbias.callbacks.ladder import LadderCallback
from gaussbias.callbacks.linear import LinearCallback, SurrogateLog, TeacherCallback
from gaussbias.callbacks.linearity import LinearityCallback
from gaussbias.callbacks.memory import OutOfMemory
from gaussbias.callbacks.pictures import PicturesCallback
from gaussbias.callbacks.progress import ProgressBar
from gaussbias.callbacks.rules import GaussianGapStopping, MemorizationStopping, RuleCallback
from gaussbias.callbacks.samples import SamplesCallback
from gaussbias.callbacks.schedule import MeasurementSchedule, even_steps, measurement_steps, total_steps
from gaussbias.callbacks.spectrum import SpectrumCallback
from gaussbias.callbacks.stopping import Stopping
from gaussbias.callbacks.training import TrainingLog
from gaussbias.config import Config
from gaussbias.data import ImageDataModule, ProbeBank
from gaussbias.denoisers import LinearDenoiser
from gaussbias.metrics.frechet import Features
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.modules import EDMModule, GaussianModule, LinearModule, length
from gaussbias.moments import Eigenmoments

__all__ = [
    "EMA",
    "Baselines",
    "Checkpoints",
    "FrechetCallback",
    "GaussianCallback",
    "GaussianGapStopping",
    "GeneralizationCallback",
    "LadderCallback",
    "LinearCallback",
    "LinearityCallback",
    "MeasurementSchedule",
    "MemorizationStopping",
    "OutOfMemory",
    "PicturesCallback",
    "ProbeCallback",
    "ProgressBar",
    "SamplesCallback",
    "SpectrumCallback",
    "Stopping",
    "Streamed",
    "SurrogateLog",
    "TeacherCallback",
    "TrainingLog",
    "build",
    "even_steps",
    "load_features",
    "measurements",
    "of_draws",
    "total_steps",
]


def measurements(
    bank: ProbeBank,
    images: Tensor,
    heldout: Tensor,
    moments: Eigenmoments | None = None,
    features: Features | None = None,
    weights: Sequence[str] = ("ema",),
    device: torch.device | None = None,
) -> list[ProbeCallback]:
    """All measuring callbacks: linearity, distances, the error ladder, generalisation, and samples if the bank has any.

    Args:
        bank: The probe bank whose loaders are the validation loaders.
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        heldout: Held-out images of the same kind.
        moments: Of the training images, with their mirrored copies if the bank flips; estimated if not given.
        features: A network of your own for `samples/fid`.
        weights: `ema`, those that validation runs with, or `raw`, or both; `raw` needs an `EMA`.
        device: Where moments are estimated, if not where the images are.
    """
    baselines = Baselines(bank, images, moments, device=device)
    nearest = NearestImages(images, bank.flip)
    found: list[ProbeCallback] = []
    for kind in weights:
        found += of_draws(baselines, kind, leads=kind == weights[0])
        if bank.samples:
            found += [
                GeneralizationCallback(baselines, nearest, heldout, kind, leads=kind == weights[0]),
                SamplesCallback(baselines, kind),
                FrechetCallback(baselines, heldout, weights=kind),
            ]
        if bank.samples and features is not None:
            found.append(FrechetCallback(baselines, heldout, features, "samples/fid", kind))
    return [*found, PicturesCallback(baselines, nearest, weights[0])] if bank.samples else found


def of_draws(baselines: Baselines, weights: str = "ema", leads: bool = True) -> list[ProbeCallback]:
    """The callbacks that measure the probe bank's draws, not samples; of several weights' those of one lead."""
    return [
        LinearityCallback(baselines, weights),
        GaussianCallback(baselines, weights),
        LadderCallback(baselines, weights, leads),
    ]


def build(
    config: Config,
    data: ImageDataModule,
    moments: Eigenmoments,
    folder: Path,
    module: EDMModule | LinearModule | GaussianModule,
    features: Features | None = None,
    surrogate: LinearDenoiser | None = None,
    device: torch.device | None = None,
) -> list[pl.Callback]:
    """The callbacks of a run, in the order in which they have to come; moments are estimated on `device`."""
    train, probes, kimg = config.train, config.probes, length(config, module)
    measured = measurement_steps(kimg, probes.first_kimg, probes.every_kimg, train.batch_size)
    saved = even_steps(kimg, train.checkpoint_every_kimg, train.batch_size)
    logged = even_steps(kimg, train.log_every_kimg, train.batch_size) | measured | saved
    before: list[pl.Callback] = []
    if isinstance(module, LinearModule):
        measured = {max(measured)}  # until then it is not whole
        before = [SurrogateLog(), *([TrainingLog(logged)] if module.method == "gradient" else [])]
    elif isinstance(module, GaussianModule):
        measured = {step for step in measured if step * train.batch_size >= 2}  # images that have a covariance
    else:
        before = [TrainingLog(logged)]
        if train.ema_halflife_kimg is not None:  # first: it swaps the average in before anything is measured
            before = [EMA(train.batch_size, train.ema_halflife_kimg, train.ema_rampup_ratio), *before]
    weights = probes.weights if isinstance(module, EDMModule) else ["ema"]
    found = measurements(data.bank, data.images, data.heldout, moments, features, weights, device)
    baselines = found[0].baselines
    if isinstance(module, LinearModule):
        found.append(TeacherCallback(baselines, module.teacher))
    if isinstance(module, GaussianModule):
        found.append(SpectrumCallback(baselines))
    if surrogate is not None:
        found += [LinearCallback(baselines, surrogate, kind) for kind in weights]
    return [
        *before,
        *found,
        *_rules(config, module),
        MeasurementSchedule(measured),
        ProgressBar(),
        Checkpoints(folder / "checkpoints", saved, measured, insist=config.run.write_errors == "stop"),
    ]


def _rules(config: Config, module: pl.LightningModule) -> list[RuleCallback]:
    stop, rules = config.stop, list[RuleCallback]()
    if isinstance(module, EDMModule) and stop.gaussian_gap is not None:
        rules.append(GaussianGapStopping(stop.gaussian_gap, stop.patience, stop.errors))
    if isinstance(module, EDMModule) and stop.memorization is not None:
        rules.append(MemorizationStopping(stop.memorization, stop.memorized_fraction))
    return rules
