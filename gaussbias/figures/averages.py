"""What averages of a run's weights of different lengths do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias.catalogue import GL_SCORE, MEMORIZED_FRACTION, MEMORIZED_HIGH, MEMORIZED_LOW, MSE, SE
from gaussbias.figures.style import COLOURS, DPI, bare, save
from gaussbias.system.errors import UserError

Row = Mapping[str, float]


def draw_averages(lengths: Sequence[float], rows: Sequence[Row], kept: Sequence[float], title: str, path: Path) -> Path:
    """Draw errors, GL score and memorised share against the length of the average.

    Args:
        lengths: Of the averages.
        rows: Values of each by logged name, with their standard errors.
        kept: Lengths of the averages that they were made of.
        title: What is shown.
        path: Where to write the picture.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained", dpi=DPI)
    panels = figure.subplots(1, 3)
    for pool, colour in zip(("heldout", "train"), COLOURS, strict=False):
        _line(
            panels[0], lengths, rows, MSE.on(pool), f"{'held-out' if pool == 'heldout' else 'training'} images", colour
        )
    panels[0].set_ylabel("error, each pixel squared (data units)", fontsize=9)
    panels[0].legend(frameon=False, fontsize=8)
    _line(panels[1], lengths, rows, MEMORIZED_FRACTION.name, "", COLOURS[1])
    low, high = (np.array([row.get(end.name, np.nan) for row in rows]) for end in (MEMORIZED_LOW, MEMORIZED_HIGH))
    panels[1].fill_between(lengths, low, high, color=COLOURS[1], alpha=0.2, linewidth=0)
    panels[1].set_ylabel("memorised samples", fontsize=9)
    panels[1].set_ylim(bottom=0)
    _line(panels[2], lengths, rows, GL_SCORE.name, "", COLOURS[0])
    panels[2].set_ylabel("GL score", fontsize=9)
    for axes in panels:
        axes.set_xscale("log")
        ticks = list(lengths) if len(lengths) < 9 else list(lengths)[:: -(-len(lengths) // 8)]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("length of the average (standard deviation / time)", fontsize=9)
        for length in kept:
            axes.axvline(length, color="0.8", linewidth=0.8, zorder=0)
        bare(axes)
    panels[0].set_title(title, loc="left", fontsize=10)
    return save(figure, path)


def _line(axes: Axes, lengths: Sequence[float], rows: Sequence[Row], name: str, label: str, colour: str) -> None:
    values = np.array([row.get(name, np.nan) for row in rows])
    if not np.isfinite(values).any() and label:
        raise UserError(f"expected values of {name}, found none; measure the pools train and heldout")
    errors = 1.96 * np.array([row.get(name + SE, np.nan) for row in rows])
    axes.plot(lengths, values, "o-", color=colour, markersize=4, label=label or None)
    if name == MEMORIZED_FRACTION.name:  # a share has an interval, which is not symmetric
        return
    axes.fill_between(lengths, values - errors, values + errors, color=colour, alpha=0.2, linewidth=0)
