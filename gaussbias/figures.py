"""`python -m gaussbias.figures RUN...`: curves and samples of runs, from what their folders hold.

Nothing is computed again: curves come from `history.csv` and samples from `samples/*.safetensors`, so figures can be
drawn while a run goes on, and without torch.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from safetensors import SafetensorError, safe_open

from gaussbias.errors import UserError
from gaussbias.history import series
from gaussbias.terminal import Parser, command, say

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; markers differ as well, for print without colours."""
MARKERS = "osD^vPX*"
DPI = 150
History = dict[str, tuple[list[float], list[float]]]


@dataclass(frozen=True)
class Line:
    """A logged value in a panel, and how it is drawn."""

    key: str
    label: str
    style: str = "-"


@dataclass(frozen=True)
class Panel:
    """What one panel shows; lines other than the first are references or companions."""

    title: str
    axis: str
    lines: tuple[Line, ...]
    band: tuple[str, str] | None = None
    logarithmic: bool = False


PANELS = (
    Panel(
        "GL score",
        "distance to nearest\ntraining image / norm",
        (
            Line("generalization/gl_score", "samples"),
            Line("generalization/gl_score_heldout", "held-out images", "--"),
            Line("generalization/gl_score_gaussian", "samples of $D_G$", ":"),
        ),
    ),
    Panel(
        "Memorised samples",
        "fraction (band: 95 %)",
        (Line("generalization/memorized_fraction", "samples"),),
        ("generalization/memorized_fraction_low", "generalization/memorized_fraction_high"),
    ),
    Panel(
        "Frechet distance to held-out",
        "in leading principal\ndirections, units squared",
        (
            Line("samples/frechet_pca", "samples"),
            Line("samples/frechet_pca_train", "training images", "--"),
            Line("samples/frechet_pca_gaussian", "samples of $D_G$", ":"),
        ),
        logarithmic=True,
    ),
    Panel(
        "Samples against those of $D_G$",
        "cosine about the mean",
        (Line("samples/gaussian_cosine", "samples"),),
    ),
    Panel(
        "Distances of denoisers, held-out",
        "rms, data units",
        (Line("gaussian/rmse/heldout", "to $D_G$"), Line("empirical/rmse/heldout", "to $D_M$", ":")),
    ),
    Panel(
        "Linearity, held-out",
        "cosine about the mean",
        (Line("linearity/affine_cosine/heldout", "network ($D_G$ has 1)"),),
    ),
    Panel(
        "Denoising error",
        "mean square, data units",
        (
            Line("denoising/mse/heldout", "held-out images"),
            Line("denoising/mse/train", "training images", "-."),
            Line("denoising/gaussian_mse/heldout", "$D_G$, held-out", ":"),
        ),
    ),
    Panel("Training loss", "weighted loss", (Line("train/loss", "mean over steps"),)),
)


def draw_curves(runs: Sequence[Path], path: Path) -> Path:
    """Draw the headline curves of runs, one colour each, against kimg.

    Args:
        runs: Run folders.
        path: Where to write the picture.

    Raises:
        UserError: If a folder holds no history.
    """
    figure = Figure(figsize=(13, 6), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    grid = figure.subplots(2, 4).flatten()
    histories = [series(run) for run in runs]
    for panel, axes in zip(PANELS, grid, strict=True):
        for number, history in enumerate(histories):
            _draw_panel(axes, panel, history, number)
        _finish_panel(axes, panel, histories)
    names = _names(runs)
    handles = [grid[0].plot([], [], **_look(i), label=name)[0] for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(names), 4), frameon=False)
    return _save(figure, path)


def _draw_panel(axes: Axes, panel: Panel, history: History, number: int) -> None:
    for line in panel.lines:
        kimg, values = _column(history, line.key)
        if not len(kimg):
            continue
        look = _look(number)
        if line is not panel.lines[0]:
            look |= {"marker": "", "linestyle": line.style, "linewidth": 1.3}
        elif line.key == "train/loss" and len(kimg) > 1:
            look["marker"] = ""
        axes.plot(kimg, values, **look)
    if panel.band is not None:
        low, high = (_column(history, key) for key in panel.band)
        if len(low[0]):
            axes.fill_between(low[0], low[1], high[1], color=_look(number)["color"], alpha=0.15, linewidth=0)


def _finish_panel(axes: Axes, panel: Panel, histories: list[History]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    axes.set_ylabel(panel.axis, fontsize=9)
    axes.set_xlabel("kimg (thousands of images seen)", fontsize=9)
    axes.tick_params(labelsize=8)
    if panel.band is not None:
        axes.set_ylim(-0.02, max(0.2, axes.get_ylim()[1]))
    if panel.logarithmic and any((_column(h, panel.lines[0].key)[1] > 0).any() for h in histories):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    _scale_time(axes, [kimg for history in histories for kimg in history.get("kimg", ([], []))[0]])
    drawn = [line for line in panel.lines if any(len(_column(h, line.key)[0]) for h in histories)]
    if len(drawn) > 1 or (drawn and panel.title.startswith("Linearity")):
        for line in drawn:
            axes.plot([], [], color="0.3", linestyle=line.style, linewidth=1.3, label=line.label)
        axes.legend(frameon=False, fontsize=8)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _scale_time(axes: Axes, times: list[float]) -> None:
    """The same axis for all panels; logarithmic after the first kimg of a run that has many."""
    last = max(times, default=0.0)
    if last > 20:
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        ticks = [0] + [step * 10**power for power in range(8) for step in (1, 3) if step * 10**power <= last]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlim(-0.1, 1.15 * last)
    elif last > 0:
        axes.set_xlim(-0.03 * last, 1.03 * last)


def _look(number: int) -> dict[str, Any]:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.8, "linestyle": "-"}


def _column(history: History, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of the rows that have one; what is not finite is a gap."""
    kimg, values = (np.asarray(part, float) for part in history.get(key, ([], [])))
    return kimg, np.where(np.isfinite(values), values, np.nan)


ROWS = (
    ("network", "network"),
    ("nearest", "nearest training\nimage"),
    ("gaussian", "Gaussian $D_G$"),
    ("empirical", "memoriser $D_M$"),
)
PATH_ROWS = (("network_path", "network"), ("gaussian_path", "$D_G$"), ("empirical_path", "$D_M$"))
COLUMNS = 10
"""Noise levels of a sampling path that are shown, at most."""


def draw_samples(files: Sequence[Path], path: Path) -> Path:
    """Draw the samples of measurements: those of a network above its nearest training images and the baselines'.

    Args:
        files: `samples/<kimg>.safetensors` of run folders.
        path: Where to write the picture.

    Raises:
        UserError: If a file cannot be read.
    """
    sets = [_read_samples(file) for file in files]
    figure = Figure(figsize=(12, 3.7 * len(sets)), layout="constrained", dpi=DPI)
    names = _names([file.absolute().parent.parent for file in files])
    for row, (name, (kimg, sigmas, tensors)) in enumerate(zip(names, sets, strict=True)):
        samples = figure.add_subplot(len(sets), 2, 2 * row + 1)
        _tiles(samples, [tensors[key] for key, _ in ROWS], [label for _, label in ROWS])
        samples.set_title(f"{name}, {kimg:g} kimg: samples from the same latents", loc="left", fontsize=10)
        paths = figure.add_subplot(len(sets), 2, 2 * row + 2)
        levels = np.unique(np.linspace(0, len(sigmas) - 1, min(COLUMNS, len(sigmas))).round().astype(int))
        rows, labels = [], []
        for sample in range(tensors[PATH_ROWS[0][0]].shape[1]):
            rows += [tensors[key][levels, sample] for key, _ in PATH_ROWS]
            labels += [label for _, label in PATH_ROWS]
        _tiles(paths, rows, labels)
        size = rows[0].shape[-1] + 1
        paths.set_xticks([i * size + size / 2 - 1 for i in range(len(levels))], [f"{sigmas[i]:.2g}" for i in levels])
        paths.set_xlabel("noise level $\\sigma$ (standard deviation, data units)", fontsize=9)
        paths.set_title("denoised images along the sampling path", loc="left", fontsize=10)
    return _save(figure, path)


def _tiles(axes: Axes, rows: list[np.ndarray], labels: list[str]) -> None:
    """Rows of images (n, C, H, W), with a label each."""
    height, width = rows[0].shape[-2:]
    canvas = np.full((len(rows) * (height + 1) - 1, len(rows[0]) * (width + 1) - 1, 3), 255, np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            shown = image[:3] if len(image) >= 3 else image[:1]  # of other channels than colours the first
            canvas[top : top + height, left : left + width] = shown.transpose(1, 2, 0)
    axes.imshow(canvas, interpolation="nearest")
    axes.set_yticks([i * (height + 1) + (height - 1) / 2 for i in range(len(rows))], labels)
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=8)
    axes.set_anchor("NW")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _read_samples(file: Path) -> tuple[float, list[float], dict[str, np.ndarray]]:
    """The time in kimg, the sampler's noise levels, and the pictures by name."""
    try:
        with safe_open(file, "numpy") as opened:
            about = opened.metadata()
            tensors = {key: opened.get_tensor(key) for key, _ in (*ROWS, *PATH_ROWS)}
            sigmas = [float(sigma) for sigma in json.loads(about["sigmas"])]
            wrong = [key for key, _ in ROWS if tensors[key].ndim != 4]
            wrong += [key for key, _ in PATH_ROWS if tensors[key].ndim != 5 or len(tensors[key]) != len(sigmas)]
            if wrong:
                raise ValueError(f"the shape of {', '.join(wrong)}")
            return float(about["kimg"]), sigmas, tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"expected samples of a measurement at {file}: {error}") from None


def newest_samples(run: Path) -> Path | None:
    """The samples of the last measurement of a run."""
    files = [file for file in (run / "samples").glob("*.safetensors") if is_number(file.stem)]
    return max(files, key=lambda file: float(file.stem), default=None)


def is_number(text: str) -> bool:
    """Whether a file's name is a time in kimg."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def draw(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Draw `curves.png` and `samples.png` of runs into a folder.

    Raises:
        UserError: If a run folder holds no history.
    """
    pictures = [draw_curves(runs, folder / "curves.png")]
    samples = [file for run in runs if (file := newest_samples(run)) is not None]
    return [*pictures, draw_samples(samples, folder / "samples.png")] if samples else pictures


def _names(runs: Sequence[Path]) -> list[str]:
    """Names of folders; where two are equal, with what they lie in."""
    names = [run.absolute().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return [name.replace("$", r"\$") for name in names]  # else matplotlib reads mathematics


def _save(figure: Figure, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command("gaussbias.figures", lambda: _figures(arguments))


def _figures(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.figures",
        description="Draw the curves and the samples of runs, several of them over one another.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, finished or not")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: RUN/figures for one run, figures for several"
    )
    options = parser.parse_args(arguments)
    alone = len(options.runs) == 1
    for path in draw(options.runs, options.out or (options.runs[0] / "figures" if alone else Path("figures"))):
        say(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
