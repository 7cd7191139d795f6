"""Networks that are told the class of each image against those that are not, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import Study
from gaussbias.analysis.labels import ANY, PLAIN, Told
from gaussbias.analysis.studies import value_of
from gaussbias.figures.atlas.axes import against_time, draw_study_figure, finish, line, panels
from gaussbias.figures.style import COLOURS

LOSS = catalogue.MSE.on("heldout")
Curve = tuple[str, Callable[[Told], Study], str, str, str]
SHARES: tuple[Curve, ...] = (
    ("without labels", lambda compared: compared.plain, PLAIN, "black", "-"),
    ("with labels", lambda compared: compared.told, ANY, COLOURS[0], "-"),
    ("with labels, among images of the class", lambda compared: compared.told, PLAIN, COLOURS[0], ":"),
)
ERRORS: tuple[Curve, ...] = tuple((name, study, LOSS, colour, style) for name, study, _, colour, style in SHARES[:2])


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
    for place, (label, study, key, colour, style) in enumerate(curves):
        runs = study(compared).ended(size, compared.width)
        times = sorted({row["kimg"] for run in runs for row in run.rows if row["kimg"] > 0})
        values = [value_of([row for run in runs for row in run.rows if row["kimg"] == time], key) for time in times]
        line(axes, times, values, colour, label, style, place)
        drawn += times
    against_time(axes, drawn)
