"""Several checkpoints over one another: snapshots of one training, networks of several sizes, or any others.

Li, Dai and Qu 2024 (arXiv 2410.24060) draw such curves over training time, size and data, and against the noise level.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import HIGH, LOW, read_extra
from gaussbias.figures.atlas.axes import against_sigma, against_values, finish, panels, shades
from gaussbias.figures.ladder import at_each_level, focus
from gaussbias.figures.samples import THEORY, draw_tiles, read_samples, theories
from gaussbias.figures.style import COLOURS, DPI, MARKERS, plain, save
from gaussbias.history import Measurement, read_measurement

LEVELS = (
    (catalogue.GAUSSIAN_RMSE.name, "Distance to $D_G$", "rms, data units"),
    (catalogue.EMPIRICAL_RMSE.name, "Distance to $D_M$", "rms, data units"),
    (catalogue.LINEAR_RMSE.name, "Distance to $D_L$", "rms, data units"),
    (catalogue.AFFINE_COSINE.name, "Linearity", "cosine about the mean"),
    (catalogue.COSINE.name, "Cosine", "of $D(ax_1+bx_2)$ and $aD(x_1)+bD(x_2)$"),
    (catalogue.R2.name, "$R^2$ of the affine fit", "1: affine"),
)
NUMBERS = (
    (
        "GL score",
        "distance to nearest\ntraining image / norm",
        (
            (catalogue.GL_SCORE.name, "samples"),
            (catalogue.GL_SCORE_HELDOUT.name, "held-out images"),
            (catalogue.GL_SCORE_GAUSSIAN.name, "samples of $D_G$"),
        ),
    ),
    ("Memorised samples", "fraction", ((catalogue.MEMORIZED_FRACTION.name, "samples"),)),
    ("Samples against those of $D_G$", "cosine about the mean", ((catalogue.SAMPLE_COSINE.name, "samples"),)),
    (
        "Distances of denoisers, held-out",
        "rms, data units",
        ((catalogue.GAUSSIAN_RMSE.on("heldout"), "to $D_G$"), (catalogue.EMPIRICAL_RMSE.on("heldout"), "to $D_M$")),
    ),
    ("Linearity, held-out", "cosine about the mean", ((catalogue.AFFINE_COSINE.on("heldout"), "network"),)),
)
STYLES = ("-", "--", ":")


def draw_levels(files: Sequence[Path], labels: Sequence[str], path: Path) -> Path:
    """Draw distances and linearity on held-out images (else the first pool) against the noise level, a line each.

    Args:
        files: Of measurements.
        labels: Of the lines, in an order that shades follow.
        path: Where to write the picture.

    Raises:
        UserError: If a file cannot be read.
    """
    measurements = [read_measurement(file) for file in files]
    beginning = f"{catalogue.GAUSSIAN_RMSE.name}/"
    keys = [key for measurement in measurements for key in measurement.values if key.startswith(beginning)]
    pools = {key.removeprefix(beginning).split("/")[0] for key in keys}
    pool = "heldout" if "heldout" in pools else min(pools)
    extra = not_of_theories(read_extra(*(file.absolute().parent.parent for file in files)))
    every = [*LEVELS, *((entry.name, plain(entry.title), entry.unit) for entry in extra if entry.levels)]
    shown = [row for row in every if any(f"{row[0]}/{pool}" in measurement.values for measurement in measurements)]
    figure, grid = panels(len(shown), 4.0, 3.4, columns=3)
    for (name, title, label), axes in zip(shown, grid, strict=True):
        for place, (measurement, colour) in enumerate(zip(measurements, shades(len(measurements)), strict=True)):
            value, half = at_each_level(measurement, name, pool)
            if np.isfinite(value).any():
                marker = MARKERS[place % len(MARKERS)]
                axes.plot(measurement.sigmas, value, color=colour, marker=marker, markersize=4, linewidth=1.5)
                axes.fill_between(measurement.sigmas, value - half, value + half, color=colour, alpha=0.15, linewidth=0)
        if name == catalogue.COSINE.name:
            value, _ = at_each_level(measurements[0], catalogue.GAUSSIAN_COSINE.name, pool)
            axes.plot(measurements[0].sigmas, value, color="black", linestyle=":", linewidth=1.3, label="$D_G$")
        against_sigma(axes)
        if name.endswith("rmse"):
            focus(axes, measurements, [at_each_level(measurement, name, pool)[0] for measurement in measurements])
        finish(axes, f"{title}, {pool}", label, legend=True)
    lines = [
        grid[0].plot([], [], color=colour, marker=MARKERS[place % len(MARKERS)], markersize=4, label=label)[0]
        for place, (colour, label) in enumerate(zip(shades(len(measurements)), labels, strict=True))
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=min(4, len(lines)), frameon=False)
    return save(figure, path)


def draw_numbers(files: Sequence[Path], x: Sequence[float], label: str, path: Path) -> Path:
    """Draw what is one number for each checkpoint, with 95 % intervals.

    Args:
        files: Of measurements.
        x: Where each is on the axis, above 0: kimg, or number of weights.
        label: Of the axis.
        path: Where to write the picture.

    Raises:
        UserError: If a file cannot be read.
    """
    measurements = [read_measurement(file) for file in files]
    order = np.argsort(x)
    at = np.array(x, float)[order]
    figure, grid = panels(len(NUMBERS), 3.6, 3.4)
    for (title, axis, lines), axes in zip(NUMBERS, grid, strict=True):
        for place, (key, name) in enumerate(lines):
            mean, low, high = np.array([_bounds(measurement, key) for measurement in measurements])[order].T
            colour = COLOURS[place]
            axes.plot(at, mean, color=colour, linestyle=STYLES[place], marker="o", markersize=4, label=name)
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        if title.startswith("Memorised"):
            axes.set_ylim(-0.02, max(0.2, axes.get_ylim()[1]))
        against_values(axes, list(at), [_short(value) for value in at], label, 45 if len(at) > 4 else 0)
        finish(axes, title, axis, legend=len(lines) > 1)
    return save(figure, path)


def draw_sample_rows(files: Sequence[Path], labels: Sequence[str], path: Path) -> Path:
    """Draw samples of checkpoints from the same latents, a row each, above those of D_G and of D_M.

    Raises:
        UserError: If a file cannot be read.
    """
    sets = [read_samples(file) for file in files]
    rows = [tensors["network"] for _, _, _, tensors in sets]
    further = theories(sets[0][3])
    rows += [sets[0][3][key] for key in ("gaussian", "empirical", *(THEORY + name for name in further))]
    figure = Figure(figsize=(9, 0.75 * len(rows) + 0.5), layout="constrained", dpi=DPI)
    axes = figure.add_subplot()
    draw_tiles(axes, rows, [*labels, "Gaussian $D_G$", "memoriser $D_M$", *map(plain, further)])
    axes.set_title("samples from the same latents", loc="left", fontsize=10)
    return save(figure, path)


def draw_strong(names: Sequence[str], matrix: np.ndarray, rows: Sequence[np.ndarray], path: Path) -> Path:
    """Draw how alike samples of two networks and of their two Gaussians are, and the samples.

    Args:
        names: Of the four.
        matrix: Mean cosines (4, 4).
        rows: Samples of each (k, C, H, W), uint8.
        path: Where to write the picture.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained", dpi=DPI)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    left.imshow(matrix, cmap="viridis", vmin=min(0.0, float(matrix.min())), vmax=1)
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            left.text(j, i, f"{value:.3f}", ha="center", va="center", color="black" if value > 0.6 else "white")
    names = [plain(name) for name in names]
    left.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.set_title("cosine of samples about the mean", loc="left", fontsize=10, fontweight="bold")
    draw_tiles(right, list(rows), list(names))
    right.set_title("samples from the same latents", loc="left", fontsize=10)
    return save(figure, path)


def _bounds(measurement: Measurement, key: str) -> tuple[float, float, float]:
    """A value, and the ends of its interval; of a baseline's value the value again."""
    value = measurement.values.get(key, np.nan)
    if key + LOW in measurement.values:
        return value, measurement.values[key + LOW], measurement.values[key + HIGH]
    half = measurement.half(key) if key in measurement.blocks else 0.0
    return value, value - half, value + half


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or (unit == "M" and value >= size):
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"
