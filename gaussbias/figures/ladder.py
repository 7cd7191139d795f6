"""The error ladder against the noise level and against time, from `probes/*.safetensors`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import POOLS, RAW, Entry, read_extra
from gaussbias.figures.style import COLOURS, DPI, at_time, bare, names, save, scale_time
from gaussbias.figures.style import plain as plain_text
from gaussbias.history import Measurement, averaged, measurement_files, read_measurement
from gaussbias.noise import BAND
from gaussbias.system.errors import UserError

AFFINE, NONLINEAR = COLOURS[0], COLOURS[4]
OTHERS = (COLOURS[0], COLOURS[3], COLOURS[4], COLOURS[5])
"""Colours of what is not in the catalogue."""
DISTANCE_UNIT, ERROR_UNIT = catalogue.GAUSSIAN_RMSE.unit, catalogue.MSE.unit
CUT = 3.0
"""How much larger than in the intermediate band values are that are cut."""
Line = tuple[str, str, str, str]  # logged name, label, colour, style
ERRORS: tuple[Line, ...] = (
    (catalogue.MSE.name, "network", "black", "-"),
    (catalogue.GAUSSIAN_MSE.name, "$D_G$", COLOURS[1], "--"),
    (catalogue.EMPIRICAL_MSE.name, "$D_M$", COLOURS[2], ":"),
    (catalogue.NONLINEAR.name, "nonlinear part", NONLINEAR, "-"),
    (catalogue.AFFINE.name, "affine part", AFFINE, "-"),
)
LINEARITY: tuple[Line, ...] = (
    (catalogue.AFFINE_COSINE.name, "cosine about the mean", "black", "-"),
    (catalogue.COSINE.name, "cosine", COLOURS[3], "-"),
    (catalogue.GAUSSIAN_COSINE.name, "cosine of $D_G$", COLOURS[3], ":"),
    (catalogue.R2.name, "$R^2$ of the affine fit", COLOURS[0], "-"),
)
DISTANCES: tuple[Line, ...] = (
    (catalogue.GAUSSIAN_RMSE.name, "to $D_G$", COLOURS[1], "-"),
    (catalogue.EMPIRICAL_RMSE.name, "to $D_M$", COLOURS[2], "-"),
)


def draw_ladder(files: Sequence[Path], path: Path, extra: Sequence[Entry] = ()) -> Path:
    """Draw measurements against the noise level: the parts of the distance to D_G, errors, linearity, and distances.

    Args:
        files: Of measurements; each has a row of panels for each of its pools.
        path: Where to write the picture.
        extra: Entries of values that are not in the catalogue, beside those that the run folders have.

    Raises:
        UserError: If a file cannot be read.
    """
    measurements = [averaged(read_measurement(file)) for file in files]
    titles = names([file.absolute().parent.parent for file in files])
    rows = [
        (title, measurement, pool)
        for title, measurement in zip(titles, measurements, strict=True)
        for pool in _pools(measurement)
    ]
    if not rows:
        raise UserError(f"expected measured distances to D_G in {files[0]}, found none")
    figure = Figure(figsize=(16, 3.5 * len(rows)), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    grid = figure.subplots(len(rows), 4, squeeze=False)
    extra = not_of_theories(dict.fromkeys([*read_extra(*{file.absolute().parent.parent for file in files}), *extra]))
    further = {unit: _further(extra, unit) for unit in (ERROR_UNIT, DISTANCE_UNIT)}
    to_all = [*DISTANCES, *further[DISTANCE_UNIT]]
    for (title, measurement, pool), (parts, errors, linearity, distances) in zip(rows, grid, strict=True):
        _stack_levels(parts, measurement, pool)
        parts.set_title(f"{title}{at_time(measurement.kimg)}, {pool}", loc="left", fontsize=10, fontweight="bold")
        parts.set_ylabel("squared distance to $D_G$ / d", fontsize=9)
        _lines(errors, measurement, pool, [*ERRORS, *further[ERROR_UNIT]], "mean square, data units", logarithmic=True)
        _lines(linearity, measurement, pool, LINEARITY, "1: linear")
        _lines(distances, measurement, pool, to_all, "rms, data units")
        focus(distances, [measurement], [at_each_level(measurement, name, pool)[0] for name, *_ in to_all])
    return save(figure, path)


def _further(extra: Sequence[Entry], unit: str) -> list[Line]:
    """Lines of entries that are not in the catalogue and have a value of a unit at each noise level."""
    chosen = [entry for entry in extra if entry.levels and entry.pools and entry.unit == unit]
    styles = ("--", "-.", ":")
    return [
        (entry.name, plain_text(entry.head), OTHERS[place % len(OTHERS)], styles[place // len(OTHERS) % len(styles)])
        for place, entry in enumerate(chosen)
    ]


def draw_ladder_times(runs: Sequence[Path], path: Path) -> Path:
    """Draw the parts of the squared distance to D_G, averaged over the intermediate band, against time.

    Args:
        runs: Run folders, each with a panel for each of its pools.
        path: Where to write the picture.

    Raises:
        UserError: If a folder has no measurements.
    """
    measurements = [[_parts(file, file.stat().st_mtime_ns) for file in measurement_files(run)] for run in runs]
    rows = [
        (
            title,
            times,
            [pool for pool in POOLS if any(catalogue.TOTAL.on(pool) in measurement.values for measurement in times)],
        )
        for title, times in zip(names(runs), measurements, strict=True)
    ]
    if not any(pools for _, _, pools in rows):
        raise UserError(f"expected measured distances to D_G in {runs[0]}/probes, found none")
    columns = max(len(pools) for _, _, pools in rows)
    figure = Figure(figsize=(5.5 * columns, 3.5 * len(rows)), layout="constrained", dpi=DPI)
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey=True)
    for (title, times, pools), panels in zip(rows, grid, strict=True):
        for pool, axes in zip(pools, panels, strict=False):
            kimg = np.array([measurement.kimg for measurement in times])
            total, affine = (over_time(times, entry.on(pool)) for entry in (catalogue.TOTAL, catalogue.AFFINE))
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


@lru_cache(maxsize=4096)
def _parts(file: Path, _written: int) -> Measurement:
    """What is drawn over time of a measurement; read once by a process that draws after each."""
    entries = catalogue.AFFINE, catalogue.TOTAL
    keys = [raw + entry.on(pool) for raw in ("", RAW) for entry in entries for pool in POOLS]
    return averaged(read_measurement(file, keys))


def has_ladder(file: Path) -> bool:
    """Whether a measurement has distances to D_G."""
    return bool(_pools(averaged(read_measurement(file, ()))))


def _pools(measurement: Measurement) -> list[str]:
    beginning = f"{catalogue.TOTAL.name}/"
    pools = {key.removeprefix(beginning).split("/")[0] for key in measurement.values if key.startswith(beginning)}
    return [pool for pool in POOLS if pool in pools] + sorted(pools - set(POOLS))


def over_time(times: Sequence[Measurement], key: str) -> tuple[np.ndarray, np.ndarray]:
    """A value over measurements, and half of its interval; NaN where it is not there."""
    value = np.array([measurement.values.get(key, np.nan) for measurement in times])
    half = np.array([measurement.half(key) if key in measurement.blocks else np.nan for measurement in times])
    return value, half


def at_each_level(measurement: Measurement, name: str, pool: str) -> tuple[np.ndarray, np.ndarray]:
    """A value at each noise level, and half of its interval; NaN where it is not there."""
    keys = [f"{name}/{pool}{Entry.end(sigma)}" for sigma in measurement.sigmas]
    value = np.array([measurement.values.get(key, np.nan) for key in keys])
    return value, np.array([measurement.half(key) if key in measurement.blocks else np.nan for key in keys])


def focus(axes: Axes, measurements: Sequence[Measurement], values: Sequence[np.ndarray]) -> None:
    """Cut what is far larger outside of the intermediate band: networks that predict noise err by sigma there.

    Args:
        axes: Where the values are drawn.
        measurements: Measurements, one for all values or one for each.
        values: At each noise level (S,).
    """
    band, rest = [], []
    for place, value in enumerate(values):
        sigmas = np.array(measurements[place % len(measurements)].sigmas)
        inside = (sigmas >= BAND[0]) & (sigmas <= BAND[1]) & np.isfinite(value)
        band += value[inside].tolist()
        rest += value[np.isfinite(value)].tolist()
    if band and max(rest) > CUT * max(band) > 0:
        axes.set_ylim(-0.03 * max(band), 1.5 * max(band))
        said = f"cut: up to {max(rest):.3g}"
        axes.text(0.99, 0.98, said, transform=axes.transAxes, ha="right", va="top", fontsize=8, backgroundcolor="white")


def _stack_levels(axes: Axes, measurement: Measurement, pool: str) -> None:
    total, affine = (at_each_level(measurement, entry.name, pool) for entry in (catalogue.TOTAL, catalogue.AFFINE))
    _stack(axes, np.array(measurement.sigmas), total, affine)
    for name, label, colour, style in ERRORS[1:3]:
        value, _ = at_each_level(measurement, name, pool)
        if np.isfinite(value).any():
            axes.plot(
                measurement.sigmas, value, color=colour, linestyle=style, linewidth=1.3, label=f"error of {label}"
            )
    top = max((value for value in total[0] if np.isfinite(value)), default=0.0)
    if top > 0:  # the errors leave the picture at high noise
        axes.set_ylim(-0.03 * top, 1.5 * top)
    focus(axes, [measurement], [total[0]])
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
    axes: Axes, measurement: Measurement, pool: str, lines: Sequence[Line], label: str, logarithmic: bool = False
) -> None:
    for name, title, colour, style in lines:
        value, half = at_each_level(measurement, name, pool)
        value = np.where(value > 0, value, np.nan) if logarithmic else value
        if not np.isfinite(value).any():
            continue
        axes.plot(measurement.sigmas, value, color=colour, linestyle=style, linewidth=1.5, marker=".", label=title)
        low = np.maximum(value - half, np.nanmin(value) / 10) if logarithmic else value - half
        axes.fill_between(measurement.sigmas, low, value + half, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    if logarithmic and axes.lines:
        axes.set_yscale("log")
        own, _ = at_each_level(measurement, lines[0][0], pool)
        if (own > 0).any():  # the memoriser's error vanishes at low noise: it would take all of the axis
            axes.set_ylim(bottom=max(axes.get_ylim()[0], own[own > 0].min() / 100))
    axes.set_ylabel(label, fontsize=9)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
    bare(axes)
    _label_sigma(axes)


def _label_sigma(axes: Axes) -> None:
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
