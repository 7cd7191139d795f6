"""Copies below the surface, and which training images leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import COLOURS, DPI, bare, save


def draw_cycles(
    rows: Sequence[tuple[int, float, float, float]], stages: Mapping[str, np.ndarray], sigma: float, path: Path
) -> Path:
    """Draw the memorised share against the number of cycles, and first samples on their way.

    Args:
        rows: Number of cycles, memorised share, and the ends of its interval.
        stages: Pixels (k, C, H, W) by the number of cycles, and under `nearest` the nearest training images.
        sigma: Noise of each cycle.
        path: Where to write the picture.
    """
    figure = Figure(figsize=(10, 3.4), layout="constrained", dpi=DPI)
    axes, tiles = figure.subplots(1, 2, width_ratios=[1, 1.5])
    cycles, share, low, high = (np.array(column) for column in zip(*rows, strict=True))
    axes.plot(cycles, share, color=COLOURS[0], marker="o", markersize=4, linewidth=1.8)
    axes.fill_between(cycles, low, high, color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.set_ylim(-0.02, max(0.2, 1.05 * float(high.max())))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("cycles of adding noise and sampling back", fontsize=9)
    axes.set_ylabel("fraction (band: 95 %)", fontsize=9)
    axes.set_title(f"Memorised samples, $\\sigma$ = {sigma:g}", loc="left", fontsize=10, fontweight="bold")
    bare(axes)
    named = {"0": "samples", "1": "after 1 cycle", "nearest": "nearest training\nimages"}
    draw_tiles(tiles, list(stages.values()), [named.get(stage, f"after {stage}") for stage in stages])
    return save(figure, path)


def draw_leaks(pictures: Mapping[str, np.ndarray], told: Sequence[str], path: Path) -> Path:
    """Draw the samples that come closest to training images above these, with a number below each.

    Args:
        pictures: Pixels (k, C, H, W) by what they are.
        told: What is said of each.
        path: Where to write the picture.
    """
    figure = Figure(figsize=(9, 2.3), layout="constrained", dpi=DPI)
    axes = figure.subplots()
    draw_tiles(axes, list(pictures.values()), list(pictures))
    size = next(iter(pictures.values())).shape[-1] + 1
    axes.set_xticks([i * size + size / 2 - 1 for i in range(len(told))], told)
    axes.set_title("Samples closest to a training image, compared with the next one", loc="left", fontsize=10)
    return save(figure, path)
