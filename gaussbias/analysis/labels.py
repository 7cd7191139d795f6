"""Whether networks that are told the class of each image memorise sooner than the same ones that are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gaussbias import catalogue
from gaussbias.analysis.crossings import tau_mem
from gaussbias.analysis.studies import Study, error_in, kind_of
from gaussbias.analysis.table import Record
from gaussbias.analysis.values import Value, combine
from gaussbias.history.crossings import Crossing

OF_LABELS = ("data.labels", "model.label_dropout")
"""What such networks differ in."""
PLAIN, ANY = catalogue.MEMORIZED_FRACTION.name, catalogue.MEMORIZED_ANY.name
"""The memorised share without labels, and that with labels which is like it: among images of any class."""


@dataclass(frozen=True)
class Told:
    """Networks of one data set without labels, and those that are told them and are alike in all else.

    Attributes:
        plain: Those without.
        told: Those with labels.
    """

    plain: Study
    told: Study

    @property
    def width(self) -> int:
        """The number of channels that is compared."""
        return self.told.main_width()

    @property
    def sizes(self) -> list[int]:
        """The numbers of images of which there are pairs."""
        return [size for size in self.told.ended_sizes(self.width) if self.pairs(size)]

    def pairs(self, images: int | None = None) -> list[tuple[Record, Record]]:
        """Runs without and with labels on the same images with the same seeds."""
        plain = {(run.images, *run.replicate): run for run in self.plain.ended(images, self.width)}
        return [
            (plain[key], run)
            for run in self.told.ended(images, self.width)
            if (key := (run.images, *run.replicate)) in plain
        ]


def told_apart(there: Sequence[Study]) -> list[Told]:
    """The studies with labels, each with that without which is alike in all else, if there are pairs of runs."""

    def rest(study: Study) -> str:
        return repr(sorted((key, repr(of)) for key, of in kind_of(study.runs[0]).items() if key not in OF_LABELS))

    plain = {rest(study): study for study in there if not study.runs[0].keys.get("data.labels")}
    found = [
        Told(plain[rest(study)], study)
        for study in there
        if study.runs[0].keys.get("data.labels") and rest(study) in plain
    ]
    return [each for each in found if each.sizes]


def sooner(pairs: Sequence[tuple[Record, Record]]) -> tuple[Value, int, int]:
    """How much sooner runs with labels memorise, by the time at which the memorised share passes 0.05.

    With labels it is the share among images of any class: among those of a class the next image after the nearest is
    farther, so that more samples count as memorised.

    Returns:
        The log of the time without labels over that with, over pairs with both; above 0 those with labels are sooner.
        Then in how many pairs only the run with labels had passed when the other one ended, and only that without.
    """
    logs, first, last = [], 0, 0
    for plain, told in pairs:
        times = tau_mem(plain), tau_mem(told, ANY)
        if times[0] is None or times[1] is None:
            continue
        if times[0].kind == times[1].kind == "at":
            logs.append(math.log(times[0].time / times[1].time))
        first += _is_before(times[1], times[0])
        last += _is_before(times[0], times[1])
    return combine(logs, [math.nan] * len(logs)), first, last


def more(pairs: Sequence[tuple[Record, Record]]) -> Value:
    """The memorised share at the end with labels, among images of any class, less that without."""
    values, errors = [], []
    for plain, told in pairs:
        values.append(told.at(ANY) - plain.at(PLAIN))
        errors.append(math.hypot(error_in(plain.rows[-1], PLAIN), error_in(told.rows[-1], ANY)))
    return combine(values, errors)


def _is_before(one: Crossing, other: Crossing) -> bool:
    return one.kind != "after" and other.kind == "after" and one.time <= other.time
