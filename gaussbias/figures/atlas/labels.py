"""Networks that are told the class of each image against those that are not, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis.labels import ANY, PLAIN, Told
from gaussbias.analysis.studies import value_of
from gaussbias.figures.atlas.axes import against_time, draw_study_figure, finish, line, panels
from gaussbias.figures.style import COLOURS

LOSS = catalogue.MSE.on("heldout")
Curve = tuple[str, int, str, str, str]
"""A label, which run of a pair, a logged name, a colour and a style."""
SHARES: tuple[Curve, ...] = (
    ("without labels", 0, PLAIN, "black", "-"),
    ("with labels", 1, ANY, COLOURS[0], "-"),
    ("with labels, among images of the class", 1, PLAIN, COLOURS[0], ":"),
)
ERRORS: tuple[Curve, ...] = tuple((name, run, LOSS, colour, style) for name, run, _, colour, style in SHARES[:2])


def draw_labels(compared: Told, folder: Path) -> list[Path]:
    """Draw memorised share and held-out error with and without labels, for each N."""
    return draw_study_figure(labels_figure(compared), folder, f"labels_{compared.told.name}")


def labels_figure(compared: Told) -> Figure:
    """A column for each N: means over runs of the memorised share, and of the error on held-out images."""
    sizes = compared.sizes
    figure, axes = panels(2 * len(sizes), columns=len(sizes), height=2.9)
    for place, size in enumerate(sizes):
        for rows, curves in ((axes[place], SHARES), (axes[len(sizes) + place], ERRORS)):
            _draw(rows, compared, size, curves)
        axes[place].set_ylim(-0.03, 1.03)
        finish(axes[place], f"N = {size:,}", "memorised samples")
        finish(axes[len(sizes) + place], "", "error on held-out images")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(f"{compared.told.title}, {compared.width} channels", fontsize=10)
    return figure


def _draw(axes: Axes, compared: Told, size: int, curves: Sequence[Curve]) -> None:
    drawn: list[float] = []
    for place, (label, which, key, colour, style) in enumerate(curves):
        rows = [row for pair in compared.pairs(size) for row in pair[which].rows if row["kimg"] > 0]
        times = sorted({row["kimg"] for row in rows})
        values = [value_of([row for row in rows if row["kimg"] == time], key) for time in times]
        line(axes, times, values, colour, label, style, place)
        drawn += times
    against_time(axes, drawn)
