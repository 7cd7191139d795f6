"""Rules for early stopping, as functions of a run's measurements: the same ones while it trains and afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaussbias.catalogue import GAP_Z, GAUSSIAN_RMSE, MEMORIZED_LOW, RAW, TRAIN_SHARE_Z
from gaussbias.history.measurements import Measurement, measurement_files, read_measurement, standard_error

GAUSSIAN_GAP = GAUSSIAN_RMSE.on("heldout")
"""What `choose_by_gap` looks at."""
MEMORIZED = MEMORIZED_LOW.name
"""What `choose_by_memorization` looks at."""
GAP, NOVELTY = GAP_Z.name, TRAIN_SHARE_Z.name
"""What `choose_before_alarm` looks at: the gap that D_G does not explain, and the share of samples nearest to training
images, in standard errors."""


@dataclass(frozen=True)
class Moment:
    """What a rule knows of a measurement.

    Attributes:
        kimg: When.
        value: What the rule looks at.
        blocks: What the blocks of draws contribute to it (B,), the same draws each time; empty if it has none.
    """

    kimg: float
    value: float
    blocks: np.ndarray


@dataclass(frozen=True)
class Choice:
    """What a rule makes of the measurements so far.

    Attributes:
        best: The place of the measurement whose weights it keeps; `None` if there is none yet.
        stop: The place of the one at which it would end the run; `None` if it goes on.
    """

    best: int | None
    stop: int | None


def choose_by_gap(moments: Sequence[Moment], patience: int, errors: float) -> Choice:
    """The measurement that is nearest to the Gaussian denoiser on held-out images.

    It is surely past when `patience` measurements after it lie above it by more than `errors` standard errors of their
    difference, which is paired: both are on the same draws.
    """
    best, above = None, 0
    for place, moment in enumerate(moments):
        if best is None or moment.value < moments[best].value:
            best, above = place, 0
        elif moment.value - moments[best].value > errors * _paired_error(moment, moments[best]):
            above += 1
        if above == patience:
            return Choice(best, place)
    return Choice(best, None)


def choose_by_memorization(moments: Sequence[Moment], threshold: float) -> Choice:
    """The last measurement before the lower end of the memorised fraction's interval passes a threshold."""
    for place, moment in enumerate(moments):
        if moment.value > threshold:
            return Choice(place - 1 if place else None, place)
    return Choice(len(moments) - 1 if moments else None, None)


def choose_before_alarm(moments: Sequence[Moment], threshold: float) -> Choice:
    """The last measurement before a value is above a threshold at two measurements in a row.

    The run would end at the second of them, which confirms the first.
    """
    for place, moment in enumerate(moments):
        if place and moment.value > threshold and moments[place - 1].value > threshold:
            return Choice(place - 2 if place > 1 else None, place)
    if not moments:
        return Choice(None, None)
    quiet = len(moments) - 1 - (moments[-1].value > threshold)
    return Choice(quiet if quiet >= 0 else None, None)


def moment_of(measurement: Measurement, key: str) -> Moment | None:
    """What a rule that looks at a logged value knows of a measurement; of raw weights if it has no others.

    `None` without that value, and before training: nobody would keep those weights.
    """
    name = key if key in measurement.values else RAW + key
    if not math.isfinite(measurement.values.get(name, math.nan)) or not measurement.kimg > 0:
        return None
    return Moment(measurement.kimg, measurement.values[name], measurement.blocks.get(name, np.empty(0)))


def read_moments(run: Path, key: str, until: float = np.inf) -> list[Moment]:
    """What a rule knows of the measurements of a run up to a time, in kimg.

    Raises:
        UserError: If a file of a measurement cannot be read.
    """
    files = measurement_files(run, until)
    moments = [moment_of(read_measurement(file, (key, RAW + key)), key) for file in files]
    return [moment for moment in moments if moment is not None]


def _paired_error(moment: Moment, other: Moment) -> float:
    if len(moment.blocks) != len(other.blocks) or len(moment.blocks) < 2:
        return 0.0
    return standard_error(moment.blocks - other.blocks)
