"""How much of a network each theory explains: against the noise level, and which of them most, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from gaussbias import catalogue
from gaussbias.analysis.theories import best_theory, compared, unexplained
from gaussbias.catalogue import THEORY_TITLES, Entry, take_apart
from gaussbias.figures.atlas.axes import against_time, shades
from gaussbias.figures.ladder import at_each_level, over_time
from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import COLOURS, DPI, at_time, bare, names, save
from gaussbias.figures.style import plain as plain_text
from gaussbias.history import Measurement, averaged, measurement_files, read_measurement
from gaussbias.noise import in_band
from gaussbias.system.errors import UserError

SIGNS = {"gaussian": (COLOURS[1], "--"), "empirical": (COLOURS[2], ":")}
"""D_G and D_M look as in other pictures."""
OTHERS = (
    COLOURS[0],
    COLOURS[3],
    COLOURS[4],
    COLOURS[5],
    "#8B4513",
    "#332288",
    "#999933",
    "#882255",
    "#117733",
    "#661100",
)
STYLES = ("-", "-.", "--")
LEAST = 1e-4
"""Shares below this are not told apart."""
SURE, UNSURE = 0.75, 0.25
"""How opaque a cell is whose theory is better than the next one beyond doubt, and one where it may not be."""
RATIO = 4.0
"""Errors over D_G's are drawn up to this, and down to one over it."""
TEXTS = 12
"""Measurements up to which cells have their numbers in them."""


def draw_theories(files: Sequence[Path], path: Path) -> Path:
    """Draw what theories leave unexplained, their errors, and where a network is among them, against the noise level.

    Args:
        files: Of measurements; each has a row of panels for each of its pools.
        path: Where to write the picture.

    Raises:
        UserError: If a file cannot be read, or no theory was compared with.
    """
    measurements = [_read(file, file.stat().st_mtime_ns) for file in files]
    titles = names([file.absolute().parent.parent for file in files])
    rows = [
        (f"{title}{at_time(measurement.kimg)}, {pool}", measurement, pool)
        for title, measurement in zip(titles, measurements, strict=True)
        for pool in compared(measurement)[1]
    ]
    if not rows:
        raise UserError(f"expected values of theories in {files[0]}, found none")
    places, looks = _places(measurements), _looks(compared(*measurements)[0])
    figure = Figure(figsize=(4.2 * (2 + len(places)), 3.6 * len(rows)), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    grid = figure.subplots(len(rows), 2 + len(places), squeeze=False)
    for (title, measurement, pool), (shares, errors, *rest) in zip(rows, grid, strict=True):
        _draw_shares(shares, measurement, pool, looks)
        shares.set_title(title, loc="left", fontsize=10, fontweight="bold")
        _draw_errors(errors, measurement, pool, looks)
        for entry, axes in zip(places, rest, strict=True):
            _draw_place(axes, measurement, pool, entry)
    return save(figure, path)


def draw_theory_times(runs: Sequence[Path], path: Path) -> Path:
    """Draw which theory leaves least unexplained at each noise level and time, and where a network is among them.

    A cell is pale where the next theory may be as good: where the 95 % interval of the difference contains 0.

    Args:
        runs: Run folders, each with a row of panels for each of its pools.
        path: Where to write the picture.

    Raises:
        UserError: If a folder has no measurements, or no theory was compared with.
    """
    return draw_maps(_files(runs), path)


def draw_theories_now(runs: Sequence[Path], path: Path) -> Path:
    """What a run shows while it goes on: the newest shares and the map so far, on held-out images if there are any.

    Args:
        runs: Run folders.
        path: Where to write the picture.

    Raises:
        UserError: If a folder has no measurements, or no theory was compared with.
    """
    return draw_maps(_files(runs), path, now=True)


def draw_maps(sets: Mapping[str, Sequence[Path]], path: Path, now: bool = False) -> Path:
    """`draw_theory_times` for files of measurements, in the order of time, by title.

    Args:
        sets: The files.
        path: Where to write the picture.
        now: Whether one pool of each is enough, with what theories leave at the end beside its map.
    """
    read = {title: [_read(file, file.stat().st_mtime_ns) for file in files] for title, files in sets.items()}
    rows = [(title, times, pool) for title, times in read.items() for pool in compared(*times)[1]]
    if now:
        rows = [row for row in rows if row[2] == "heldout"] or rows[:1]
    if not rows:
        raise UserError(f"expected values of theories in {', '.join(sets)}, found none")
    every = [measurement for times in read.values() for measurement in times]
    places, looks = _places(every), _looks(compared(*every)[0])
    widths = [*([1] if now else []), 2, *(1 for _ in places)]
    figure = Figure(figsize=(4 * sum(widths), 3.8 * len(rows)), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    grid = figure.subplots(len(rows), len(widths), squeeze=False, width_ratios=widths)
    for (title, times, pool), (*shares, best) in zip(rows, grid[:, : 2 if now else 1], strict=True):
        _draw_map(best, times, pool, looks, told=not now)
        best.set_title(f"{title}, {pool}: least unexplained by", loc="left", fontsize=10, fontweight="bold")
        for axes in shares:
            _draw_shares(axes, times[-1], pool, looks)
            axes.set_title(f"{title}{at_time(times[-1].kimg)}, {pool}", loc="left", fontsize=10, fontweight="bold")
    for (_, times, pool), rest in zip(rows, grid[:, 2 if now else 1 :], strict=True):
        for entry, axes in zip(places, rest, strict=True):
            _draw_over_time(axes, times, pool, entry)
    return save(figure, path)


def _files(runs: Sequence[Path]) -> dict[str, list[Path]]:
    return {title: measurement_files(run) for title, run in zip(names(runs), runs, strict=True)}


def draw_errors(
    sigmas: Sequence[float], errors: Mapping[str, tuple[np.ndarray, np.ndarray]], shown: Sequence[str], path: Path
) -> Path:
    """Draw errors of theories over those of D_G against the noise level.

    Args:
        sigmas: Noise levels (S,).
        errors: Values and standard errors (S,) by the names of theories, D_G's among them.
        shown: Those that are drawn.
        path: Where to write the picture.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=DPI)
    axes = figure.add_subplot()
    gaussian = errors["gaussian"][0]
    for name, (colour, style) in _looks(shown).items():
        value, se = (part / gaussian for part in errors[name])
        axes.plot(sigmas, value, color=colour, linestyle=style, linewidth=1.5, marker=".", label=_title(name))
        axes.fill_between(sigmas, value - 2 * se, value + 2 * se, color=colour, alpha=0.15, linewidth=0)
    _against_sigma(axes, "held-out error over $D_G$'s (cut at 1/4 and 4)")
    _as_ratio(axes)
    return save(figure, path)


def draw_theory_samples(samples: Mapping[str, np.ndarray], path: Path) -> Path:
    """Draw samples (n, C, H, W), uint8, of theories from the same latents, a row each."""
    figure = Figure(figsize=(7, 0.6 * len(samples) + 0.4), layout="constrained", dpi=DPI)
    axes = figure.add_subplot()
    draw_tiles(axes, list(samples.values()), [_title(name) for name in samples])
    return save(figure, path)


def has_theories(file: Path) -> bool:
    """Whether a measurement has values of theories."""
    return bool(compared(_read(file, file.stat().st_mtime_ns))[1])


@lru_cache(maxsize=256)
def _read(file: Path, _written: int) -> Measurement:
    """A measurement; read once by a process that draws after each."""
    return averaged(read_measurement(file))


def _places(measurements: Sequence[Measurement]) -> list[Entry]:
    """What says where a network is among theories, of what was measured."""
    logged = {take_apart(key).entry for measurement in measurements for key in measurement.values}
    return [entry for entry in (catalogue.BETWEEN, catalogue.LOCAL_SCALE) if entry.name in logged]


def _looks(theories: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line of each theory."""
    others = [name for name in theories if name not in SIGNS]
    looks = {name: (OTHERS[i % len(OTHERS)], STYLES[i // len(OTHERS) % len(STYLES)]) for i, name in enumerate(others)}
    return {name: SIGNS.get(name) or looks[name] for name in theories}


def _title(name: str) -> str:
    sign = THEORY_TITLES.get(name)
    return f"${sign}$" if sign else plain_text(name)


def _draw_shares(axes: Axes, measurement: Measurement, pool: str, looks: Mapping[str, tuple[str, str]]) -> None:
    lines = [(unexplained(name).name, _title(name), *look) for name, look in looks.items()]
    lines.append((catalogue.BETWEEN_UNEXPLAINED.name, "nearest $D_h$", "black", "-."))
    for name, title, colour, style in lines:
        _line(axes, measurement, at_each_level(measurement, name, pool), title, colour, style)
    r2, half = at_each_level(measurement, catalogue.R2.name, pool)
    _line(axes, measurement, (1 - r2, half), "any affine map, at best", "0.6", "-")
    _against_sigma(axes, "share of the network's variance\nthat is not explained")


def _draw_errors(axes: Axes, measurement: Measurement, pool: str, looks: Mapping[str, tuple[str, str]]) -> None:
    """Errors over D_G's: those of a network, of theories, and of the best of them."""
    gaussian, _ = at_each_level(measurement, catalogue.GAUSSIAN_MSE.name, pool)
    if not np.isfinite(gaussian).any():
        axes.set_axis_off()
        return
    lines = [
        (catalogue.theory_entries(name)[2].name, _title(name), *look)
        for name, look in looks.items()
        if name not in SIGNS
    ]
    lines += [
        (catalogue.EMPIRICAL_MSE.name, "$D_M$", *SIGNS["empirical"]),
        (catalogue.BEST_MSE.name, "best theory", "black", ":"),
        (catalogue.MSE.name, "network", "black", "-"),
    ]
    for name, title, colour, style in lines:
        value, half = at_each_level(measurement, name, pool)
        _line(axes, measurement, (value / gaussian, half / gaussian), title, colour, style)
    axes.axhline(1, color=SIGNS["gaussian"][0], linestyle="--", linewidth=1.3, label="$D_G$")
    _against_sigma(axes, "denoising error over $D_G$'s\n(cut at 1/4 and 4)")
    _as_ratio(axes)


def _as_ratio(axes: Axes) -> None:
    axes.set_ylim(1 / RATIO, RATIO)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_place(axes: Axes, measurement: Measurement, pool: str, entry: Entry) -> None:
    value, half = at_each_level(measurement, entry.name, pool)
    if not np.isfinite(value).any():
        axes.set_axis_off()
        return
    half = np.nan_to_num(half)
    axes.plot(measurement.sigmas, value, color="black", marker="o", markersize=4, linewidth=1.5)
    axes.fill_between(measurement.sigmas, value - half, value + half, color="black", alpha=0.15, linewidth=0)
    _scale(axes, entry)
    axes.set_xscale("log")
    axes.minorticks_off()  # which take most of the time
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
    bare(axes)


def _draw_map(
    axes: Axes, times: Sequence[Measurement], pool: str, looks: Mapping[str, tuple[str, str]], told: bool
) -> None:
    """A column for each measurement, a row for each noise level, the largest above; with shares in cells if `told`."""
    sigmas = sorted(times[-1].sigmas, reverse=True)
    image = np.ones((len(sigmas), len(times), 4))
    seen = set[str]()
    for column, measurement in enumerate(times):
        names = compared(measurement)[0]
        for row, sigma in enumerate(sigmas):
            found = best_theory(measurement, pool, sigma, names)
            if found is None:
                continue
            if found.share < 1:
                seen.add(found.name)
                image[row, column] = (*to_rgb(looks[found.name][0]), SURE if found.sure else UNSURE)
            if told and len(times) <= TEXTS:  # texts take half of the time
                axes.text(column, row, f"{found.share:.2g}", ha="center", va="center", fontsize=7)
    axes.imshow(image, aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(sigmas)), [f"{sigma:.3g}" for sigma in sigmas], fontsize=8)
    axes.set_xticks(range(len(times)), [f"{measurement.kimg:.3g}" for measurement in times], fontsize=8)
    axes.set_xlabel("kimg; pale: another may explain as much; white: none explains any of it", fontsize=9)
    axes.set_ylabel("noise level $\\sigma$", fontsize=9)
    handles = [Patch(color=looks[name][0], alpha=SURE, label=_title(name)) for name in looks if name in seen]
    if handles:
        axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_over_time(axes: Axes, times: Sequence[Measurement], pool: str, entry: Entry) -> None:
    """A line for each noise level of the intermediate band."""
    sigmas = [times[-1].sigmas[i] for i in in_band(times[-1].sigmas)]
    if not any(entry.on(pool, sigma) in measurement.values for measurement in times for sigma in sigmas):
        axes.set_axis_off()
        return
    kimg = np.array([measurement.kimg for measurement in times])
    for sigma, colour in zip(sigmas, shades(len(sigmas)), strict=True):
        value, half = over_time(times, entry.on(pool, sigma))
        axes.plot(kimg, value, color=colour, marker="o", markersize=3, linewidth=1.4, label=f"{sigma:.3g}")
        half = np.nan_to_num(half)
        axes.fill_between(kimg, value - half, value + half, color=colour, alpha=0.12, linewidth=0)
    _scale(axes, entry)
    against_time(axes, list(kimg))
    axes.legend(frameon=False, fontsize=7, title="$\\sigma$", title_fontsize=8)
    bare(axes)


def _scale(axes: Axes, entry: Entry) -> None:
    """The vertical axis of where a network is among theories."""
    if entry is catalogue.BETWEEN:
        axes.set_ylim(-0.04, 1.04)
        axes.set_ylabel("h of the nearest $D_h$: 0 is $D_M$, 1 is $D_G$", fontsize=9)
    else:
        axes.set_ylim(bottom=0)
        axes.set_ylabel("window k of the nearest local machine", fontsize=9)


def _line(
    axes: Axes,
    measurement: Measurement,
    values: tuple[np.ndarray, np.ndarray],
    title: str,
    colour: str,
    style: str,
) -> None:
    value, half = values
    if not np.isfinite(value).any():
        return
    shown = np.where(value > LEAST, value, np.nan)
    axes.plot(measurement.sigmas, shown, color=colour, linestyle=style, linewidth=1.5, marker=".", label=title)
    half = np.nan_to_num(half)
    low, high = np.maximum(value - half, LEAST), np.maximum(value + half, LEAST)
    axes.fill_between(measurement.sigmas, low, high, color=colour, alpha=0.15, linewidth=0)


def _against_sigma(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()  # which take most of the time
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
    axes.set_ylabel(label, fontsize=9)
    axes.legend(frameon=False, fontsize=7, ncols=2)
    bare(axes)
