"""How figures look, and how they are written."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias.system.errors import UserError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; markers differ as well, for print without colours."""
MARKERS = "osD^vPX*"
DPI = 150


def scale_time(axes: Axes, times: list[float]) -> None:
    """The same axis for all panels; logarithmic after the first kimg of a run that has many."""
    last = max(times, default=0.0)
    if last > 20:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        ticks = [0] + [step * 10**power for power in range(8) for step in (1, 3) if step * 10**power <= last]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlim(-0.1, 1.15 * last)
    elif last > 0:
        axes.set_xlim(-0.03 * last, 1.03 * last)


def look(number: int) -> dict[str, Any]:
    """Colour and marker of the runs of a picture, by their place."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.8, "linestyle": "-"}


def bare(axes: Axes) -> None:
    """A light grid, and no frame above and to the right."""
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def names(runs: Sequence[Path]) -> list[str]:
    """Names of folders; where two are equal, with what they lie in."""
    names = [run.absolute().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return [plain(name) for name in names]


def plain(name: str) -> str:
    """A name as matplotlib draws it: no mathematics, and bytes that are no characters as escapes."""
    return name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")


def at_time(kimg: float) -> str:
    """When something was measured, for titles; nothing if that is not known."""
    return f", {kimg:g} kimg" if math.isfinite(kimg) else ""


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, and its folder if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
