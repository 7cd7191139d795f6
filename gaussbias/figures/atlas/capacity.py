"""Figure 3: samples, GL score and the distance to the Gaussian against capacity, and against training time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import Study, Value
from gaussbias.analysis.halves import Samples, read_samples
from gaussbias.figures.atlas.axes import (
    against_time,
    against_widths,
    draw_study_figure,
    finish,
    line,
    panels,
    shades,
)
from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import DPI

ROWS = 6
"""Times of which samples are shown, at most."""
PANELS = (
    (catalogue.GL_SCORE.name, "GL score", "distance to nearest\ntraining image / norm"),
    (catalogue.MEMORIZED_FRACTION.name, "Memorised samples", "fraction"),
    (catalogue.SAMPLE_COSINE.name, "Samples against those of $D_G$", "cosine about the mean"),
    (catalogue.GAUSSIAN_RMSE.on("heldout"), "Distance to $D_G$, held-out", "rms, data units"),
    (catalogue.GAUSSIAN_RMSE.on("train"), "Distance to $D_G$, training images", "rms, data units"),
)


def draw_capacity(study: Study, folder: Path) -> list[Path]:
    """Draw Figure 3 against capacity, where some size has more than one."""
    if not any(len(study.ended_widths(size)) > 1 for size in study.sizes):
        return []
    return draw_study_figure(capacity_figure(study), folder, f"figure3_capacity_{study.name}")


def draw_time(study: Study, folder: Path) -> list[Path]:
    """Draw Figure 3 against training time."""
    return draw_study_figure(time_figure(study), folder, f"figure3_time_{study.name}")


def capacity_figure(study: Study) -> Figure:
    """Values at the end against channels, a line for each N."""
    figure, grid = panels(len(PANELS))
    sizes = [size for size in study.sizes if len(study.ended_widths(size)) > 1]
    for (key, title, label), axes in zip(PANELS, grid, strict=True):
        _lines(axes, sizes, study.ended_widths, partial(study.value, key))
        against_widths(axes, study.widths)
        finish(axes, title, label, legend=key == PANELS[0][0])
    figure.suptitle(f"{study.title}, at the end of training", fontsize=10)
    return figure


def time_figure(study: Study) -> Figure:
    """Values against kimg at the main capacity, a line for each N."""
    figure, grid = panels(len(PANELS))
    width = study.main_width()
    for (key, title, label), axes in zip(PANELS, grid, strict=True):
        _lines(
            axes,
            study.sizes_at(width),
            lambda n: study.times(n, width),
            lambda n, time, key=key: study.value(key, n, width, time),  # type: ignore[misc]
        )
        against_time(axes, study.times(channels=width))
        finish(axes, title, label, legend=key == PANELS[0][0])
    figure.suptitle(f"{study.title}, {width} channels", fontsize=10)
    return figure


def draw_capacity_samples(study: Study, folder: Path) -> list[Path]:
    """Draw samples of each capacity at the fewest images below the Gaussian's from the same latents."""
    size = study.main_size()
    runs = [study.ended(size, width)[0] for width in study.ended_widths(size)]
    if len(runs) < 2:
        return []
    sets = [(f"{run.channels} channels", read_samples(run)) for run in runs]
    title = f"{study.title}, $N$ = {size:,}: samples from the same latents, at the end"
    return _draw_tiles(sets, title, folder, f"figure3_capacity_samples_{study.name}")


def draw_time_samples(study: Study, folder: Path) -> list[Path]:
    """Draw samples at several times of one run of the main capacity and the fewest images, below the Gaussian's."""
    width = study.main_width()
    size = study.ended_sizes(width)[0]
    run = study.ended(size, width)[0]
    times = [row["kimg"] for row in run.rows if row["kimg"] > 0]
    places = np.linspace(0, len(times) - 1, min(ROWS, len(times))).round().astype(int)
    sets = [(f"{times[i]:.3g} kimg", read_samples(run, times[i])) for i in np.unique(places)]
    title = f"{study.title}, $N$ = {size:,}, {width} channels: samples from the same latents"
    return _draw_tiles(sets, title, folder, f"figure3_time_samples_{study.name}")


def _lines(
    axes: Axes,
    sizes: Sequence[int],
    places: Callable[[int], Sequence[float]],
    value: Callable[[int, float], Value],
) -> None:
    for number, (size, colour) in enumerate(zip(sizes, shades(len(sizes)), strict=True)):
        x = places(size)
        line(axes, x, [value(size, at) for at in x], colour, f"$N$ = {size:,}", place=number)


def _draw_tiles(sets: Sequence[tuple[str, Samples | None]], title: str, folder: Path, name: str) -> list[Path]:
    known = [(label, samples.first()) for label, samples in sets if samples is not None]
    if not known:
        return []
    rows = [known[-1][1].gaussian, *(samples.network for _, samples in known)]
    figure = Figure(figsize=(6.5, 0.54 * len(rows) + 0.4), layout="constrained", dpi=DPI)
    axes = figure.subplots()
    draw_tiles(axes, rows, ["Gaussian $D_G$", *(label for label, _ in known)])
    axes.set_title(title, loc="left", fontsize=9)
    return draw_study_figure(figure, folder, name)
