"""Which theory explains most of a network, at which noise level."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gaussbias import catalogue
from gaussbias.catalogue import POOLS, Entry, take_apart, theory_entries, theory_parts
from gaussbias.history import Measurement, quantile
from gaussbias.history.measurements import standard_error

QUANTITY = "unexplained"
MARK = f"/{QUANTITY}/"
"""In all names of shares that theories do not explain, on a pool."""


@dataclass(frozen=True)
class Best:
    """The theory that leaves least of a network unexplained.

    Attributes:
        name: Of the theory.
        share: What it leaves.
        sure: Whether every other one leaves more beyond doubt: by the 95 % interval of the difference, draw by draw.
    """

    name: str
    share: float
    sure: bool


def unexplained(name: str) -> Entry:
    """The entry of the share that a theory does not explain."""
    return theory_entries(name)[0]


def error_of(name: str) -> Entry:
    """The entry of the error of a theory; those of D_G and D_M are logged in any case, under names of their own."""
    return {"gaussian": catalogue.GAUSSIAN_MSE, "empirical": catalogue.EMPIRICAL_MSE}.get(name, theory_entries(name)[2])


def theories_in(entries: Iterable[Entry]) -> list[str]:
    """The theories of which there are shares that they do not explain."""
    parts = (theory_parts(entry.name) for entry in entries)
    return [name for name, quantity in filter(None, parts) if quantity == QUANTITY]


def not_of_theories(entries: Iterable[Entry]) -> list[Entry]:
    """The entries of values that are not those of one theory."""
    return [entry for entry in entries if theory_parts(entry.name) is None]


def compared(*measurements: Measurement) -> tuple[list[str], list[str]]:
    """The theories that measurements compare with, and the pools that they do so on."""
    names, pools = dict[str, None](), set[str]()
    for measurement in measurements:
        for key in measurement.values:
            if MARK not in key:
                continue
            name = take_apart(key)
            parts = theory_parts(name.entry)
            if parts is not None and parts[1] == QUANTITY and name.pool:
                names[parts[0]] = None
                pools.add(name.pool)
    return list(names), [pool for pool in POOLS if pool in pools]


def formulas(names: Iterable[str]) -> list[str]:
    """Those theories that were not fitted to a network, as a surrogate D_L was."""
    return [name for name in names if name != catalogue.LINEAR]


def best_theory(measurement: Measurement, pool: str, sigma: float, names: Iterable[str] | None = None) -> Best | None:
    """The theory that leaves least unexplained on a pool at a noise level; `None` where none was measured.

    Args:
        measurement: What was measured.
        pool: Of noisy images.
        sigma: The noise level.
        names: Of the theories, if they are known already (`compared`); a surrogate D_L is none.
    """
    names = compared(measurement)[0] if names is None else names
    keys = {name: unexplained(name).on(pool, sigma) for name in formulas(names)}
    there = {name: measurement.values[key] for name, key in keys.items() if key in measurement.values}
    if not there:
        return None
    best = min(there, key=lambda name: there[name])
    sure = all(_beyond_doubt(measurement, keys[other], keys[best]) for other in there if other != best)
    return Best(best, there[best], sure)


def paired(measurement: Measurement, key: str, other: str) -> tuple[float, float]:
    """A value less another one of the same measurement, and the standard error of the difference.

    Both are on the same draws, so their blocks are pairs, and the error is far smaller than those of both. NaN where
    blocks of one are missing.
    """
    if key not in measurement.blocks or other not in measurement.blocks:
        return measurement.values[key] - measurement.values[other], math.nan
    pairs = measurement.blocks[key] - measurement.blocks[other]
    return measurement.values[key] - measurement.values[other], standard_error(pairs)


def _beyond_doubt(measurement: Measurement, larger: str, smaller: str) -> bool:
    """Whether a value is larger than another one, by the 95 % interval of the difference."""
    value, se = paired(measurement, larger, smaller)
    return math.isfinite(se) and value > quantile(len(measurement.blocks[larger])) * se
