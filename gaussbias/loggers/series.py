"""Which values of a row become curves, so that those that matter are found, and which become rows of a table."""

from __future__ import annotations

from collections.abc import Mapping

from gaussbias import catalogue
from gaussbias.catalogue import CLASS, GUIDED, SE, known_entry, take_apart, theory_parts
from gaussbias.noise import sigma_of

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


def level_rows(row: Mapping[str, float]) -> tuple[list[str], list[list[object]]]:
    """The values of single noise levels as the columns and rows of a table.

    Returns:
        Columns: the pool (empty for values without one), the noise level, and the values by the names of their
        entries, those of raw weights and standard errors marked as in logged names. Rows: one for each pool and level.
    """
    columns: list[str] = []
    cells: dict[tuple[str, float], dict[str, float]] = {}
    for key, value in row.items():
        name = take_apart(key)
        if not name.level:
            continue
        column = (catalogue.RAW if name.raw else "") + name.entry + (SE if name.error else "")
        cells.setdefault((name.pool, sigma_of(name.level)), {})[column] = value
        if column not in columns:
            columns.append(column)
    places = sorted(cells, key=lambda place: (place[0], -place[1]))
    return ["pool", "sigma", *columns], [[*at, *(cells[at].get(column) for column in columns)] for at in places]
