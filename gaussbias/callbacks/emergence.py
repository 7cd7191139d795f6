"""When principal components are learnt."""

from __future__ import annotations

import math

import lightning.pytorch as pl

from gaussbias import catalogue
from gaussbias.callbacks.base import RowCallback, progress
from gaussbias.callbacks.measuring import last_measured
from gaussbias.catalogue import SE
from gaussbias.history import measurement_files, read_measurement
from gaussbias.history.crossings import emergence
from gaussbias.moments import Eigenmoments


class EmergenceCallback(RowCallback):
    """Adds when the gain of each principal component came half of its way, to the row of a measurement.

    A component is logged at a noise level once its gain has come half of the way from the first measurement's to
    `lam / (lam + sigma^2)`, linear in log kimg between two measurements; one that begins within a factor of two of
    that, or within ten standard errors, is left out. It comes after the measuring callbacks. A run that goes on reads
    what was measured before from the measurements in the trainer's `default_root_dir`.

    Args:
        moments: Of the training images.
        sigmas: Noise levels that are measured.
    """

    entries = (catalogue.EMERGENCE,)

    def __init__(self, moments: Eigenmoments, sigmas: list[float]) -> None:
        self.values: dict[str, float] = {}
        self.targets: dict[str, tuple[str, float]] = {}
        for place in catalogue.component_places(len(moments.eigenvalues)):
            lam = float(moments.eigenvalues[place - 1])
            gain, emerged = (catalogue.numbered(entry, place) for entry in (catalogue.GAIN, catalogue.EMERGENCE))
            for sigma in sigmas:
                end = catalogue.EMERGENCE.end(sigma)
                self.targets[gain + end] = emerged + end, lam / (lam + sigma**2)
        self.gains: dict[float, dict[str, float]] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take up what a run that goes on has measured."""
        now = progress(trainer)["kimg"]
        if now > 0 and not self.gains:
            for file in measurement_files(trainer.default_root_dir, now):
                measured = read_measurement(file, ())
                self._keep(measured.kimg, measured.values)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the measurement, which is the same on all ranks."""
        if trainer.sanity_checking:
            return
        now = progress(trainer)["kimg"]
        self.gains = {kimg: gains for kimg, gains in self.gains.items() if kimg < now - 1e-6}
        row: dict[str, float] = {}
        for measured in {id(measured): measured for measured in last_measured(trainer).values()}.values():
            row |= measured.row
        self._keep(now, row)
        self.values = {}
        times = sorted(self.gains)
        if len(times) < 2 or times[0] > 0:
            return
        for gain, (name, target) in self.targets.items():
            known = [self.gains[time].get(gain) for time in times]
            curve = [(time, value) for time, value in zip(times, known, strict=True) if value is not None]
            if len(curve) < 2 or curve[0][0] > 0:
                continue
            error = self.gains[curve[0][0]].get(gain + SE, math.nan)
            passed = emergence([t for t, _ in curve[1:]], [g for _, g in curve[1:]], curve[0][1], target, error)
            if passed is not None and passed.kind == "at":
                self.values[name] = passed.time

    def _keep(self, kimg: float, values: dict[str, float]) -> None:
        names = [name for gain in self.targets for name in (gain, gain + SE)]
        self.gains[kimg] = {name: values[name] for name in names if name in values}
