"""Phase diagrams, data-set size or capacity against time, and the times of generalisation and of memorisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import Crossing, PowerLaw, Record, Study, tau_gen, tau_mem
from gaussbias.figures.atlas.axes import against_sizes, against_widths, draw_study_figure, finish, logarithmic, panels
from gaussbias.figures.style import DPI

COLOURED = (
    (catalogue.GL_SCORE.name, "GL score", "viridis"),
    (catalogue.MEMORIZED_FRACTION.name, "memorised fraction", "Reds"),
    (catalogue.POSITION.on("train"), "position (0: $D_G$, 1: $D_M$)", "PuOr_r"),
    (catalogue.GAUSSIAN_RMSE.on("heldout"), "distance to $D_G$, held-out", "magma_r"),
)
TAUS: tuple[tuple[Callable[[Record], Crossing | None], str, str, str], ...] = (
    (tau_gen, r"$\tau_{gen}$", "o", "#0072B2"),
    (tau_mem, r"$\tau_{mem}$", "s", "#D55E00"),
)


def draw_phases(study: Study, folder: Path) -> list[Path]:
    """Draw the phase diagrams of a study: N against kimg, and channels against kimg where there are several."""
    width, size = study.main_width(), study.main_size()
    drawn: list[Path] = []
    if len(study.sizes_at(width)) > 1:
        drawn += draw_study_figure(phases_figure(study, channels=width), folder, f"phases_{study.name}")
    if len(study.widths_at(size)) > 1:
        drawn += draw_study_figure(phases_figure(study, images=size), folder, f"phases_channels_{study.name}")
    return drawn


def phases_figure(study: Study, channels: int | None = None, images: int | None = None) -> Figure:
    """Four values in colours over kimg and N (at so many channels) or channels (at so many images), with both times."""
    figure = Figure(figsize=(15, 3.6), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    axis = study.sizes_at(channels) if channels is not None else study.widths_at(images or 0)
    runs = [study.longest(at, channels) if channels is not None else study.longest(images, at) for at in axis]
    times = study.times(images, channels)
    contours = [
        ([_middle([tau(run) for run in alike]) for alike in runs], label, marker, colour)
        for tau, label, marker, colour in TAUS
    ]
    for (key, title, colours), axes in zip(COLOURED, figure.subplots(1, 4), strict=True):
        values = phase(study, key, axis, times, channels, images)
        shown = np.ma.masked_invalid(values)
        limits = (
            {"vmin": 0.0, "vmax": 1.0}
            if "fraction" in key
            else {"vmin": -1.0, "vmax": 1.0}
            if "position" in key
            else {}
        )
        mesh = axes.pcolormesh(_edges(axis), _edges(times), shown, cmap=colours, **limits)
        figure.colorbar(mesh, ax=axes, shrink=0.9)
        for contour in contours:
            _draw_contour(axes, axis, *contour)
        axes.set_yscale("log")
        axes.set_yticks(times, [f"{time:.3g}" for time in times])
        axes.minorticks_off()
        axes.set_ylabel("kimg", fontsize=9)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        (against_sizes if channels is not None else against_widths)(axes, axis)
        axes.set_xlim(_edges(axis)[0], _edges(axis)[-1])
        axes.set_ylim(_edges(times)[0], _edges(times)[-1])
        axes.tick_params(labelsize=8)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    at = f"{channels} channels" if channels is not None else f"N = {images:,}"
    figure.suptitle(
        f"{study.title}, {at}; open markers: later than the run, or before its first measurement", fontsize=10
    )
    return figure


def phase(
    study: Study,
    key: str,
    axis: Sequence[int],
    times: Sequence[float],
    channels: int | None = None,
    images: int | None = None,
) -> np.ndarray:
    """Means over runs (times, sizes or capacities) of a value; NaN where nothing was measured."""
    pairs = [(at, channels) if channels is not None else (images, at) for at in axis]
    return np.array([[study.value(key, n or 0, width or 0, time).mean for n, width in pairs] for time in times])


def draw_taus(study: Study, law: PowerLaw | str, folder: Path) -> list[Path]:
    """Draw the times of generalisation and memorisation against N, with the power law of the latter."""
    return draw_study_figure(taus_figure(study, law), folder, f"taus_{study.name}")


def taus_figure(study: Study, law: PowerLaw | str) -> Figure:
    """Every run's times; arrows where only a bound is known."""
    figure, (axes,) = panels(1, width=5.2, height=3.8)
    width = study.main_width()
    sizes = study.sizes_at(width)
    for number, (tau, label, marker, colour) in enumerate(TAUS):
        times = [(n, tau(run)) for n in sizes for run in study.longest(n, width)]
        shift = 0.97 if number == 0 else 1.03
        for kind, filled in (("at", True), ("after", False), ("before", False)):
            points = [
                (n * shift, crossing.time) for n, crossing in times if crossing is not None and crossing.kind == kind
            ]
            if points:
                x, y = zip(*points, strict=True)
                name = {"at": label, "after": f"{label}: later", "before": f"{label}: earlier"}[kind]
                shape = marker if filled else "^" if kind == "after" else "v"
                face = colour if filled else "none"
                axes.plot(x, y, shape, color=colour, markerfacecolor=face, markersize=5, label=name)
    if isinstance(law, PowerLaw):
        along = np.geomspace(sizes[0], sizes[-1], 50)
        text = f"$N^{{{law.alpha:.2f}}}$ ({law.low:.2f} to {law.high:.2f})"
        axes.plot(along, [law.at(n) for n in along], color=TAUS[1][3], linestyle="--", linewidth=1.2, label=text)
    logarithmic(axes)
    against_sizes(axes, sizes)
    finish(axes, f"{study.title}, {width} channels", "kimg", legend=True)
    return figure


def _middle(crossings: Sequence[Crossing | None]) -> Crossing | None:
    """The geometric mean of the times of runs; a bound if half of them or more have no time."""
    known = [crossing for crossing in crossings if crossing is not None]
    if not known:
        return None
    time = float(np.exp(np.mean([np.log(crossing.time) for crossing in known])))
    bounds = [crossing.kind for crossing in known if crossing.kind != "at"]
    return Crossing(time, "at" if 2 * len(bounds) < len(known) else bounds[0])


def _draw_contour(
    axes: Axes, axis: Sequence[int], crossings: Sequence[Crossing | None], label: str, marker: str, colour: str
) -> None:
    known = [(at, crossing) for at, crossing in zip(axis, crossings, strict=True) if crossing is not None]
    if not known:
        return
    axes.plot(
        [at for at, _ in known], [crossing.time for _, crossing in known], color=colour, linewidth=1.4, label=label
    )
    for at, crossing in known:
        face = colour if crossing.kind == "at" else "white"
        axes.plot([at], [crossing.time], marker, color=colour, markerfacecolor=face, markersize=5)


def _edges(axis: Sequence[float]) -> np.ndarray:
    """Borders between values of a logarithmic axis, half way."""
    logs = np.log(np.asarray(axis, float))
    middle = (logs[1:] + logs[:-1]) / 2
    ends = (2 * logs[0] - middle[0], 2 * logs[-1] - middle[-1]) if len(logs) > 1 else (logs[0] - 0.5, logs[0] + 0.5)
    edges: np.ndarray = np.exp(np.array([ends[0], *middle, ends[1]]))
    return edges
