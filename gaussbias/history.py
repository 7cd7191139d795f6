"""Reads the logged rows of runs, and compares measurements draw by draw."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from scipy.special import stdtrit

from gaussbias.errors import UserError

Column = list[float] | list[str]
Value = TypeVar("Value")
RAW = "raw/"
"""Before the names of what was measured of raw weights."""
FORMAT = "gaussbias.probes/2"
"""Of the files with what the blocks of a measurement contribute."""


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a history file; a last line that was cut short while it was written is left out."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = file.read().splitlines(keepends=True)
    reader = csv.DictReader(line for line in lines if line.endswith("\n"))
    rows = list(reader)
    return list(reader.fieldnames or []), rows


def load(runs: str | Path | Iterable[str | Path]) -> dict[str, Column]:
    """The rows of one or many runs as columns of equal length.

    Args:
        runs: A run folder, or several.

    Returns:
        One list of floats per logged key, NaN where a row has no such value, and `run`, the folder's name.

    Raises:
        UserError: If a folder holds no history.
    """
    folders = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(run) for run in runs]
    rows = [(folder.name, row) for folder in folders for row in _rows(folder)]
    keys = dict.fromkeys(key for _, row in rows for key in row)
    columns: dict[str, Column] = {"run": [name for name, _ in rows]}
    for key in keys:
        columns[key] = [row.get(key, float("nan")) for _, row in rows]
    return columns


def series(run: str | Path) -> dict[str, tuple[list[float], list[float]]]:
    """Times (kimg) and values of each logged key of a run, from the rows that have one; NaN is a value.

    Raises:
        UserError: If the folder holds no history.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in _rows(Path(run)):
        for key, value in row.items():
            times, values = found.setdefault(key, ([], []))
            times.append(row["kimg"])
            values.append(value)
    return found


def last(run: str | Path) -> dict[str, float]:
    """The value of each logged key of a run in the last row that has one; NaN is a value.

    A value that the last measurement left out, since it had no meaning, is left out.

    Raises:
        UserError: If the folder holds no history.
    """
    found = series(run)
    measured = found.get("probes/seconds", ([-math.inf], []))[0][-1]
    return {
        key: values[-1] for key, (times, values) in found.items() if times[-1] >= measured or key.startswith("train/")
    }


def plain(values: Mapping[str, Value]) -> dict[str, Value]:
    """What is logged of the averaged weights, by name; and of the raw ones, where a run measured those alone."""
    raw = {key.removeprefix(RAW): value for key, value in values.items() if key.startswith(RAW)}
    return raw | {key: value for key, value in values.items() if not key.startswith(RAW)}


def _rows(folder: Path) -> list[dict[str, float]]:
    path = folder / "history.csv"
    try:
        rows = [{key: float(cell) for key, cell in row.items() if cell} for row in read_rows(path)[1]]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"expected a run folder with history.csv, found none at {path}") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"expected a table of logged numbers at {path}: {' '.join(str(error).split())}") from None
    if any("kimg" not in row for row in rows):
        raise UserError(f"expected a table of logged numbers at {path}, but a row has no kimg")
    return rows


@dataclass(frozen=True)
class Measurement:
    """What a measurement found, and what its blocks contribute.

    Attributes:
        kimg: When.
        sigmas: Noise levels of the probe bank.
        values: By logged name.
        pools: What each measured value was measured on.
        hashes: Of each pool of the probe bank.
        blocks: By logged name the jackknife's pseudo-values, one a block (B,): for a mean, the block's own.
    """

    kimg: float
    sigmas: list[float]
    values: dict[str, float]
    pools: dict[str, str]
    hashes: dict[str, str]
    blocks: dict[str, np.ndarray]

    def se(self, key: str) -> float:
        """The standard error of a value; NaN for a single block."""
        return _standard_error(self.blocks[key])

    def half(self, key: str) -> float:
        """Half of the width of a value's 95 % interval."""
        return quantile(len(self.blocks[key])) * self.se(key)


def quantile(blocks: int) -> float:
    """Student's t for a 95 % interval from so many blocks.

    >>> round(quantile(16), 3)
    2.131
    """
    return float(stdtrit(blocks - 1, 0.975)) if blocks > 1 else math.nan


def measurement_files(run: str | Path) -> list[Path]:
    """The files of a run's measurements, in the order of time."""
    files = [file for file in (Path(run) / "probes").glob("*.safetensors") if is_number(file.stem)]
    return sorted(files, key=lambda file: float(file.stem))


def is_number(text: str) -> bool:
    """Whether a file's name is a time in kimg."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_measurement(file: str | Path, keys: Iterable[str] | None = None) -> Measurement:
    """Read a measurement, and what its blocks contribute to the given values, or to all.

    Raises:
        UserError: If the file is not one.
    """
    try:
        with safe_open(file, "numpy") as opened:
            about = opened.metadata() or {}
            if about.get("format") != FORMAT:
                raise ValueError(f"its format is {about.get('format')}, not {FORMAT}")
            names = ("sigmas", "values", "pools", "hashes")
            sigmas, values, pools, hashes = (json.loads(about[name]) for name in names)
            there = set(opened.keys())
            arrays = {key: opened.get_tensor(key) for key in (there if keys is None else there.intersection(keys))}
            return Measurement(float(about["kimg"]), sigmas, values, pools, hashes, arrays)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"expected a measurement at {file}: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Difference:
    """A difference of two measured values.

    Attributes:
        difference: The first less the second.
        se: Its standard error, over pairs of blocks of the same draws.
        low: Lower end of the 95 % interval, Student's t.
        high: Upper end.
        blocks: How many pairs.
    """

    difference: float
    se: float
    low: float
    high: float
    blocks: int


def compare(
    run_a: str | Path,
    run_b: str | Path,
    key: str,
    kimg_a: float | None = None,
    kimg_b: float | None = None,
) -> Difference:
    """The difference of a value between two runs, or two times of one run, on the same draws.

    Both values come from the same noisy images, so their difference has far less noise than each of them. Runs with
    other training images share the pool `heldout`. The error covers the draws, not the choice of the pool's images.

    Args:
        run_a: A run folder, or a file of a measurement.
        run_b: What is subtracted.
        key: A logged name, of a value that was measured.
        kimg_a: Which measurement; `None` is the last one.
        kimg_b: That of `run_b`.

    Raises:
        UserError: If there is no such value, or the two were measured on other draws.
    """
    a, b = _measurement(run_a, kimg_a), _measurement(run_b, kimg_b)
    for run, found in ((run_a, a), (run_b, b)):
        if key not in found.blocks:
            raise UserError(
                f"{key}: expected the logged name of a measured value, found none at {found.kimg:g} kimg of {run}"
            )
    pool = a.pools[key]
    if pool != b.pools[key] or a.hashes.get(pool) != b.hashes.get(pool):
        raise UserError(
            f"{key}: {run_a} and {run_b} measured it on other draws of the pool {pool} (their hashes differ); "
            "expected the same probes.*, held-out images, and for the pool train the same training images"
        )
    levels = [{k for k in found.blocks if k.startswith(f"{key}/sigma_")} for found in (a, b)]
    if levels[0] != levels[1]:
        raise UserError(
            f"{key}: the two are means over other noise levels, since the value has no meaning at some; compare "
            f"{min(levels[0] & levels[1], default=key)} and the like"
        )
    if len(a.blocks[key]) != len(b.blocks[key]):
        counts = " and ".join(str(len(found.blocks[key])) for found in (a, b))
        raise UserError(f"{key}: expected the same number of blocks in both measurements, found {counts}")
    pairs = a.blocks[key] - b.blocks[key]
    difference, se = a.values[key] - b.values[key], _standard_error(pairs)
    half = quantile(len(pairs)) * se
    return Difference(difference, se, difference - half, difference + half, len(pairs))


def _standard_error(blocks: np.ndarray) -> float:
    return float(blocks.std(ddof=1) / len(blocks) ** 0.5) if len(blocks) > 1 else math.nan


def _measurement(run: str | Path, kimg: float | None) -> Measurement:
    if Path(run).is_file():
        return read_measurement(run)
    files = measurement_files(run)
    if not files:
        raise UserError(f"expected a run folder with measurements in probes/, found none in {run}")
    if kimg is None:
        return read_measurement(files[-1])
    near = min(files, key=lambda file: abs(float(file.stem) - kimg))
    if abs(float(near.stem) - kimg) > 1e-6 * max(1.0, kimg) + 6e-4:  # names have three digits
        times = ", ".join(file.stem for file in files)
        raise UserError(f"{run}: expected a measurement at {kimg:g} kimg, found those at {times}")
    return read_measurement(near)
