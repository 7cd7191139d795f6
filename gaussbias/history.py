"""Reads the logged rows of runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from gaussbias.errors import UserError

Column = list[float] | list[str]


def read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a history file; a last line that was cut short while it was written is left out."""
    with path.open(newline="") as file:
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
    rows: list[tuple[str, dict[str, str]]] = []
    for folder in folders:
        path = folder / "history.csv"
        if not path.exists():
            raise UserError(f"expected a run folder with history.csv, found none at {path}")
        rows += [(folder.name, row) for row in read_rows(path)[1]]
    keys = dict.fromkeys(key for _, row in rows for key in row)
    columns: dict[str, Column] = {"run": [name for name, _ in rows]}
    for key in keys:
        columns[key] = [float(row.get(key) or "nan") for _, row in rows]
    return columns


def last(run: str | Path) -> dict[str, float]:
    """The last value of each logged key of a run.

    Raises:
        UserError: If the folder holds no history.
    """
    found: dict[str, float] = {}
    for key, column in load(run).items():
        numbers = [value for value in column if isinstance(value, float) and not math.isnan(value)]
        if numbers:
            found[key] = numbers[-1]
    return found
