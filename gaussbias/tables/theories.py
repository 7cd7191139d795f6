"""Theories beside a denoiser, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gaussbias import catalogue
from gaussbias.analysis.theories import error_of, theories_in, unexplained
from gaussbias.catalogue import SE, THEORY_TITLES, Entry, likeness_entries, on_pool
from gaussbias.system.terminal import with_error

Rows = tuple[Sequence[str], list[Sequence[str]]]
"""The head of a table, and its rows."""
HEAD = ("theory", "not explained", "error", "samples: r", "median r", "R2")


def theory_rows(entries: Iterable[Entry], pool: str, told: Callable[[str], str]) -> Rows:
    """A row for each theory: what it leaves unexplained, its error, and how alike its samples are.

    Args:
        entries: Of what was measured, beside the catalogue.
        pool: Of noisy images.
        told: A value by its logged name with its error, in words; nothing for one that is not there.

    Returns:
        The head and the rows; no rows without theories.
    """
    rows: list[Sequence[str]] = []
    for name in theories_in(entries):
        r, r2, median, *_ = likeness_entries(name)
        keys = unexplained(name).on(pool), error_of(name).on(pool), r.name, median.name, r2.name
        rows.append((THEORY_TITLES.get(name, name), *map(told, keys)))
    used = [place for place in range(len(HEAD)) if any(row[place] for row in rows)]
    return [HEAD[place] for place in used], [[row[place] for place in used] for row in rows]


def level_rows(entries: Iterable[Entry], pool: str, sigmas: Sequence[float], values: Mapping[str, float]) -> Rows:
    """A row for each noise level: which D_h is nearest, and what each theory leaves unexplained.

    Args:
        entries: Of what was measured, beside the catalogue.
        pool: Of noisy images.
        sigmas: Noise levels.
        values: By logged name.
    """
    every = [("h", catalogue.BETWEEN.name), ("but for D_h", catalogue.BETWEEN_UNEXPLAINED.name)]
    every += [("k", catalogue.LOCAL_SCALE.name)]
    every += [(f"but for {THEORY_TITLES.get(n, n)}", unexplained(n).name) for n in theories_in(entries)]
    ends = [(f"{sigma:.3g}", Entry.end(sigma)) for sigma in sigmas]
    shown = [(head, name) for head, name in every if any(on_pool(name, pool) + end in values for _, end in ends)]
    rows: list[Sequence[str]] = [
        [label, *(cell(values, on_pool(name, pool) + end) for _, name in shown)] for label, end in ends
    ]
    return ["sigma", *(head for head, _ in shown)], rows if shown else []


def cell(values: Mapping[str, float], key: str) -> str:
    """A value with its error; nothing for one that is not there."""
    value, error = values.get(key), values.get(key + SE)
    if value is None:
        return ""
    return f"{value:.3g}" if error is None else with_error(value, error)
