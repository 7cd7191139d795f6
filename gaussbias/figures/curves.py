"""Curves of runs against the number of images seen, from `history.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from gaussbias import catalogue
from gaussbias.analysis.theories import not_of_theories, theories_in
from gaussbias.catalogue import SE, Entry, on_pool, read_extra
from gaussbias.figures.style import DPI, bare, look, names, save, scale_time
from gaussbias.figures.style import plain as plain_text
from gaussbias.history import plain, quantile, series

History = dict[str, tuple[list[float], list[float]]]


@dataclass(frozen=True)
class Line:
    """A logged value in a panel, and how it is drawn."""

    key: str
    label: str
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """What one panel shows; lines other than the first are references or companions."""

    title: str
    axis: str
    lines: tuple[Line, ...]
    band: tuple[str, str] | None = None
    logarithmic: bool = False


COLUMNS = 4
PANELS = (
    Panel(
        "GL score",
        "distance to nearest\ntraining image / norm",
        (
            Line(catalogue.GL_SCORE.name, "samples"),
            Line(catalogue.GL_SCORE_HELDOUT.name, "held-out images", "--"),
            Line(catalogue.GL_SCORE_GAUSSIAN.name, "samples of $D_G$", ":"),
        ),
    ),
    Panel(
        "Memorised samples",
        "fraction (band: 95 %)",
        (Line(catalogue.MEMORIZED_FRACTION.name, "samples"),),
        (catalogue.MEMORIZED_LOW.name, catalogue.MEMORIZED_HIGH.name),
    ),
    Panel(
        "Frechet distance to held-out",
        "in leading principal\ndirections, units squared",
        (
            Line(catalogue.FRECHET.name, "samples"),
            Line(catalogue.FRECHET_TRAIN.name, "training images", "--"),
            Line(catalogue.FRECHET_GAUSSIAN.name, "samples of $D_G$", ":"),
        ),
        logarithmic=True,
    ),
    Panel(
        "Samples against those of $D_G$",
        "cosine about the mean",
        (Line(catalogue.SAMPLE_COSINE.name, "samples"),),
    ),
    Panel(
        "Distances of denoisers, held-out",
        "rms, data units",
        (
            Line(catalogue.GAUSSIAN_RMSE.on("heldout"), "to $D_G$"),
            Line(catalogue.EMPIRICAL_RMSE.on("heldout"), "to $D_M$", ":"),
        ),
    ),
    Panel(
        "Linearity, held-out",
        "cosine about the mean",
        (Line(catalogue.AFFINE_COSINE.on("heldout"), "network ($D_G$ has 1)"),),
    ),
    Panel(
        "Denoising error",
        "mean square, data units",
        (
            Line(catalogue.MSE.on("heldout"), "held-out images"),
            Line(catalogue.MSE.on("train"), "training images", "-."),
            Line(catalogue.GAUSSIAN_MSE.on("heldout"), "$D_G$, held-out", ":"),
        ),
    ),
    Panel(
        "Nearest to a training image",
        "share of samples",
        (
            Line(catalogue.TRAIN_SHARE.name, "samples"),
            Line(catalogue.TRAIN_SHARE_NULL.name, "new images", "--"),
            Line(catalogue.TRAIN_SHARE_GAUSSIAN.name, "samples of $D_G$", ":"),
        ),
    ),
    Panel(
        "Gap that $D_G$ does not explain",
        "standard errors, at the\nlevel where it is largest",
        (Line(catalogue.GAP_Z.name, "held-out less training"),),
    ),
    Panel(
        "Training errors below held-out",
        "probability, beyond $D_G$'s",
        (
            Line(catalogue.GAP_AUC.name, "network (no gap: 1/2)"),
            Line(catalogue.GAP_AUC_GAUSSIAN.name, "$D_G$ itself", ":"),
        ),
    ),
    Panel(
        "Degrees of freedom",
        "trace of the Jacobian",
        (
            Line(catalogue.TRACE.on("heldout"), "held-out images"),
            Line(catalogue.TRACE.on("train"), "training images", "-."),
            Line(catalogue.GAUSSIAN_TRACE.on("train"), "$D_G$", ":"),
        ),
    ),
    Panel("Training loss", "weighted loss", (Line(catalogue.LOSS.name, "mean over steps"),)),
)

THEORIES = (
    Panel(
        "Line to beat, held-out",
        "denoising error, mean square",
        (
            Line(catalogue.MSE.on("heldout"), "network"),
            Line(catalogue.BEST_MSE.on("heldout"), "best theory", "--"),
            Line(catalogue.GAUSSIAN_MSE.on("heldout"), "$D_G$", ":"),
        ),
    ),
    Panel(
        "Between memoriser and Gaussian",
        "h of the nearest $D_h$\n(0: $D_M$, 1: $D_G$)",
        (
            Line(catalogue.BETWEEN.on("heldout"), "held-out images"),
            Line(catalogue.BETWEEN.on("train"), "training images", "-."),
        ),
    ),
)
"""Of runs that are compared with theories, each of which has its line in `theories.png`."""


def further_panel(entry: Entry) -> Panel:
    """The panel of an entry that is not in the catalogue: on held-out images, or the first of its pools."""
    pool = entry.main_pool
    lines = [Line(entry.on(pool), plain_text(entry.title))]
    lines += [
        Line(on_pool(name, pool), title, style)
        for name, title, style in ((entry.gaussian, "$D_G$", ":"), (entry.ideal, "ideal", "--"))
        if isinstance(name, str)
    ]
    title = plain_text(entry.title[:1].upper() + entry.title[1:])
    where = {"": "", "heldout": ", held-out"}.get(pool, f", {pool}")
    return Panel(title + where, entry.unit, tuple(lines))


def draw_curves(runs: Sequence[Path], path: Path) -> Path:
    """Draw the headline curves of runs, one colour each, against kimg.

    Args:
        runs: Run folders.
        path: Where to write the picture.

    Raises:
        UserError: If a folder holds no history.
    """
    extra = read_extra(*runs)
    further = [*(THEORIES if theories_in(extra) else ()), *map(further_panel, not_of_theories(extra))]
    shown = [*PANELS, *further]
    rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(13, 3 * rows), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    grid = figure.subplots(rows, COLUMNS).flatten()
    histories = [plain(series(run)) for run in runs]
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for panel, axes in zip(shown, grid, strict=False):
        for number, history in enumerate(histories):
            _draw_panel(axes, panel, history, number)
        _finish_panel(axes, panel, histories)
    titles = names(runs)
    handles = [grid[0].plot([], [], **look(i), label=name)[0] for i, name in enumerate(titles)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(titles), 4), frameon=False)
    return save(figure, path)


def _draw_panel(axes: Axes, panel: Panel, history: History, number: int) -> None:
    for line in panel.lines:
        kimg, values = _column(history, line.key)
        if not len(kimg):
            continue
        drawn = look(number)
        if line is not panel.lines[0]:
            drawn |= {"marker": "", "linestyle": line.style, "linewidth": 1.3}
        elif line.key == catalogue.LOSS.name and len(kimg) > 1:
            drawn["marker"] = ""
        axes.plot(kimg, values, **drawn)
        _, half = _half_width(history, line.key)
        if len(half) == len(values):
            axes.fill_between(kimg, values - half, values + half, color=drawn["color"], alpha=0.15, linewidth=0)
    if panel.band is not None:
        low, high = (_column(history, key) for key in panel.band)
        if len(low[0]):
            axes.fill_between(low[0], low[1], high[1], color=look(number)["color"], alpha=0.15, linewidth=0)


def _finish_panel(axes: Axes, panel: Panel, histories: list[History]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    axes.set_ylabel(panel.axis, fontsize=9)
    axes.set_xlabel("kimg (thousands of images seen)", fontsize=9)
    if panel.band is not None:
        axes.set_ylim(-0.02, max(0.2, axes.get_ylim()[1]))
    if panel.logarithmic and any((_column(h, panel.lines[0].key)[1] > 0).any() for h in histories):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    scale_time(axes, [kimg for history in histories for kimg in history.get("kimg", ([], []))[0]])
    drawn = [line for line in panel.lines if any(len(_column(h, line.key)[0]) for h in histories)]
    if len(drawn) > 1 or (drawn and panel.title.startswith("Linearity")):
        for line in drawn:
            axes.plot([], [], color="0.3", linestyle=line.style, linewidth=1.3, label=line.label)
        axes.legend(frameon=False, fontsize=8)
    bare(axes)


def _column(history: History, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of the rows that have one; what is not finite is a gap."""
    kimg, values = (np.asarray(part, float) for part in history.get(key, ([], [])))
    return kimg, np.where(np.isfinite(values), values, np.nan)


def _half_width(history: History, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Half of the 95 % interval of each value of a key, if it has errors.

    Student's t is that of the blocks of draws; samples are at least as many.
    """
    kimg, errors = _column(history, key + SE)
    _, blocks = _column(history, catalogue.BLOCK_COUNT.name)
    return kimg, errors * quantile(int(blocks[-1])) if len(blocks) else errors[:0]
