"""Reads the logged rows of runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from gaussbias.errors import UserError

Column = list[float] | list[str]


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
        with path.open(newline="") as file:
            complete = (row for row in csv.DictReader(file) if None not in row.values())
            rows += [(folder.name, row) for row in complete]
    keys = dict.fromkeys(key for _, row in rows for key in row)
    columns: dict[str, Column] = {"run": [name for name, _ in rows]}
    for key in keys:
        columns[key] = [float(row.get(key) or "nan") for _, row in rows]
    return columns
