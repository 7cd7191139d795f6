"""Early stopping by what is measured: at the Gaussian, at a sign of memorisation, or at the first copies."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import lightning.pytorch as pl

from gaussbias import catalogue
from gaussbias.callbacks.base import RowCallback, progress
from gaussbias.callbacks.measuring import last_measured
from gaussbias.catalogue import RAW, Entry
from gaussbias.history.rules import (
    GAP,
    GAUSSIAN_GAP,
    MEMORIZED,
    NOVELTY,
    Choice,
    Moment,
    choose_before_alarm,
    choose_by_gap,
    choose_by_memorization,
    moment_of,
    read_moments,
)

log = logging.getLogger("gaussbias")

Mode = Literal["mark", "end"]


class RuleCallback(RowCallback, ABC):
    """Looks at each measurement, and ends training when its rule says so, or goes on and only marks its choice.

    `Checkpoints` keeps the weights of its choice as `best_<rule>.ckpt`. It comes after the measuring callbacks. A run
    that goes on reads what it knew from the measurements in the trainer's `default_root_dir`.

    Args:
        mode: `end` the run, or only `mark`.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    entries: ClassVar[tuple[Entry, Entry]]
    """Whether it says that training should end, and when its choice was."""

    def __init__(self, mode: Mode) -> None:
        if mode not in ("mark", "end"):
            raise ValueError(f"Expected `mode` to be mark or end but got {mode}.")
        self.mode = mode
        self.values: dict[str, float] = {}
        self.moments: list[Moment] = []
        self.choice = Choice(None, None)

    @abstractmethod
    def choose(self, moments: Sequence[Moment]) -> Choice:
        """Apply the rule."""

    @property
    def chosen(self) -> float | None:
        """When its choice was, in kimg."""
        return None if self.choice.best is None else self.moments[self.choice.best].kimg

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take up what a run that goes on has measured; one that had ended stays so."""
        now = progress(trainer)["kimg"]
        self.values = {}
        if now > 0 and not self.moments:
            self.moments = read_moments(Path(trainer.default_root_dir), self.key, now)
            self.choice = self.choose(self.moments)
            self._end(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the measurement, which is the same on all ranks."""
        if trainer.sanity_checking or trainer.global_step == 0:
            return
        measured = last_measured(trainer)
        name = next((name for name in (self.key, RAW + self.key) if name in measured), None)
        if name is None:
            raise ValueError(f"Expected {self.key} to be measured, which this rule looks at, but it was not.")
        now = progress(trainer)["kimg"]
        moment = moment_of(measured[name].measurement(), self.key)
        if moment is None:  # it is not finite
            return
        self.moments = [*(earlier for earlier in self.moments if earlier.kimg < now - 1e-6), moment]
        before = self.choice.stop
        self.choice = self.choose(self.moments)
        would_stop, when = self.entries
        self.values = {would_stop.name: float(self.choice.stop is not None)}
        chosen = self.chosen
        if chosen is not None:
            self.values[when.name] = chosen
        if before is None and self.choice.stop is not None and trainer.is_global_zero:
            kept = "nothing" if chosen is None else f"the weights at {chosen:g} kimg, checkpoints/best_{self.name}.ckpt"
            does = "ends the run" if self.mode == "end" else "would end the run here"
            log.info("%s %s at %g kimg, and keeps %s", self.name, does, now, kept)
        self._end(trainer)

    def _end(self, trainer: pl.Trainer) -> None:
        if self.mode == "end" and self.choice.stop is not None:
            trainer.should_stop = True


class GaussianGapStopping(RuleCallback):
    """Keeps the weights that are nearest to the Gaussian denoiser on held-out images.

    It looks at `gaussian/rmse/heldout`, and says that training should end when `patience` measurements after its
    minimum lie above it by more than `errors` standard errors of the (paired) difference.

    Args:
        mode: `end` the run, or only `mark`.
        patience: Measurements that must lie above the minimum.
        errors: By how many standard errors.
    """

    name = "gaussian_gap"
    key = GAUSSIAN_GAP
    entries = (catalogue.GAUSSIAN_GAP_STOP, catalogue.GAUSSIAN_GAP_KIMG)

    def __init__(self, mode: Mode = "end", patience: int = 3, errors: float = 2.0) -> None:
        super().__init__(mode)
        if patience < 1 or errors < 0:
            raise ValueError(
                f"Expected a patience of at least 1 and errors of at least 0 but got {patience}, {errors}."
            )
        self.patience, self.errors = patience, errors

    def choose(self, moments: Sequence[Moment]) -> Choice:
        """Apply the rule."""
        return choose_by_gap(moments, self.patience, self.errors)


class MemorizationStopping(RuleCallback):
    """Keeps the last weights whose samples are not memorised.

    It says that training should end when `generalization/memorized_fraction_low`, the lower end of the memorised
    fraction's 95 % interval, is above a threshold.

    Args:
        mode: `end` the run, or only `mark`.
        threshold: A fraction.
    """

    name = "memorization"
    key = MEMORIZED
    entries = (catalogue.MEMORIZATION_STOP, catalogue.MEMORIZATION_KIMG)

    def __init__(self, mode: Mode = "end", threshold: float = 0.05) -> None:
        super().__init__(mode)
        if not 0 <= threshold < 1:
            raise ValueError(f"Expected `threshold` to be in 0..1 but got {threshold}.")
        self.threshold = threshold

    def choose(self, moments: Sequence[Moment]) -> Choice:
        """Apply the rule."""
        return choose_by_memorization(moments, self.threshold)


class AlarmStopping(RuleCallback):
    """Keeps the last weights before a sign of memorisation is beyond doubt.

    Args:
        mode: `end` the run, or only `mark`.
        threshold: Standard errors by which the sign has to be above what a network has that copies nothing, at two
            measurements in a row.
    """

    def __init__(self, mode: Mode = "end", threshold: float = 3.0) -> None:
        super().__init__(mode)
        if not threshold > 0:
            raise ValueError(f"Expected `threshold` to be above 0 but got {threshold}.")
        self.threshold = threshold

    def choose(self, moments: Sequence[Moment]) -> Choice:
        """Apply the rule."""
        return choose_before_alarm(moments, self.threshold)


class GapStopping(AlarmStopping):
    """Keeps the last weights before the gap opens that D_G does not explain.

    It looks at `gap/z`, in standard errors at that of the intermediate noise levels where it is largest, and says that
    training should end when it is above a threshold at two measurements in a row.
    """

    name = "gap"
    key = GAP
    entries = (catalogue.GAP_STOP, catalogue.GAP_KIMG)

    def __init__(self, mode: Mode = "end", threshold: float = 4.0) -> None:
        super().__init__(mode, threshold)


class NoveltyStopping(AlarmStopping):
    """Keeps the last weights before samples are nearer to training images than new images are.

    It looks at `novelty/train_share_z`, and says that training should end when it is above a threshold at two
    measurements in a row. With few training images D_G's own samples are nearer to them: the rule then rings early.
    """

    name = "novelty"
    key = NOVELTY
    entries = (catalogue.NOVELTY_STOP, catalogue.NOVELTY_KIMG)
