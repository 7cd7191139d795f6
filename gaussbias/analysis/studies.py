"""Which runs belong together: of one data set, that differ only in size, capacity, length and seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gaussbias.analysis.table import UNTOLD, Record
from gaussbias.analysis.values import Value, combine

AXES = {
    "data.n_train",
    "data.half",
    "data.subset_seed",
    "model.channels",
    "train.kimg",
    "train.checkpoint_every_kimg",
    "train.log_every_kimg",
    "train.microbatch",
    "train.strategy",
    "train.compile",
}
"""What runs of one study may differ in, beside what is measured and when."""
MEMORIZED = "generalization/memorized_fraction"


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

    def ended(self, images: int | None = None, channels: int | None = None) -> list[Record]:
        """Such runs that are finished; all of them while none is."""
        found = self.select(images, channels)
        return [run for run in found if run.finished] or found

    def main_width(self) -> int:
        """The number of channels that was run with the most sizes; the largest one of those."""
        return max(self.widths, key=lambda width: (len({run.images for run in self.select(channels=width)}), width))

    def main_size(self) -> int:
        """The number of images that was run with the most numbers of channels; the smallest one of those."""
        return max(self.sizes, key=lambda size: (len({run.channels for run in self.select(size)}), -size))

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
    return combine([row.get(key, float("nan")) for row in rows], [_error(row, key) for row in rows])


def studies(records: Sequence[Record]) -> list[Study]:
    """Sort networks into studies, by their data set and by each key that makes them another kind of run."""
    networks = [record for record in records if record.kind == "edm"]
    kinds: dict[str, list[Record]] = {}
    for run in networks:
        kinds.setdefault(repr(sorted((key, repr(run.keys[key])) for key in run.keys if _matters(key))), []).append(run)
    of = {str(r.keys["linear.teacher"]).rstrip("/").rpartition("/")[2]: r for r in records if r.kind == "linear"}
    found: list[Study] = []
    for runs in kinds.values():
        title = " ".join([_data(runs[0]), *_others(runs[0], networks)])
        name = re.sub(r"[^A-Za-z0-9]+", "_", title).strip("_")
        own = {run.name: of[run.name.rpartition("/")[2]] for run in runs if run.name.rpartition("/")[2] in of}
        found.append(Study(title, name, tuple(runs), own))
    return found


def _error(row: dict[str, float], key: str) -> float:
    """The standard error of a value over draws; of a fraction by its Wilson interval, which is not 0 at 0."""
    if key == MEMORIZED and f"{key}_high" in row:
        return (row[f"{key}_high"] - row[f"{key}_low"]) / (2 * 1.96)
    return row.get(f"{key}_se", float("nan"))


def _matters(key: str) -> bool:
    return key not in AXES and not key.startswith((*UNTOLD, "probes.", "stop.", "linear."))


def _data(run: Record) -> str:
    resolution = run.keys.get("data.resolution")
    size = "" if resolution is None else f" at {resolution} x {resolution}"
    return f"{run.keys['data.source']}{size}"


def _others(run: Record, networks: Sequence[Record]) -> list[str]:
    """What makes a run another kind than others of its data set, in words."""
    alike = [other for other in networks if _data(other) == _data(run)]
    told = []
    for key, value in run.keys.items():
        if _matters(key) and any(_of(other, key) != value for other in alike):
            told.append(f"{key}={value}")
    return told


def _of(run: Record, key: str) -> Any:
    return run.keys.get(key)
