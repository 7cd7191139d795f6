"""The term of guidance: its parts against the noise level, and what they look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.figures.ladder import at_each_level
from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import COLOURS, DPI, at_time, bare, names, save
from gaussbias.history import Measurement, averaged, measurement_files, read_measurement
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

LINES: tuple[tuple[Entry, str, str, str], ...] = (
    (catalogue.GUIDANCE_EXPLAINED, "explained by Gaussians", "black", "-"),
    (catalogue.GUIDANCE_SHIFT, "mean shift", COLOURS[1], "-"),
    (catalogue.GUIDANCE_POSITIVE, "positive contrast", COLOURS[0], "--"),
    (catalogue.GUIDANCE_NEGATIVE, "negative contrast", COLOURS[2], ":"),
)
LOW, HIGH = -0.25, 1.25
"""Shares outside of these are cut."""


def draw_guidance_now(runs: Sequence[Path], path: Path) -> Path:
    """`draw_guidance` of the newest measurements of run folders.

    Raises:
        UserError: If a folder has no measurement of it.
    """
    files = {run: measurement_files(run) for run in runs}
    for run, measured in files.items():
        if not measured:
            raise UserError(f"expected measurements in {run}, found none")
    return draw_guidance([measured[-1] for measured in files.values()], path)


def draw_guidance(files: Sequence[Path], path: Path) -> Path:
    """Draw the term of guidance: how much Gaussians explain of it, its parts, its size, and its directions.

    Args:
        files: Of measurements, in a folder of a run.
        path: Where to write the picture.

    Raises:
        UserError: If one has no values of it.
    """
    rows = []
    runs = [file.absolute().parent.parent for file in files]
    for title, file in zip(names(runs), files, strict=True):
        measurement = averaged(read_measurement(file))
        pools = pools_of(measurement)
        if not pools:
            raise UserError(f"expected values of guidance in {file}, found none")
        rows += [(f"{title}{at_time(measurement.kimg)}, {pool}", measurement, pool) for pool in pools]
    images = [shown for run in runs if (shown := read_parts(RunFolder(run).guidance)) is not None]
    heights = [3.4] * len(rows) + [0.75 * len(tiles) for _, tiles in images]
    figure = Figure(figsize=(10, sum(heights)), dpi=DPI, layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for row, (title, measurement, pool) in enumerate(rows):
        shares, size = (figure.add_subplot(grid[row, column]) for column in range(2))
        for entry, label, colour, style in LINES:
            _line(shares, measurement, entry, pool, label, colour, style)
        shares.set_ylim(LOW, HIGH)
        shares.axhline(0, color="0.8", linewidth=0.8)
        _against_sigma(shares, f"share of the guidance term\n(explained: left out below {LOW:g})")
        if shares.get_legend_handles_labels()[0]:  # shares of a term of size 0 are none
            shares.legend(frameon=False, fontsize=7)
        shares.set_title(title, loc="left", fontsize=10, fontweight="bold")
        _line(size, measurement, catalogue.GUIDANCE_NORM, pool, "", "black", "-")
        size.set_yscale("log")
        _against_sigma(size, "size of the term, each pixel (data units)")
    for row, (title, tiles) in enumerate(images, len(rows)):
        axes = figure.add_subplot(grid[row, :])
        draw_tiles(axes, list(tiles.values()), list(tiles))
        axes.set_title(title, loc="left", fontsize=10)
    return save(figure, path)


def pools_of(measurement: Measurement) -> list[str]:
    """The pools that guidance was measured on."""
    norm = catalogue.GUIDANCE_NORM
    found = [pool for pool in catalogue.POOLS if np.isfinite(at_each_level(measurement, norm.name, pool)[0]).any()]
    return [pool for pool in found if pool == "heldout"] or found[:1]


def has_guidance(file: Path) -> bool:
    """Whether a measurement has values of guidance."""
    return bool(pools_of(averaged(read_measurement(file))))


def read_parts(file: Path) -> tuple[str, dict[str, np.ndarray]] | None:
    """What the parts of the term look like, uint8 images (K, C, H, W) of K classes by name, and what they are."""
    if not file.exists():
        return None
    try:
        with safe_open(file, "np") as opened:
            about = opened.metadata()
            tiles = {name: opened.get_tensor(name) for name in json.loads(about["names"])}
            return f"for the classes {about['classes']}, at sigma {about['sigma']}", tiles
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"cannot read {file}: {reason(error)}") from None


def _line(axes: Axes, measurement: Measurement, entry: Entry, pool: str, label: str, colour: str, style: str) -> None:
    value, half = at_each_level(measurement, entry.name, pool)
    value = np.where(value < LOW, np.nan, value) if entry is catalogue.GUIDANCE_EXPLAINED else value
    known = np.isfinite(value)
    if known.any():
        sigmas = np.array(measurement.sigmas)[known]
        axes.errorbar(sigmas, value[known], half[known], color=colour, linestyle=style, label=label, linewidth=1.5)


def _against_sigma(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.minorticks_off()  # which take most of the time
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    bare(axes)
