"""What the figures of a study share: colours for sizes, bands, axes, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from gaussbias.analysis import Value
from gaussbias.figures.style import DPI, MARKERS, bare, save


def draw_study_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as png and as pdf."""
    return [save(figure, folder / f"{name}.{kind}") for kind in ("png", "pdf")]


def panels(
    count: int, width: float = 3.6, height: float = 3.3, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels in a row, or in rows of so many columns."""
    columns = min(count, columns or count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def shades(count: int) -> list[str]:
    """Colours in the order of a quantity, dark to light, for as many values."""
    places = np.linspace(0.05, 0.85, count) if count > 1 else np.full(count, 0.3)
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colormaps["viridis"](place)[:3]) for place in places]


def line(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[Value],
    colour: str,
    label: str | None = None,
    style: str = "-",
    place: int = 0,
) -> None:
    """Means with their intervals as a band; what is not known is left out."""
    known = [(at, value) for at, value in zip(x, values, strict=True) if np.isfinite(value.mean)]
    if not known:
        return
    at = [place_of for place_of, _ in known]
    mean, half = (np.array([getattr(value, name) for _, value in known]) for name in ("mean", "half"))
    marker = MARKERS[place % len(MARKERS)]
    axes.plot(at, mean, color=colour, label=label, linestyle=style, linewidth=1.6, marker=marker, markersize=4)
    half = np.nan_to_num(half)
    if len(at) > 1:
        axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.errorbar(at, mean, half, color=colour, capsize=3, linewidth=1.2)


def against_values(axes: Axes, values: Sequence[float], names: Sequence[str], label: str, rotation: float = 0) -> None:
    """A logarithmic axis with a tick for each value."""
    axes.set_xscale("log")
    axes.set_xticks(list(values), list(names), rotation=rotation)
    axes.minorticks_off()
    axes.set_xlabel(label, fontsize=9)


def against_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """The axis of the number of training images."""
    rotation = 45 if len(sizes) > 4 else 0
    against_values(axes, sizes, [f"{size:,}" for size in sizes], "$N$, training images", rotation)


def against_widths(axes: Axes, widths: Sequence[int]) -> None:
    """The axis of capacity."""
    against_values(axes, widths, [str(width) for width in widths], "channels of the first level")


def against_sigma(axes: Axes) -> None:
    """The axis of noise levels."""
    axes.set_xscale("log")
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)


def against_time(axes: Axes, times: Sequence[float]) -> None:
    """The axis of training time."""
    axes.set_xscale("log")
    known = [t for t in times if t > 0]
    if known:
        ticks = [
            t
            for t in (step * 10.0**power for power in range(-2, 7) for step in (1, 2, 5))
            if min(known) <= t <= max(known)
        ]
        axes.set_xticks(ticks or known, [f"{t:g}" for t in ticks or known])
        axes.minorticks_off()
    axes.set_xlabel("kimg (thousands of images seen)", fontsize=9)


def logarithmic(axes: Axes) -> None:
    """A logarithmic vertical axis with plain numbers, if anything that is drawn can be on one."""
    drawn = np.concatenate([[0.0], *(np.asarray(line.get_ydata(), float).ravel() for line in axes.get_lines())])
    if not (drawn > 0).any():
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def finish(axes: Axes, title: str, label: str, legend: bool = False) -> None:
    """Title, label and grid of a panel."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_ylabel(label, fontsize=9)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)
    bare(axes)
