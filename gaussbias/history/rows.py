"""The logged rows of runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gaussbias.catalogue import LOSS, RAW, SECONDS, group_of
from gaussbias.history.measurements import Measurement
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder

Column = list[float] | list[str]
Value = TypeVar("Value")


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a history file; a last line that was cut short while it was written is left out."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = file.read().splitlines(keepends=True)
    reader = csv.DictReader(line for line in lines if line.endswith("\n"))
    rows = list(reader)
    return list(reader.fieldnames or []), rows


def rows_until(rows: Iterable[dict[str, str]], kimg: float, measured: bool = True) -> list[dict[str, str]]:
    """Rows up to a time; without the measurement at that time, unless it is done."""
    if kimg == math.inf:  # all, and rows of other loops may have no time
        return list(rows)
    at = [(float(row["kimg"]), row) for row in rows]
    return [row for time, row in at if time < kimg or (time == kimg and (measured or not row.get(SECONDS.name)))]


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


def reached_kimg(folder: Path) -> float:
    """The time of the newest row of a run; 0 without any.

    Raises:
        UserError: If there is a history that cannot be read.
    """
    if not RunFolder(folder).history.exists():
        return 0.0
    return max((time for time in load(folder)["kimg"] if isinstance(time, float)), default=0.0)


def begins_again(folder: Path, first: float) -> bool:
    """Whether a run without a checkpoint begins again, and computes the same: it has no rows after its first one.

    Args:
        folder: The run folder.
        first: When it would have written its first checkpoint, in kimg.
    """
    return reached_kimg(folder) <= first + 1e-6


def series(run: str | Path) -> dict[str, tuple[list[float], list[float]]]:
    """Times (kimg) and values of each logged key of a run, from the rows that have one; NaN is a value.

    Raises:
        UserError: If the folder holds no history.
    """
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for row in _rows(Path(run)):
        for key, value in row.items():
            times, values = columns.setdefault(key, ([], []))
            times.append(row["kimg"])
            values.append(value)
    return columns


def last(run: str | Path) -> dict[str, float]:
    """The value of each logged key of a run in the last row that has one; NaN is a value.

    A value that the last measurement left out, since it had no meaning, is left out.

    Raises:
        UserError: If the folder holds no history.
    """
    columns = series(run)
    measured = columns.get(SECONDS.name, ([-math.inf], []))[0][-1]
    return {
        key: values[-1]
        for key, (times, values) in columns.items()
        if times[-1] >= measured or key.startswith(group_of(LOSS))
    }


def plain(values: Mapping[str, Value]) -> dict[str, Value]:
    """What is logged of the averaged weights, by name; and of the raw ones, where a run measured those alone."""
    raw = {key.removeprefix(RAW): value for key, value in values.items() if key.startswith(RAW)}
    return raw | {key: value for key, value in values.items() if not key.startswith(RAW)}


def averaged(measurement: Measurement) -> Measurement:
    """A measurement with the values of the averaged weights alone, or of raw ones that were measured alone."""
    return replace(measurement, values=plain(measurement.values), blocks=plain(measurement.blocks))


def _rows(folder: Path) -> list[dict[str, float]]:
    path = RunFolder(folder).history
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError
        rows = [{key: float(cell) for key, cell in row.items() if cell} for row in read_rows(path)[1]]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"expected a run folder with history.csv, found none at {path}") from None
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"expected a table of logged numbers at {path}: {' '.join(str(error).split())}") from None
    if not all(math.isfinite(row.get("kimg", math.nan)) for row in rows):
        raise UserError(f"expected a table of logged numbers at {path}, but a row has no kimg")
    return rows
