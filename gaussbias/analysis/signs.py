"""How early signs of memorisation are: when each departs from its null beyond doubt, and when the first copies come."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gaussbias import catalogue
from gaussbias.analysis.table import Record
from gaussbias.analysis.values import Value, combine
from gaussbias.catalogue import ENTRIES, GAP_MSE, GAP_Z, SE, Entry
from gaussbias.history.crossings import Crossing
from gaussbias.noise import sigma_of

DOUBT = 3.0
"""Standard errors by which a sign is above its null at two measurements in a row, if it is beyond doubt."""
LEVELS = (0.1, 2.0)
"""Noise levels that are looked at one by one: where networks that memorise differ from those that do not."""


@dataclass(frozen=True)
class Sign:
    """A logged value that a network which copies nothing has at a known height.

    Attributes:
        entry: What it is.
        sigma: The noise level; `None` is the mean over the band, or a value without levels.
    """

    entry: Entry
    sigma: float | None = None

    @property
    def key(self) -> str:
        """The logged name."""
        return self.entry.name if self.sigma is None else self.entry.at(self.sigma)

    @property
    def evidence(self) -> str:
        """The logged name of its standard error; its own if it is in standard errors."""
        return self.key if self.entry is GAP_Z else self.key + SE

    @property
    def title(self) -> str:
        """In words."""
        if self.entry is GAP_Z:
            return f"{GAP_MSE.name}, largest level"
        if not self.entry.levels:
            return self.entry.name
        return f"{self.entry.name}, {'band' if self.sigma is None else f'sigma {self.sigma:.3g}'}"

    def z(self, row: dict[str, float]) -> float:
        """How far it is above its null in a measurement, in standard errors; NaN if that is not known."""
        if self.entry is GAP_Z:
            return row.get(self.key, math.nan)  # it is in standard errors itself
        null, error = self.entry.null, row.get(self.evidence, math.nan)
        height = row.get(null, math.nan) if isinstance(null, str) else float(null or 0)
        return (row.get(self.key, math.nan) - height) / error if error > 0 else math.nan


def signs_of(runs: Sequence[Record]) -> list[Sign]:
    """The signs that some runs have errors of, means over levels before single ones, those in `LEVELS`."""
    keys = {key for run in runs for key in run.rows[-1]}
    found = []
    for entry in ENTRIES.values():
        if entry.null is None or Sign(entry).evidence not in keys:
            continue
        found.append(Sign(entry))
        if entry is GAP_Z:  # its levels are those of the gap
            continue
        ends = [key.removeprefix(entry.name + "/") for key in keys if key.startswith(entry.name + "/sigma_")]
        levels = sorted({sigma_of(end) for end in ends if not end.endswith(SE)}, reverse=True)
        found += [Sign(entry, sigma) for sigma in levels if LEVELS[0] <= sigma <= LEVELS[1]]
    return found


def departure(run: Record, sign: Sign) -> Crossing | None:
    """The first of two measurements in a row at which a sign is beyond doubt; `None` without errors of it."""
    rows = [row for row in run.rows if row["kimg"] > 0]
    heights = [sign.z(row) for row in rows]
    if not any(map(math.isfinite, heights)):
        return None
    above = [z > DOUBT for z in heights]
    return _first([row["kimg"] for row in rows], [a and b for a, b in zip(above, [*above[1:], False], strict=True)])


def first_copies(run: Record) -> Crossing | None:
    """The first measurement with memorised samples: the lower end of the interval of their share is above 0."""
    times, low = run.curve(catalogue.MEMORIZED_LOW.name)
    return _first(times, [value > 0 for value in low]) if times else None


def least_error(run: Record) -> Crossing | None:
    """The measurement with the smallest error on held-out images; of a run whose smallest is its last, a bound."""
    times, errors = run.curve(catalogue.MSE.on("heldout"))
    if not times:
        return None
    place = int(np.argmin(errors))
    return _first(times, [here == place and place < len(times) - 1 for here in range(len(times))])


def lead(runs: Sequence[Record], sign: Sign, until: Callable[[Record], Crossing | None] = first_copies) -> Value:
    """The log of the time of an event over that of a sign, over runs that have both; above 0 the sign is earlier.

    The interval covers the scatter of the runs, and that each time lies anywhere between two measurements.
    """
    logs, errors = [], []
    for run in runs:
        seen, event = departure(run, sign), until(run)
        if seen is not None and event is not None and seen.kind == event.kind == "at":
            logs.append(math.log(event.time / seen.time))
            errors.append(math.hypot(resolution(seen), resolution(event)))
    return combine(logs, errors)


def missed(runs: Sequence[Record], sign: Sign) -> tuple[int, int]:
    """In how many runs with copies a sign was not there before or with them, and in how many without it was there."""
    late = alone = 0
    for run in runs:
        seen, copies = departure(run, sign), first_copies(run)
        if seen is None or copies is None:
            continue
        late += copies.kind != "after" and (seen.kind == "after" or seen.time > copies.time)
        alone += copies.kind == "after" and seen.kind != "after"
    return late, alone


def resolution(crossing: Crossing) -> float:
    """The standard deviation of the log of a time that lies evenly between two measurements."""
    if crossing.between is None:
        return math.nan
    before, after = crossing.between
    return math.log(after / before) / math.sqrt(12)


def _first(times: Sequence[float], happened: Sequence[bool]) -> Crossing:
    """The time of the first measurement at which something happened; after the last one if it did not."""
    for place, (time, there) in enumerate(zip(times, happened, strict=True)):
        if there:
            return Crossing(time, "at", (times[place - 1], time) if place else None)
    return Crossing(times[-1], "after")
