"""When principal components are learnt, against their variance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gaussbias.analysis import PowerLaw, Study
from gaussbias.analysis.clock import Clock
from gaussbias.figures.atlas.axes import draw_study_figure, finish, logarithmic, panels, shades


def draw_clock(study: Study, clocks: Sequence[Clock], folder: Path) -> list[Path]:
    """Draw the times of components against their variance, a colour for each N."""
    return draw_study_figure(clock_figure(study, clocks), folder, f"clock_{study.name}")


def clock_figure(study: Study, clocks: Sequence[Clock]) -> Figure:
    """Every run's times: filled where the gain rises, open where it falls; the power law of rising ones."""
    figure, (axes,) = panels(1, width=5.4, height=3.8)
    for clock, colour in zip(clocks, shades(len(clocks)), strict=True):
        label: str | None = f"$N$ = {clock.images:,}, $\\sigma$ = {clock.sigma:.3g}"
        for times, face in ((clock.rising, colour), (clock.falling, "none")):
            points = [(lam, passed.time) for lam, each in times.items() for passed in each if passed.kind == "at"]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=4, label=label)
                label = None
        if isinstance(clock.law, PowerLaw):
            along = np.geomspace(min(clock.rising), max(clock.rising), 30)
            axes.plot(along, [clock.law.at(lam) for lam in along], "--", color=colour, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_xlabel("variance $\\lambda_k$ of the component (data units squared)", fontsize=9)
    logarithmic(axes)
    finish(axes, f"{study.title}: when components are learnt", "kimg", legend=True)
    return figure
