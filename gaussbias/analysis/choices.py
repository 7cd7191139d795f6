"""What early stopping would have chosen in runs that went to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gaussbias import catalogue
from gaussbias.analysis.table import Record
from gaussbias.history.rules import (
    GAP,
    GAUSSIAN_GAP,
    MEMORIZED,
    NOVELTY,
    Moment,
    choose_before_alarm,
    choose_by_gap,
    choose_by_memorization,
    read_moments,
)

LOSS = catalogue.MSE.on("heldout")


@dataclass(frozen=True)
class Chosen:
    """A choice of a rule in a run.

    Attributes:
        rule: Which one.
        row: The measurement that it keeps.
        ended: When it would have ended the run, in kimg; `None` if it would have gone on to the end.
    """

    rule: str
    row: dict[str, float]
    ended: float | None


def choices(run: Record) -> list[Chosen]:
    """What each rule would have kept in a run, with the patience, errors and threshold of its configuration.

    Rules without a choice are left out; so are those whose value was not measured.
    """
    picks = []
    for rule, choose in RULES.items():
        chosen = choose(run)
        if chosen is not None:
            kimg, ended = chosen
            row = min(run.rows, key=lambda row: abs(row["kimg"] - kimg))
            picks.append(Chosen(rule, row, ended))
    return picks


def _end(run: Record) -> tuple[float, float | None]:
    return run.rows[-1]["kimg"], None


def _least_loss(run: Record) -> tuple[float, float | None] | None:
    times, values = run.curve(LOSS)
    return (times[int(np.argmin(values))], None) if times else None


def _gap(run: Record) -> tuple[float, float | None] | None:
    moments = _moments(run, GAUSSIAN_GAP)
    choice = choose_by_gap(moments, int(run.keys.get("stop.patience", 3)), float(run.keys.get("stop.errors", 2)))
    return _times(moments, choice.best, choice.stop)


def _memorization(run: Record) -> tuple[float, float | None] | None:
    moments = _moments(run, MEMORIZED)
    choice = choose_by_memorization(moments, float(run.keys.get("stop.memorized_fraction", 0.05)))
    return _times(moments, choice.best, choice.stop)


def _alarm(key: str, threshold: str, default: float) -> Callable[[Record], tuple[float, float | None] | None]:
    def choose(run: Record) -> tuple[float, float | None] | None:
        moments = _moments(run, key)
        choice = choose_before_alarm(moments, float(run.keys.get(threshold, default)))
        return _times(moments, choice.best, choice.stop)

    return choose


def _times(moments: list[Moment], best: int | None, stop: int | None) -> tuple[float, float | None] | None:
    return None if best is None else (moments[best].kimg, None if stop is None else moments[stop].kimg)


def _moments(run: Record, key: str) -> list[Moment]:
    """With blocks of draws where the run's folder is there."""
    if run.folder is not None:
        return read_moments(run.folder, key)
    return [Moment(time, value, np.empty(0)) for time, value in zip(*run.curve(key), strict=True)]


RULES: dict[str, Callable[[Record], tuple[float, float | None] | None]] = {
    "end": _end,
    "least held-out loss": _least_loss,
    "gaussian_gap": _gap,
    "memorization": _memorization,
    "gap": _alarm(GAP, "stop.gap_z", 4),
    "novelty": _alarm(NOVELTY, "stop.novelty_z", 3),
}
"""Training to the end; the minimum of the denoising error on held-out images; and those of `stop`."""
