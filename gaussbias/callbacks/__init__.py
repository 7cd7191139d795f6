"""Callbacks that measure a denoiser while it trains, and those that say when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor

from gaussbias.callbacks.alone import (
    FrechetCallback,
    GaussianCallback,
    GeneralizationCallback,
    LadderCallback,
    LinearCallback,
    LinearityCallback,
    PicturesCallback,
    SamplesCallback,
)
from gaussbias.callbacks.averages import KeptAverages
from gaussbias.callbacks.checkpoints import Checkpoints, Streamed
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.emergence import EmergenceCallback
from gaussbias.callbacks.linear import SurrogateLog
from gaussbias.callbacks.measuring import ProbeCallback
from gaussbias.callbacks.memory import OutOfMemory
from gaussbias.callbacks.progress import ProgressBar
from gaussbias.callbacks.rules import (
    GapStopping,
    GaussianGapStopping,
    MemorizationStopping,
    NoveltyStopping,
    RuleCallback,
)
from gaussbias.callbacks.schedule import MeasurementSchedule, even_steps, measurement_steps, total_steps
from gaussbias.callbacks.spectrum import SpectrumCallback
from gaussbias.callbacks.stopping import Stopping
from gaussbias.callbacks.training import TrainingLog
from gaussbias.config import Config
from gaussbias.metrics.frechet import Features
from gaussbias.modules import EDMModule, GaussianModule, ImageDataModule, LinearModule, length
from gaussbias.moments import Eigenmoments
from gaussbias.probes import Make, PicturesProbe, Probe, ProbeBank, References, TeacherProbe
from gaussbias.probes import build as build_probes
from gaussbias.probes.compared import Others, compared
from gaussbias.probes.references import LIKENED
from gaussbias.system.run_folder import RunFolder

Baselines = References
"""The name of `gaussbias.probes.References` before there were more of them than two."""

__all__ = [
    "EMA",
    "Baselines",
    "Checkpoints",
    "EmergenceCallback",
    "FrechetCallback",
    "Further",
    "GapStopping",
    "GaussianCallback",
    "GaussianGapStopping",
    "GeneralizationCallback",
    "KeptAverages",
    "LadderCallback",
    "LinearCallback",
    "LinearityCallback",
    "MeasurementSchedule",
    "MemorizationStopping",
    "NoveltyStopping",
    "OutOfMemory",
    "PicturesCallback",
    "ProbeCallback",
    "ProgressBar",
    "SamplesCallback",
    "SpectrumCallback",
    "Stopping",
    "Streamed",
    "SurrogateLog",
    "TrainingLog",
    "build",
    "even_steps",
    "measurements",
    "total_steps",
]

SNAPSHOTS = 32
"""How often averages of weights are written in all, unless it is said."""
LABELS: dict[type, str] = {LinearModule: "surrogate $D_L$", GaussianModule: "this Gaussian"}
"""What pictures call the denoisers of modules; others are networks."""


@dataclass(frozen=True)
class Further:
    """What is measured beside what always is.

    Attributes:
        features: A network of your own for `samples/fid`.
        probes: Makers of further probes.
        others: Makes further denoisers to compare with, theories, by name, of draws, training images and their moments.
        samples: From how many latents they make samples as well.
        guidance: Weights of guidance whose samples are looked at as well.
    """

    features: Features | None = None
    probes: Iterable[Make] = ()
    others: Others | None = None
    samples: int = LIKENED
    guidance: Sequence[float] = ()


def measurements(
    bank: ProbeBank,
    images: Tensor,
    heldout: Tensor,
    moments: Eigenmoments | None = None,
    features: Features | None = None,
    weights: Sequence[str] = ("ema",),
    device: torch.device | None = None,
) -> list[pl.Callback]:
    """What measures all: linearity, distances, the error ladder, and samples if the bank has latents.

    Args:
        bank: The probe bank whose loaders are the validation loaders.
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        heldout: Held-out images of the same kind.
        moments: Of the training images, with their mirrored copies if the bank flips; estimated if not given.
        features: A network of your own for `samples/fid`.
        weights: `ema`, those that validation runs with, or `raw`, or both; `raw` needs an `EMA`.
        device: Where moments are estimated, if not where the images are.
    """
    references = References(bank, images, moments, device=device, heldout=heldout)
    return [ProbeCallback(references, _probes(references, weights, Further(features)))]


def _probes(
    references: References, weights: Sequence[str], further: Further, label: str = "network"
) -> dict[str, list[Probe]]:
    guidance = further.guidance if references.whole is not None else ()
    made = further.probes, further.features, True, further.samples, guidance
    probes = {kind: build_probes(references, *made) for kind in weights}
    if references.bank.samples:
        probes[weights[0]].append(PicturesProbe(references, label, further.samples > 0, guidance))
    return probes


def build(
    config: Config,
    data: ImageDataModule,
    moments: Eigenmoments,
    folder: Path,
    module: EDMModule | LinearModule | GaussianModule,
    further: Further,
    device: torch.device | None = None,
) -> list[pl.Callback]:
    """The callbacks of a run, in the order in which they have to come; moments are estimated on `device`."""
    train, probes, kimg = config.train, config.probes, length(config, module)
    measured = measurement_steps(kimg, probes.first_kimg, probes.every_kimg, train.batch_size, probes.growth)
    saved = even_steps(kimg, train.checkpoint_every_kimg, train.batch_size)
    logged = even_steps(kimg, train.log_every_kimg, train.batch_size) | measured | saved
    before: list[pl.Callback] = []
    after: list[pl.Callback] = []
    if isinstance(module, LinearModule):
        measured = {max(measured)}  # until then it is not whole
        before = [SurrogateLog(), *([TrainingLog(logged)] if module.method == "gradient" else [])]
    elif isinstance(module, GaussianModule):
        measured = {step for step in measured if step * train.batch_size >= 2}  # images that have a covariance
        after = [SpectrumCallback(data.bank.sigmas)]
    else:
        before = [TrainingLog(logged)]
        if train.ema_halflife_kimg is not None:  # first: it swaps the average in before anything is measured
            before = [EMA(train.batch_size, train.ema_halflife_kimg, train.ema_rampup_ratio), *before]
        if train.ema_lengths:
            every = kimg / SNAPSHOTS if train.ema_every_kimg is None else train.ema_every_kimg
            places = even_steps(kimg, every, train.batch_size)
            before.append(KeptAverages(train.ema_lengths, RunFolder(folder).averages, places, train.batch_size))
        if "ema" in probes.weights and "train" in data.bank.names and not data.classes:
            after = [EmergenceCallback(moments, data.bank.sigmas)]
    weights = probes.weights if isinstance(module, EDMModule) else ["ema"]

    def make(references: References) -> dict[str, list[Probe]]:
        made = _probes(references, weights, further, LABELS.get(type(module), "network"))
        if isinstance(module, LinearModule):
            made[weights[0]].append(TeacherProbe(references, module.teacher))
        return made

    known = compared(data.set, moments, further.others, RunFolder(folder).theories, device)
    instruments = known.instruments(make, probes.per_class)
    return [
        *before,
        ProbeCallback(instruments.references, instruments.probes, config.run.pictures, instruments),
        *after,
        *_rules(config, module),
        MeasurementSchedule(measured),
        ProgressBar(),
        Checkpoints(
            RunFolder(folder).checkpoints,
            saved,
            measured,
            insist=config.run.write_errors == "stop",
            kept=None if train.checkpoints_kept == "all" else train.checkpoints_kept,
        ),
    ]


def _rules(config: Config, module: pl.LightningModule) -> list[RuleCallback]:
    stop, rules = config.stop, list[RuleCallback]()
    if not isinstance(module, EDMModule):
        return rules
    if stop.gaussian_gap is not None:
        rules.append(GaussianGapStopping(stop.gaussian_gap, stop.patience, stop.errors))
    if stop.memorization is not None:
        rules.append(MemorizationStopping(stop.memorization, stop.memorized_fraction))
    if stop.gap is not None:
        rules.append(GapStopping(stop.gap, stop.gap_z))
    if stop.novelty is not None:
        rules.append(NoveltyStopping(stop.novelty, stop.novelty_z))
    return rules
