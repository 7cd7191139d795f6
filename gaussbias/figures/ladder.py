"""The error ladder against the noise level and against time, from `probes/*.safetensors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias.figures.style import COLOURS, DPI, at_time, bare, names, save, scale_time
from gaussbias.history import RAW, Measurement, measurement_files, plain, read_measurement
from gaussbias.noise import BAND, sigma_name
from gaussbias.system.errors import UserError

AFFINE, NONLINEAR = COLOURS[0], COLOURS[4]
POOLS = ("train", "heldout", "trajectory", "noise")
CUT = 3.0
"""How much larger than in the intermediate band values are that are cut."""
Line = tuple[str, str, str, str]  # logged name, label, colour, style
ERRORS: tuple[Line, ...] = (
    ("denoising/mse", "network", "black", "-"),
    ("denoising/gaussian_mse", "$D_G$", COLOURS[1], "--"),
    ("denoising/empirical_mse", "$D_M$", COLOURS[2], ":"),
    ("ladder/nonlinear", "nonlinear part", NONLINEAR, "-"),
    ("ladder/affine", "affine part", AFFINE, "-"),
)
LINEARITY: tuple[Line, ...] = (
    ("linearity/affine_cosine", "cosine about the mean", "black", "-"),
    ("linearity/cosine", "cosine", COLOURS[3], "-"),
    ("linearity/gaussian_cosine", "cosine of $D_G$", COLOURS[3], ":"),
    ("ladder/r2", "$R^2$ of the affine fit", COLOURS[0], "-"),
)
DISTANCES: tuple[Line, ...] = (
    ("gaussian/rmse", "to $D_G$", COLOURS[1], "-"),
    ("empirical/rmse", "to $D_M$", COLOURS[2], "-"),
)


def draw_ladder(files: Sequence[Path], path: Path) -> Path:
    """Draw measurements against the noise level: the parts of the distance to D_G, errors, linearity, and distances.

    Args:
        files: Of measurements; each has a row of panels for each of its pools.
        path: Where to write the picture.

    Raises:
        UserError: If a file cannot be read.
    """
    found = [_plain(read_measurement(file)) for file in files]
    titles = names([file.absolute().parent.parent for file in files])
    rows = [(title, one, pool) for title, one in zip(titles, found, strict=True) for pool in _pools(one)]
    if not rows:
        raise UserError(f"expected measured distances to D_G in {files[0]}, found none")
    figure = Figure(figsize=(16, 3.5 * len(rows)), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    grid = figure.subplots(len(rows), 4, squeeze=False)
    for (title, one, pool), (parts, errors, linearity, distances) in zip(rows, grid, strict=True):
        _stack_levels(parts, one, pool)
        parts.set_title(f"{title}{at_time(one.kimg)}, {pool}", loc="left", fontsize=10, fontweight="bold")
        parts.set_ylabel("squared distance to $D_G$ / d", fontsize=9)
        _lines(errors, one, pool, ERRORS, "mean square, data units", logarithmic=True)
        _lines(linearity, one, pool, LINEARITY, "1: linear")
        _lines(distances, one, pool, DISTANCES, "rms, data units")
        focus(distances, [one], [at_each_level(one, name, pool)[0] for name, *_ in DISTANCES])
    return save(figure, path)


def draw_ladder_times(runs: Sequence[Path], path: Path) -> Path:
    """Draw the parts of the squared distance to D_G, averaged over the intermediate band, against time.

    Args:
        runs: Run folders, each with a panel for each of its pools.
        path: Where to write the picture.

    Raises:
        UserError: If a folder has no measurements.
    """
    keys = [f"{raw}ladder/{part}/{pool}" for raw in ("", RAW) for part in ("affine", "total") for pool in POOLS]
    found = [[_plain(read_measurement(file, keys)) for file in measurement_files(run)] for run in runs]
    rows = [
        (title, times, [pool for pool in POOLS if any(f"ladder/total/{pool}" in one.values for one in times)])
        for title, times in zip(names(runs), found, strict=True)
    ]
    if not any(pools for _, _, pools in rows):
        raise UserError(f"expected measured distances to D_G in {runs[0]}/probes, found none")
    columns = max(len(pools) for _, _, pools in rows)
    figure = Figure(figsize=(5.5 * columns, 3.5 * len(rows)), layout="constrained", dpi=DPI)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=True)
    for (title, times, pools), panels in zip(rows, grid, strict=True):
        for pool, axes in zip(pools, panels, strict=False):
            kimg = np.array([one.kimg for one in times])
            total, affine = (_column(times, f"ladder/{part}/{pool}") for part in ("total", "affine"))
            _stack(axes, kimg, total, affine)
            axes.set_title(f"{title}, {pool}", loc="left", fontsize=10, fontweight="bold")
            axes.set_xlabel("kimg (thousands of images seen)", fontsize=9)
            axes.tick_params(labelleft=True)
            scale_time(axes, list(kimg))
        band = f"mean over $\\sigma$ in {BAND[0]:g} to {BAND[1]:g}"
        panels[0].set_ylabel(f"squared distance to $D_G$ / d\n{band}", fontsize=9)
        for axes in panels[len(pools) :]:
            axes.set_axis_off()
    return save(figure, path)


def has_ladder(file: Path) -> bool:
    """Whether a measurement has distances to D_G."""
    return bool(_pools(_plain(read_measurement(file, ()))))


def _plain(one: Measurement) -> Measurement:
    return replace(one, values=plain(one.values), blocks=plain(one.blocks))


def _pools(one: Measurement) -> list[str]:
    found = {key.split("/")[2] for key in one.values if key.startswith("ladder/total/")}
    return [pool for pool in POOLS if pool in found] + sorted(found - set(POOLS))


def _column(times: Sequence[Measurement], key: str) -> tuple[np.ndarray, np.ndarray]:
    """A value over measurements, and half of its interval; NaN where it is not there."""
    value = np.array([one.values.get(key, np.nan) for one in times])
    half = np.array([one.half(key) if key in one.blocks else np.nan for one in times])
    return value, half


def at_each_level(one: Measurement, name: str, pool: str) -> tuple[np.ndarray, np.ndarray]:
    """A value at each noise level, and half of its interval; NaN where it is not there."""
    keys = [f"{name}/{pool}/sigma_{sigma_name(sigma)}" for sigma in one.sigmas]
    value = np.array([one.values.get(key, np.nan) for key in keys])
    return value, np.array([one.half(key) if key in one.blocks else np.nan for key in keys])


def focus(axes: Axes, found: Sequence[Measurement], values: Sequence[np.ndarray]) -> None:
    """Cut what is far larger outside of the intermediate band: networks that predict noise err by sigma there.

    Args:
        axes: Where the values are drawn.
        found: Measurements, one for all values or one for each.
        values: At each noise level (S,).
    """
    band, rest = [], []
    for place, value in enumerate(values):
        sigmas = np.array(found[place % len(found)].sigmas)
        inside = (sigmas >= BAND[0]) & (sigmas <= BAND[1]) & np.isfinite(value)
        band += value[inside].tolist()
        rest += value[np.isfinite(value)].tolist()
    if band and max(rest) > CUT * max(band) > 0:
        axes.set_ylim(-0.03 * max(band), 1.5 * max(band))
        said = f"cut: up to {max(rest):.3g}"
        axes.text(0.99, 0.98, said, transform=axes.transAxes, ha="right", va="top", fontsize=8, backgroundcolor="white")


def _stack_levels(axes: Axes, one: Measurement, pool: str) -> None:
    total, affine = (at_each_level(one, f"ladder/{part}", pool) for part in ("total", "affine"))
    _stack(axes, np.array(one.sigmas), total, affine)
    for name, label, colour, style in ERRORS[1:3]:
        value, _ = at_each_level(one, name, pool)
        if np.isfinite(value).any():
            axes.plot(one.sigmas, value, color=colour, linestyle=style, linewidth=1.3, label=f"error of {label}")
    top = max((value for value in total[0] if np.isfinite(value)), default=0.0)
    if top > 0:  # the errors leave the picture at high noise
        axes.set_ylim(-0.03 * top, 1.5 * top)
    focus(axes, [one], [total[0]])
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    _label_sigma(axes)


def _stack(
    axes: Axes, x: np.ndarray, total: tuple[np.ndarray, np.ndarray], affine: tuple[np.ndarray, np.ndarray]
) -> None:
    """The affine part, above it the nonlinear one, and the 95 % intervals of where they end."""
    if np.isfinite(affine[0]).any():
        axes.fill_between(x, 0, affine[0], color=AFFINE, alpha=0.6, linewidth=0, label="affine part")
        axes.fill_between(x, affine[0], total[0], color=NONLINEAR, alpha=0.6, linewidth=0, label="nonlinear part")
        _interval(axes, x, *affine, AFFINE)
    axes.plot(x, total[0], color="black", linewidth=1.3, marker="o", markersize=3, label="both: $D$ to $D_G$")
    _interval(axes, x, *total, "black")
    axes.legend(frameon=False, fontsize=8)
    bare(axes)


def _interval(axes: Axes, x: np.ndarray, value: np.ndarray, half: np.ndarray, colour: str) -> None:
    if np.isfinite(half).any():
        axes.errorbar(x, value, half, fmt="none", ecolor=colour, elinewidth=1.2, capsize=2.5)


def _lines(
    axes: Axes, one: Measurement, pool: str, lines: Sequence[Line], label: str, logarithmic: bool = False
) -> None:
    for name, title, colour, style in lines:
        value, half = at_each_level(one, name, pool)
        value = np.where(value > 0, value, np.nan) if logarithmic else value
        if not np.isfinite(value).any():
            continue
        axes.plot(one.sigmas, value, color=colour, linestyle=style, linewidth=1.5, marker=".", label=title)
        low = np.maximum(value - half, np.nanmin(value) / 10) if logarithmic else value - half
        axes.fill_between(one.sigmas, low, value + half, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    if logarithmic and axes.lines:
        axes.set_yscale("log")
        own, _ = at_each_level(one, lines[0][0], pool)
        if (own > 0).any():  # the memoriser's error vanishes at low noise: it would take all of the axis
            axes.set_ylim(bottom=max(axes.get_ylim()[0], own[own > 0].min() / 100))
    axes.set_ylabel(label, fontsize=9)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    bare(axes)
    _label_sigma(axes)


def _label_sigma(axes: Axes) -> None:
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
