"""Which runs belong together: of one data set, that differ only in size, capacity, length and seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussbias import catalogue
from gaussbias.analysis.table import Record
from gaussbias.analysis.values import Value, combine
from gaussbias.catalogue import HIGH, LOW, SE
from gaussbias.config.roles import Role, keys_with
from gaussbias.config.sections import STOP_RULES

LONGEST = 80
"""Characters of a name."""
MEMORIZED = catalogue.MEMORIZED_FRACTION.name
MEMORIZED_SHARES = (MEMORIZED, catalogue.MEMORIZED_ANY.name)


@dataclass(frozen=True)
class Study:
    """Runs of one data set that can be drawn together.

    Attributes:
        title: What it is of, in words.
        name: For files.
        runs: The networks.
        surrogates: The linear surrogates of some of them, by the name of the network's run.
    """

    title: str
    name: str
    runs: tuple[Record, ...]
    surrogates: dict[str, Record]

    @property
    def sizes(self) -> list[int]:
        """The numbers of training images."""
        return sorted({run.images for run in self.runs})

    @property
    def widths(self) -> list[int]:
        """The numbers of channels."""
        return sorted({run.channels for run in self.runs})

    def select(self, images: int | None = None, channels: int | None = None) -> list[Record]:
        """Runs of one number of images, and of channels."""
        return [
            run
            for run in self.runs
            if (images is None or run.images == images) and (channels is None or run.channels == channels)
        ]

    @property
    def settled(self) -> bool:
        """Whether any run is finished."""
        return any(run.finished for run in self.runs)

    def ended(self, images: int | None = None, channels: int | None = None) -> list[Record]:
        """Such runs that are finished, or all while none of the study is; of each kind the longest.

        A shorter run of the same images and seed is no other seed.
        """
        longest: dict[tuple[Any, ...], Record] = {}
        runs = [run for run in self.select(images, channels) if run.finished or not self.settled]
        most = {(run.images, run.channels): max(_length(r) for r in runs if _size(r) == _size(run)) for run in runs}
        for run in runs:
            if _length(run) == most[_size(run)]:
                longest[(*_size(run), *run.replicate)] = run
        return list(longest.values())

    def longest(self, images: int | None = None, channels: int | None = None) -> list[Record]:
        """The longest of the runs of the same images and seeds, finished or not."""
        kept: dict[tuple[Any, ...], Record] = {}
        for run in self.select(images, channels):
            key = (*_size(run), *run.replicate)
            if key not in kept or run.rows[-1]["kimg"] > kept[key].rows[-1]["kimg"]:
                kept[key] = run
        return list(kept.values())

    def ended_sizes(self, channels: int) -> list[int]:
        """The numbers of images of such runs."""
        return sorted({run.images for run in self.ended(channels=channels)})

    def ended_widths(self, images: int) -> list[int]:
        """The numbers of channels of such runs."""
        return sorted({run.channels for run in self.ended(images)})

    def main_width(self) -> int:
        """The number of channels that was run with the most sizes; the largest one of those."""
        return max({run.channels for run in self.ended()}, key=lambda width: (len(self.ended_sizes(width)), width))

    def main_size(self) -> int:
        """The number of images that was run with the most numbers of channels; the smallest one of those."""
        return max({run.images for run in self.ended()}, key=lambda size: (len(self.ended_widths(size)), -size))

    def sizes_at(self, channels: int) -> list[int]:
        """The numbers of images that were run with so many channels."""
        return sorted({run.images for run in self.select(channels=channels)})

    def widths_at(self, images: int) -> list[int]:
        """The numbers of channels that were run with so many images."""
        return sorted({run.channels for run in self.select(images)})

    def value(self, key: str, images: int, channels: int, kimg: float | None = None) -> Value:
        """A logged value, over runs of one size and capacity, at their ends or at a time."""
        found = []
        for run in self.ended(images, channels) if kimg is None else self.select(images, channels):
            rows = [row for row in run.rows if kimg is None or abs(row["kimg"] - kimg) < 1e-6]
            found += rows[-1:]
        return value_of(found, key)

    def times(self, images: int | None = None, channels: int | None = None) -> list[float]:
        """When such runs were measured, in kimg, after the start."""
        return sorted({row["kimg"] for run in self.select(images, channels) for row in run.rows if row["kimg"] > 0})


def value_of(rows: Sequence[dict[str, float]], key: str) -> Value:
    """The mean of a value over the rows of some runs."""
    return combine([row.get(key, float("nan")) for row in rows], [error_in(row, key) for row in rows])


def studies(records: Sequence[Record]) -> list[Study]:
    """Sort networks into studies, by their data set and by each key that makes them another kind of run."""
    networks = [record for record in records if record.kind == "edm"]
    kinds: dict[str, list[Record]] = {}
    for run in networks:
        kinds.setdefault(repr(sorted(map(repr, kind_of(run).items()))), []).append(run)
    of = {_teacher(record): record for record in records if record.kind == "linear"}
    sorted_out: list[Study] = []
    for runs in kinds.values():
        title = " ".join([_data(runs[0]), *_others(runs[0], networks)])
        name = re.sub(r"[^A-Za-z0-9]+", "_", title).strip("_")[:LONGEST]
        if any(study.name == name for study in sorted_out):
            name = f"{name}_{len(sorted_out) + 1}"
        own = {run.name: of[place] for run in runs if (place := _place(run.folder or Path(run.name), run)) in of}
        sorted_out.append(Study(title, name, tuple(runs), own))
    return sorted_out


def error_in(row: dict[str, float], key: str) -> float:
    """The standard error of a value over draws; of a memorised share by its Wilson interval, which is not 0 at 0."""
    if key in MEMORIZED_SHARES and {key + LOW, key + HIGH} <= row.keys():
        return (row[key + HIGH] - row[key + LOW]) / (2 * 1.96)
    return row.get(key + SE, float("nan"))


def _matters(key: str) -> bool:
    if key in keys_with(Role.METHOD):
        return True
    return key not in keys_with(Role.AXIS, Role.PLACE) and not key.startswith(("probes.", "stop.", "linear."))


def kind_of(run: Record) -> dict[str, Any]:
    """What runs of one study have in common."""
    ends = any(run.keys.get(f"stop.{rule}") == "end" for rule in STOP_RULES)
    return {key: run.keys[key] for key in run.keys if _matters(key)} | ({"stop": "end"} if ends else {})


def _place(path: Path, run: Record) -> str:
    """Where a network is; by its name alone if only a table is left."""
    return str(path.expanduser().resolve()) if run.folder is not None else path.name


def _teacher(surrogate: Record) -> str:
    """Where the network of a surrogate is: if not where it was, beside it."""
    path = Path(str(surrogate.keys["linear.teacher"])).expanduser()
    if surrogate.folder is not None and not path.exists():
        path = surrogate.folder.parent / path.name
    return _place(path, surrogate)


def _size(run: Record) -> tuple[int, int]:
    return run.images, run.channels


def _length(run: Record) -> float:
    return float(run.keys.get("train.kimg") or run.rows[-1]["kimg"])


def _data(run: Record) -> str:
    resolution = run.keys.get("data.resolution")
    size = "" if resolution is None else f" at {resolution} x {resolution}"
    return f"{run.keys['data.source']}{size}"


def _others(run: Record, networks: Sequence[Record]) -> list[str]:
    """What makes a run another kind than others of its data set, in words."""
    alike = [kind_of(other) for other in networks if _data(other) == _data(run)]
    return [f"{key}={value}" for key, value in kind_of(run).items() if any(o.get(key) != value for o in alike)]
