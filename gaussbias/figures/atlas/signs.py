"""When signs of memorisation are beyond doubt, against the first copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias.analysis import Crossing, Record, Study, Value
from gaussbias.analysis.signs import Sign, departure, first_copies, lead, least_error
from gaussbias.figures.atlas.axes import against_sizes, draw_study_figure, finish, logarithmic, panels
from gaussbias.figures.style import COLOURS, MARKERS

ENDS = ("low", "high")
SHADES = (*COLOURS[:-1], "#7F5539")
"""Black is that of the first copies."""
EVENTS: tuple[tuple[str, Callable[[Record], Crossing | None], str, str], ...] = (
    ("first copies", first_copies, "black", "-"),
    ("least held-out error", least_error, "0.55", "--"),
)


def draw_signs(study: Study, signs: Sequence[Sign], folder: Path) -> list[Path]:
    """Draw the times of signs, and how much earlier than the first copies they are, against N."""
    return draw_study_figure(signs_figure(study, signs), folder, f"signs_{study.name}")


def signs_figure(study: Study, signs: Sequence[Sign]) -> Figure:
    """Geometric means over runs of the times, at the main capacity, and of the ratios with their intervals."""
    width = study.main_width()
    sizes = study.ended_sizes(width)
    figure, (times, ratios) = panels(2, width=5.6, height=4.6)
    for name, when, colour, style in EVENTS:
        times.plot(sizes, [_mean(study, n, width, when) for n in sizes], style, color=colour, linewidth=2, label=name)
    for place, sign in enumerate(signs):
        colour, marker = SHADES[place % len(SHADES)], MARKERS[place % len(MARKERS)]
        middle = [_mean(study, n, width, partial(departure, sign=sign)) for n in sizes]
        times.plot(sizes, middle, color=colour, marker=marker, markersize=4, linewidth=1.3, label=sign.title)
        leads = [lead(study.ended(n, width), sign) for n in sizes]
        _draw_ratios(ratios, sizes, leads, colour, marker)
    ratios.axhline(1, color="black", linewidth=1)
    for axes in (times, ratios):
        against_sizes(axes, sizes)
        logarithmic(axes)
    finish(times, "Beyond doubt, z > 3 twice", "kimg")
    finish(ratios, "Earlier than the first copies", "ratio of times (band: 95 %)")
    handles, labels = times.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(f"{study.title}, {width} channels", fontsize=10)
    return figure


def _mean(study: Study, images: int, width: int, when: Callable[[Record], Crossing | None]) -> float:
    """The geometric mean of the times of runs; NaN unless all of them have one."""
    found = [when(run) for run in study.ended(images, width)]
    logs = [math.log(seen.time) for seen in found if seen is not None and seen.kind == "at"]
    return math.exp(float(np.mean(logs))) if logs and len(logs) == len(found) else math.nan


def _draw_ratios(axes: Axes, sizes: Sequence[int], leads: Sequence[Value], colour: str, marker: str) -> None:
    """Ratios of times from their logs, with intervals where there are several runs."""
    middle, low, high = (np.exp(np.clip([getattr(value, name) for value in leads], -5, 5)) for name in ("mean", *ENDS))
    axes.plot(sizes, middle, color=colour, marker=marker, markersize=4, linewidth=1.6)
    axes.fill_between(sizes, low, high, color=colour, alpha=0.12, linewidth=0)
