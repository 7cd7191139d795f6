"""How a value changes within runs, on the same draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gaussbias.analysis.table import Record
from gaussbias.analysis.values import Value, combine
from gaussbias.history import compare
from gaussbias.system.errors import UserError


def change(pairs: Sequence[tuple[Record, float, float]], key: str) -> Value:
    """The mean change of a value over runs, each from one of its times to another, in kimg.

    Both are measured on the same draws, so the error of a run's change is that of the paired difference where its
    folder has the blocks; else the two errors are added, which is more than it is.

    Args:
        pairs: Each run with the time before and the time after.
        key: A logged name.
    """
    values, errors = [], []
    for run, before, after in pairs:
        at_both = [[row for row in run.rows if abs(row["kimg"] - at) < 1e-6] for at in (before, after)]
        if not all(at_both):
            continue
        early, late = (rows[-1] for rows in at_both)
        values.append(late.get(key, math.nan) - early.get(key, math.nan))
        errors.append(_error(run, early, late, key))
    return combine(values, errors)


def _error(run: Record, early: dict[str, float], late: dict[str, float], key: str) -> float:
    if run.folder is not None:
        try:
            return compare(run.folder, run.folder, key, late["kimg"], early["kimg"]).se
        except UserError:
            pass  # it has no blocks
    return math.hypot(*(row.get(f"{key}_se", math.nan) for row in (early, late)))
