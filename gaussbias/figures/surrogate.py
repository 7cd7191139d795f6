"""The pictures of Li, Dai and Qu 2024 (Figures 2 and 4, arXiv 2410.24060) for one network, from its surrogate's run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open

from gaussbias import catalogue
from gaussbias.figures.ladder import at_each_level
from gaussbias.figures.samples import draw_paths
from gaussbias.figures.style import COLOURS, DPI, bare, save
from gaussbias.history import Measurement, measurement_files, read_measurement
from gaussbias.noise import BAND
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

DISTANCES = (
    (catalogue.TEACHER_LINEAR, "to the surrogate $D_L$", COLOURS[2]),
    (catalogue.TEACHER_GAUSSIAN, "to the Gaussian $D_G$", COLOURS[0]),
    (catalogue.TEACHER_EMPIRICAL, "to the memoriser $D_M$", COLOURS[1]),
)
PATHS = (("network", "network"), ("linear", "$D_L$"), ("gaussian", "$D_G$"), ("empirical", "$D_M$"))
SHOWN_LEVELS = 3
"""Noise levels whose singular vectors are shown."""


def has_surrogate(run: Path) -> bool:
    """Whether a run folder describes a surrogate."""
    return RunFolder(run).surrogate.exists()


def draw_surrogate(run: Path, folder: Path) -> list[Path]:
    """Draw `surrogate.png` and `surrogate_paths.png` of the run of a linear surrogate.

    Args:
        run: The run folder (`module.kind=linear`), finished.
        folder: Where to write the pictures.

    Raises:
        UserError: If the run has no surrogate.
    """
    sigmas, tensors = read_surrogate(run)
    fits = _fits(run)
    files = measurement_files(run)
    figure = Figure(figsize=(15, 7), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    grid = figure.subplots(2, 4)
    if files:
        _draw_distances(grid[0, 0], read_measurement(files[-1]))
    _draw_weights(grid[0, 1], sigmas, tensors, fits)
    band = [level for level, sigma in enumerate(sigmas) if BAND[0] <= sigma <= BAND[1]]
    shown = [band[i] for i in np.unique(np.linspace(0, len(band) - 1, min(SHOWN_LEVELS, len(band))).astype(int))]
    _draw_spectra(grid[0, 2], sigmas, tensors, shown)
    _draw_overlap(grid[0, 3], sigmas, tensors, band)
    for axes, level in zip(grid[1], shown, strict=False):
        _draw_vectors(axes, sigmas[level], tensors["vectors"][level])
    for axes in grid[1, len(shown) : -1]:
        axes.set_axis_off()
    _draw_asymmetry(grid[1, -1], sigmas, tensors)
    pictures = [save(figure, folder / "surrogate.png")]
    return [*pictures, _draw_paths(sigmas, tensors, folder / "surrogate_paths.png")]


def _draw_distances(axes: Axes, measurement: Measurement) -> None:
    pool = "heldout" if catalogue.TEACHER_LINEAR.on("heldout") in measurement.values else "train"
    for entry, title, colour in DISTANCES:
        value, half = at_each_level(measurement, entry.name, pool)
        axes.plot(measurement.sigmas, value, color=colour, marker=".", linewidth=1.5, label=title)
        axes.fill_between(measurement.sigmas, value - half, value + half, color=colour, alpha=0.2, linewidth=0)
    images = "held-out" if pool == "heldout" else "training"
    _title(axes, f"Distance of the network, {images} images", "rms, data units")
    axes.set_ylim(bottom=0)
    _against_sigma(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_weights(
    axes: Axes, sigmas: list[float], tensors: dict[str, np.ndarray], fits: list[dict[str, float]]
) -> None:
    axes.plot(sigmas, tensors["weight_nmse"], color=COLOURS[0], marker=".", label="of the fitted $W$")
    known = [fit for fit in fits if "weight_nmse_se" in fit]
    if known:
        places, values, errors, floor = (
            np.array([fit[name] for fit in known])
            for name in ("sigma", "weight_nmse", "weight_nmse_se", "weight_nmse_floor")
        )
        clear = values > 0
        half = np.minimum(2 * errors, 0.9 * np.abs(values))  # a logarithm ends at 0
        bars = np.stack([half, 2 * errors])[:, clear]
        axes.errorbar(
            places[clear],
            values[clear],
            bars,
            color="black",
            fmt="o",
            markersize=3,
            capsize=2.5,
            label="of $W_L$, unbiased",
        )
        floor = np.where(floor > 0, floor, np.nan)
        axes.plot(places, floor, color="0.4", linestyle=":", marker=".", label="error of the fitted $W$")
    axes.set_yscale("log")
    _title(axes, "Distance of the weights to $W_G$", "normalised squared error")
    axes.legend(frameon=False, fontsize=8)
    _against_sigma(axes)


def _draw_spectra(axes: Axes, sigmas: list[float], tensors: dict[str, np.ndarray], levels: list[int]) -> None:
    for colour, level in zip(COLOURS, levels, strict=False):
        places = np.arange(1, tensors["singular_values"].shape[1] + 1)
        name = f"$\\sigma = {sigmas[level]:.3g}$"
        axes.plot(places, tensors["singular_values"][level], color=colour, linewidth=1.5, label=name)
        axes.plot(places, tensors["shrinkage"][level], color=colour, linewidth=1.2, linestyle="--")
    axes.plot([], [], color="0.4", linestyle="--", label=r"$\lambda / (\lambda + \sigma^2)$")
    axes.set_xscale("log")
    _title(axes, "Singular values of $W_L$ and of $W_G$", "")
    axes.set_xlabel("place", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    bare(axes)


def _draw_overlap(axes: Axes, sigmas: list[float], tensors: dict[str, np.ndarray], band: list[int]) -> None:
    for colour, level in zip(COLOURS, band, strict=False):
        name = f"$\\sigma = {sigmas[level]:.3g}$"
        axes.plot(tensors["sizes"], tensors["overlap"][level], color=colour, marker=".", linewidth=1.4, label=name)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    _title(axes, "Leading subspaces, $W_L$ and data", "overlap")
    axes.set_xlabel("directions", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    bare(axes)


def _draw_vectors(axes: Axes, sigma: float, vectors: np.ndarray) -> None:
    shown = axes.imshow(vectors, vmin=0, vmax=1, cmap="Greys", interpolation="nearest")
    axes.figure.colorbar(shown, ax=axes, shrink=0.8)
    axes.set_title(f"$|U_L^T U|$ at $\\sigma = {sigma:.3g}$", loc="left", fontsize=10)
    axes.set_xlabel("principal components of the data", fontsize=9)
    axes.set_ylabel("singular vectors of $W_L$", fontsize=9)
    axes.tick_params(labelsize=8)


def _draw_asymmetry(axes: Axes, sigmas: list[float], tensors: dict[str, np.ndarray]) -> None:
    axes.plot(sigmas, tensors["asymmetry"], color=COLOURS[3], marker=".")
    axes.set_ylim(bottom=0)
    _title(axes, "Asymmetry of $W_L$", r"$||W - W^T|| \,/\, (2\, ||W||)$")
    _against_sigma(axes)


def _draw_paths(sigmas: list[float], tensors: dict[str, np.ndarray], path: Path) -> Path:
    along = {label: tensors[f"path_{name}"] for name, label in PATHS}
    count = len(PATHS) * tensors["path_network"].shape[1]
    figure = Figure(figsize=(0.85 * len(sigmas) + 1.5, 0.85 * count + 0.8), layout="constrained", dpi=DPI)
    axes = figure.subplots()
    draw_paths(axes, along, [f"{sigma:.3g}" for sigma in sigmas])
    axes.set_title("denoised images along sampling paths from the same latents", loc="left", fontsize=10)
    return save(figure, path)


def _title(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(label, fontsize=9)


def _against_sigma(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
    bare(axes)


def _fits(run: Path) -> list[dict[str, float]]:
    """What is known of the fit of each level; nothing if it cannot be read."""
    try:
        levels = json.loads((run / "linear.json").read_text())["levels"]
        return [{name: float(value) for name, value in level.items()} for level in levels]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def read_surrogate(run: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    """The noise levels of a surrogate's run, and what describes it.

    Raises:
        UserError: If the run has no surrogate.
    """
    file = RunFolder(run).surrogate
    try:
        with safe_open(file, "numpy") as opened:
            sigmas = [float(sigma) for sigma in json.loads(opened.metadata()["sigmas"])]
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no dict
            missing = {"weight_nmse", "vectors", "singular_values", *(f"path_{name}" for name, _ in PATHS)} - set(
                tensors
            )
            if missing:
                raise ValueError(f"no {', '.join(sorted(missing))}")
            return sigmas, tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"expected the run of a finished linear surrogate (module.kind=linear) at {file.parent}: {reason(error)}"
        ) from None
