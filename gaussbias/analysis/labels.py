"""Whether networks that are told the class of each image memorise sooner than the same ones that are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gaussbias import catalogue
from gaussbias.analysis.crossings import tau_mem
from gaussbias.analysis.signs import resolution
from gaussbias.analysis.studies import Study, error_in, kind_of
from gaussbias.analysis.table import Record
from gaussbias.analysis.values import Value, combine

OF_LABELS = ("data.labels", "model.label_dropout")
"""What such networks differ in."""
PLAIN, ANY = catalogue.MEMORIZED_FRACTION.name, catalogue.MEMORIZED_ANY.name
"""The memorised share without labels, and that with labels which is like it: among images of any class."""

Pair = tuple[Record, Record]
"""A run without labels, and one with them."""


@dataclass(frozen=True)
class Told:
    """Networks of one data set without labels, and those that are told them and are alike in all else.

    Attributes:
        plain: Those without.
        told: Those with labels.
    """

    plain: Study
    told: Study

    @cached_property
    def width(self) -> int:
        """The number of channels that is compared: that of the most pairs, the largest of those."""
        return max(self.told.widths, key=lambda width: (len(self._pairs(width)), width))

    @property
    def sizes(self) -> list[int]:
        """The numbers of images of which there are pairs."""
        return sorted({plain.images for plain, _ in self.pairs()})

    @property
    def measured(self) -> bool:
        """Whether the runs with labels have the share that is compared."""
        return any(ANY in row for _, run in self.pairs() for row in run.rows)

    def pairs(self, images: int | None = None) -> list[Pair]:
        """Runs without and with labels on the same images with the same seeds, up to the last time of both."""
        return [pair for pair in self._compared if images is None or pair[0].images == images]

    @cached_property
    def _compared(self) -> list[Pair]:
        return self._pairs(self.width)

    def _pairs(self, width: int) -> list[Pair]:
        plain = {(run.images, *run.replicate): run for run in self.plain.ended(channels=width)}
        there = [(plain.get((run.images, *run.replicate)), run) for run in self.told.ended(channels=width)]
        return [pair for one, other in there if one is not None and (pair := _together(one, other)) is not None]


def told_apart(there: Sequence[Study]) -> list[Told]:
    """The studies with labels, each with that without which is alike in all else, if there are pairs of runs."""

    def rest(study: Study) -> str:
        return repr(sorted((key, repr(of)) for key, of in kind_of(study.runs[0]).items() if key not in OF_LABELS))

    plain = {rest(study): study for study in there if not _is_told(study)}
    labelled = [(plain.get(rest(study)), study) for study in there if _is_told(study)]
    found = [Told(other, study) for other, study in labelled if other is not None]
    return [each for each in found if each.sizes]


def _is_told(study: Study) -> bool:
    return bool(study.runs[0].keys.get("data.labels"))


def sooner(pairs: Sequence[Pair]) -> tuple[Value, int, int]:
    """How much sooner runs with labels memorise, by the time at which the memorised share passes 0.05.

    With labels it is the share among images of any class: among those of a class the next image after the nearest is
    farther, so that more samples count as memorised. A run that had not memorised by the end of both counts as if it
    had then, and one that had when it was first measured as if it began there, which brings the ratio nearer to 1; a
    pair of which that is so of both runs says nothing. The interval covers the scatter of the pairs, and that each
    time lies anywhere between two measurements.

    Returns:
        The log of the time without labels over that with; above 0 those with labels are sooner. Then in how many of
        these pairs one time is only a bound, and the run with labels is sooner, and in how many that without.
    """
    logs, errors, first, last = [], [], 0, 0
    for plain, told in pairs:
        without, having = tau_mem(plain), tau_mem(told, ANY)
        if without is None or having is None or (without.kind == having.kind != "at"):
            continue
        logs.append(math.log(without.time / having.time))
        errors.append(math.hypot(*(resolution(time) for time in (without, having) if time.kind == "at")))
        if without.kind != "at" or having.kind != "at":
            before = having.kind == "before" or without.kind == "after"
            first, last = first + before, last + (not before)
    return combine(logs, errors), first, last


def more(pairs: Sequence[Pair]) -> Value:
    """The memorised share at the end of both with labels, among images of any class, less that without."""
    values, errors = [], []
    for plain, told in pairs:
        values.append(told.at(ANY) - plain.at(PLAIN))
        errors.append(math.hypot(error_in(plain.rows[-1], PLAIN), error_in(told.rows[-1], ANY)))
    return combine(values, errors)


def _together(plain: Record, told: Record) -> Pair | None:
    """Both runs up to the last time at which both were measured; `None` if there is none after the start."""
    common = {row["kimg"] for row in plain.rows} & {row["kimg"] for row in told.rows}
    end = max(common, default=0.0)
    if end <= 0:
        return None
    one, other = (replace(run, rows=tuple(row for row in run.rows if row["kimg"] <= end)) for run in (plain, told))
    return one, other
