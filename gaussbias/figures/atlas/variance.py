"""Bias and variance of denoisers over training sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gaussbias.analysis import Study
from gaussbias.analysis.variance import Parts
from gaussbias.figures.atlas.axes import (
    against_sigma,
    against_time,
    draw_study_figure,
    finish,
    logarithmic,
    panels,
    shades,
)
from gaussbias.history.measurements import quantile


def draw_variance(study: Study, found: Sequence[Parts], folder: Path) -> list[Path]:
    """Draw both parts against time, and at the end against the noise level, a colour for each N."""
    return draw_study_figure(variance_figure(study, found), folder, f"variance_{study.name}")


def variance_figure(study: Study, found: Sequence[Parts]) -> Figure:
    """Variance and bias of halves against kimg (means over the band), and the variance against sigma at the end.

    Dashed lines are of two seeds on the same images, dotted ones of the Gaussian denoisers.
    """
    figure, (over_time, biases, levels) = panels(3, width=4.2)
    sizes = sorted({parts.pair.first.images for parts in found})
    colours = dict(zip(sizes, shades(len(sizes)), strict=True))
    names = sorted({(p.pair.kind, p.pair.first.name, p.pair.second.name) for p in found})
    for kind, first, second in names:
        one = [p for p in found if (p.pair.first.name, p.pair.second.name) == (first, second)]
        size = one[0].pair.first.images
        colour, style = colours[size], "-" if kind == "halves" else "--"
        label = f"$N$ = {size:,}" + ("" if kind == "halves" else ", two seeds")
        times = [parts.kimg for parts in one]
        for axes, name, gaussian in ((over_time, "variance", "gaussian_variance"), (biases, "bias", "gaussian_bias")):
            values, errors = (np.array([getattr(parts, n)[-1] for parts in one]) for n in (name, f"{name}_se"))
            low, high = values - quantile(16) * errors, values + quantile(16) * errors
            axes.plot(times, values, style, color=colour, marker="o", markersize=3, linewidth=1.6, label=label)
            axes.fill_between(times, low, high, color=colour, alpha=0.15, linewidth=0)
            if kind == "halves":
                axes.plot(times, [getattr(parts, gaussian)[-1] for parts in one], ":", color=colour, linewidth=1.3)
        end = one[-1]
        levels.plot(end.sigmas, end.variance[:-1], style, color=colour, marker="o", markersize=3, label=label)
        if kind == "halves":
            levels.plot(end.sigmas, end.gaussian_variance[:-1], ":", color=colour, linewidth=1.3)
    for axes in (over_time, biases):
        against_time(axes, [parts.kimg for parts in found])
    against_sigma(levels)
    for axes in (over_time, levels):
        logarithmic(axes)
    finish(over_time, "Variance over training sets", "mean square, data units", legend=True)
    finish(biases, "Bias squared, and what cannot be known", "mean square, data units")
    finish(levels, "Variance at the end", "mean square, data units")
    figure.suptitle(f"{study.title}, held-out images (dotted: Gaussian denoisers)", fontsize=10)
    return figure
