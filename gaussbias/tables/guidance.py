"""Samples with guidance beside those without, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gaussbias import catalogue
from gaussbias.catalogue import SE, Entry, take_apart
from gaussbias.noise import in_band
from gaussbias.tables.theories import Rows, cell

COLUMNS = {
    "GL score": catalogue.GL_SCORE,
    "memorised": catalogue.MEMORIZED_FRACTION,
    "Frechet (PCA)": catalogue.FRECHET,
    "FID": catalogue.FID,
    "cosine to D_G's": catalogue.SAMPLE_COSINE,
    "nearest train": catalogue.TRAIN_SHARE,
}


TERM = {
    "size": catalogue.GUIDANCE_NORM,
    "explained": catalogue.GUIDANCE_EXPLAINED,
    "mean shift": catalogue.GUIDANCE_SHIFT,
    "positive": catalogue.GUIDANCE_POSITIVE,
    "negative": catalogue.GUIDANCE_NEGATIVE,
}
"""What is told of the term; means over noise levels would mix levels at which it is large and small."""


def term_rows(pool: str, values: Mapping[str, float]) -> Rows:
    """A row for each intermediate noise level: the size of the guidance term, and how much Gaussians explain of it.

    Args:
        pool: Of noisy images.
        values: By logged name.

    Returns:
        The head and the rows; no rows without guidance.
    """
    start = f"{catalogue.GUIDANCE_NORM.on(pool)}/"
    ends = [take_apart(key).level for key in values if key.startswith(start) and not key.endswith(SE)]
    levels = {end: float(end.removeprefix("sigma_").replace("p", ".")) for end in ends if end}
    rows: list[Sequence[str]] = [
        [f"{sigma:g}", *(cell(values, f"{entry.on(pool)}/{end}") for entry in TERM.values())]
        for end, sigma in sorted(levels.items(), key=lambda item: -item[1])
        if in_band([sigma])
    ]
    return (["sigma", *TERM], rows)


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
