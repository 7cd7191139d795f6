"""Samples with guidance beside those without, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.tables.theories import Rows

COLUMNS = {
    "GL score": catalogue.GL_SCORE,
    "memorised": catalogue.MEMORIZED_FRACTION,
    "Frechet (PCA)": catalogue.FRECHET,
    "FID": catalogue.FID,
    "cosine to D_G's": catalogue.SAMPLE_COSINE,
    "nearest train": catalogue.TRAIN_SHARE,
}


def guidance_rows(entries: Iterable[Entry], told: Callable[[str], str]) -> Rows:
    """A row for each weight of guidance, w = 1 (none) among them.

    Args:
        entries: Of what was measured, beside the catalogue.
        told: A value by its logged name with its error, in words; nothing for one that is not there.

    Returns:
        The head and the rows; no rows without guidance.
    """
    weights = sorted({1.0, *catalogue.guidance_weights(entries)})
    if len(weights) == 1:
        return [], []
    rows = []
    for weight in weights:
        names = (entry.name if weight == 1 else catalogue.guided(entry.name, weight) for entry in COLUMNS.values())
        rows.append([f"w = {weight:g}", *map(told, names)])
    used = [place for place in range(len(COLUMNS) + 1) if any(row[place] for row in rows)]
    head = ["guidance", *COLUMNS]
    return [head[place] for place in used], [[row[place] for place in used] for row in rows]
