"""Which values of a row become curves, so that those that matter are found, and which become rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from gaussbias import catalogue
from gaussbias.catalogue import CLASS, GUIDED, SE, known_entry, take_apart, theory_parts
from gaussbias.noise import sigma_of
from gaussbias.system.html import document, table
from gaussbias.system.terminal import with_error

SECTION = "Main/"
"""Before the second names of the curves that come first: a capital letter sorts before all other names."""
TABLE = "levels"
"""The logged name of the table of single noise levels."""
BY_POOL = {
    "error": catalogue.MSE,
    "error_D_G": catalogue.GAUSSIAN_MSE,
    "to_D_G": catalogue.GAUSSIAN_RMSE,
    "to_D_M": catalogue.EMPIRICAL_RMSE,
    "linearity": catalogue.AFFINE_COSINE,
    "affine": catalogue.AFFINE,
    "nonlinear": catalogue.NONLINEAR,
    "r2": catalogue.R2,
    "between": catalogue.BETWEEN,
}
MAIN = {
    "gl_score": catalogue.GL_SCORE.name,
    "gl_real": catalogue.GL_SCORE_HELDOUT.name,
    "gl_D_G": catalogue.GL_SCORE_GAUSSIAN.name,
    "memorized": catalogue.MEMORIZED_FRACTION.name,
    "memorized_low": catalogue.MEMORIZED_LOW.name,
    "memorized_high": catalogue.MEMORIZED_HIGH.name,
    "cosine": catalogue.SAMPLE_COSINE.name,
    "frechet": catalogue.FRECHET.name,
    "frechet_D_G": catalogue.FRECHET_GAUSSIAN.name,
    "frechet_real": catalogue.FRECHET_TRAIN.name,
    "near_train": catalogue.TRAIN_SHARE.name,
    "near_train_null": catalogue.TRAIN_SHARE_NULL.name,
    "gap": catalogue.GAP_MSE.name,
    "gap_z": catalogue.GAP_Z.name,
    "trace_gap": catalogue.TRACE_GAP.name,
    **{name: entry.on("heldout") for name, entry in BY_POOL.items()},
    **{f"{name}_train": entry.on("train") for name, entry in BY_POOL.items()},
    "position_train": catalogue.POSITION.on("train"),
    "error_theory": catalogue.BEST_MSE.on("heldout"),
    "loss": catalogue.LOSS.name,
    "speed": catalogue.SPEED.name,
}
"""Short names of the values that tell how training goes; those without a pool in their names are of held-out images."""


def curves(row: Mapping[str, float], levels: bool = False) -> dict[str, float]:
    """The values of a row that become curves: main values by both of their names, short ones first, and all others.

    Args:
        row: By logged name.
        levels: Whether the values of single noise levels do, too.
    """
    first = {SECTION + short: row[key] for short, key in MAIN.items() if key in row}
    return first | {key: value for key, value in row.items() if levels or not take_apart(key).level}


def is_shown(key: str) -> bool:
    """Whether a curve is shown unasked: main values, and what is measured that is not in the catalogue.

    >>> is_shown("Main/loss"), is_shown("train/loss"), is_shown("mine/contrast"), is_shown("mine/contrast_se")
    (True, False, True, False)
    """
    if key.startswith(SECTION):
        return True
    own = key.endswith(SE) or key.startswith((CLASS, GUIDED)) or "/" not in key
    entry = take_apart(key).entry
    return not own and known_entry(entry) is None and theory_parts(entry) is None


def level_tables(row: Mapping[str, float]) -> list[tuple[str, list[str], list[list[str]]]]:
    """The values of single noise levels as tables of text.

    Returns:
        For each pool of images (empty for values without one): its name; the head, the noise levels from the highest
        down; and a row for each quantity: its name, and its value at each level with its standard error in brackets.
    """
    found: dict[str, dict[str, dict[float, str]]] = {}
    for key, value in row.items():
        name = take_apart(key)
        if not name.level or name.error:
            continue
        error = row.get(key + SE)
        text = f"{value:.3g}" if error is None else with_error(value, error)
        quantities = found.setdefault(name.pool, {})
        quantities.setdefault((catalogue.RAW if name.raw else "") + name.entry, {})[sigma_of(name.level)] = text
    tables = []
    for pool, quantities in found.items():
        levels = sorted({sigma for cells in quantities.values() for sigma in cells}, reverse=True)
        rows = [[name, *(cells.get(sigma, "") for sigma in levels)] for name, cells in quantities.items()]
        tables.append((pool, [f"{sigma:g}" for sigma in levels], rows))
    return tables


def level_page(row: Mapping[str, float]) -> str:
    """These tables as a page; empty without any."""
    parts = []
    for pool, levels, rows in level_tables(row):
        parts += [f"<h2>{escape(pool or 'values without a pool')}</h2>", table(["sigma", *levels], rows)]
    return document(f"noise levels at {row['kimg']:g} kimg", parts) if parts else ""
