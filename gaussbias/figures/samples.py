"""Samples of a measurement above their references, from `samples/*.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors import safe_open

from gaussbias.figures.style import DPI, at_time, names, plain, save
from gaussbias.history import timed_files
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

ROWS = (
    ("network", "network"),
    ("nearest", "nearest training\nimage"),
    ("gaussian", "Gaussian $D_G$"),
    ("empirical", "memoriser $D_M$"),
)
PATH_ROWS = (("network_path", "network"), ("gaussian_path", "$D_G$"), ("empirical_path", "$D_M$"))
THEORY, THEORY_PATH = "by/", "path_by/"
"""Before the names of theories: their samples, and what they denoise on the way to them."""
MOST = 1000
"""Pictures in a row, at most."""
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
    sets = [read_samples(file) for file in files]
    heights = [3.7 + len(theories(tensors)) for *_, tensors in sets]
    figure = Figure(figsize=(12, sum(heights)), layout="constrained", dpi=DPI)
    grid = figure.subplots(len(sets), 2, squeeze=False, height_ratios=heights)
    titles = names([file.absolute().parent.parent for file in files])
    for row, (name, (kimg, sigmas, label, tensors)) in enumerate(zip(titles, sets, strict=True)):
        samples, paths = grid[row]
        further = theories(tensors)
        keys = [*ROWS, *((THEORY + name, plain(name)) for name in further)]
        draw_tiles(samples, [tensors[key] for key, _ in keys], [label, *(other for _, other in keys[1:])])
        samples.set_title(f"{name}{at_time(kimg)}: samples from the same latents", loc="left", fontsize=10)
        levels = np.unique(np.linspace(0, len(sigmas) - 1, min(COLUMNS, len(sigmas))).round().astype(int))
        keys = [*PATH_ROWS, *((THEORY_PATH + name, plain(name)) for name in further)]
        labels = [label, *(other for _, other in keys[1:])]
        along = {title: tensors[key][levels] for title, (key, _) in zip(labels, keys, strict=True)}
        draw_paths(paths, along, [f"{sigmas[i]:.2g}" for i in levels])
        paths.set_title("denoised images along the sampling path", loc="left", fontsize=10)
    return save(figure, path)


def draw_paths(axes: Axes, paths: Mapping[str, np.ndarray], levels: Sequence[str]) -> None:
    """Images (S, n, C, H, W) along sampling paths from n latents, by title, a column for each named noise level."""
    rows, labels = [], []
    for sample in range(next(iter(paths.values())).shape[1]):
        rows += [images[:, sample] for images in paths.values()]
        labels += list(paths)
    draw_tiles(axes, rows, labels)
    size = rows[0].shape[-1] + 1
    axes.set_xticks([i * size + size / 2 - 1 for i in range(len(levels))], levels)
    axes.set_xlabel("noise level $\\sigma$ (standard deviation, data units)", fontsize=9)


def draw_tiles(axes: Axes, rows: list[np.ndarray], labels: list[str]) -> None:
    """Rows of images (n, C, H, W), uint8 or any numbers, with a label each."""
    if any(row.dtype != np.uint8 for row in rows):
        rows = _stretched(rows)
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


def _stretched(rows: list[np.ndarray]) -> list[np.ndarray]:
    """Numbers as pixels, from the 0.5th percentile of all to the 99.5th."""
    low, high = np.percentile(np.concatenate([row.ravel() for row in rows]), (0.5, 99.5))
    return [((row - low) * (255 / max(high - low, 1e-12))).round().clip(0, 255).astype(np.uint8) for row in rows]


def read_samples(file: Path) -> tuple[float, list[float], str, dict[str, np.ndarray]]:
    """The time in kimg, the sampler's noise levels, what the denoiser is, and the pictures by name."""
    try:
        with safe_open(file, "numpy") as opened:
            about = opened.metadata()
            names = [key.removeprefix(THEORY) for key in list(opened.keys()) if key.startswith(THEORY)]
            rows = [*(key for key, _ in ROWS), *(THEORY + name for name in names)]
            paths = [*(key for key, _ in PATH_ROWS), *(THEORY_PATH + name for name in names)]
            tensors = {key: opened.get_tensor(key) for key in (*rows, *paths)}
            sigmas = [float(sigma) for sigma in json.loads(about["sigmas"])]
            wrong = [key for key in rows if tensors[key].ndim != 4]
            wrong += [key for key in paths if tensors[key].ndim != 5 or len(tensors[key]) != len(sigmas)]
            shapes = {tensors[key].shape for key in rows} | {tensors[key].shape[1:] for key in paths[1:]}
            if len({shape[-3:] for shape in shapes}) > 1 or len({tensors[key].shape for key in rows}) > 1:
                raise ValueError("pictures of other sizes")
            if any(0 in shape for shape in shapes) or max(shape[0] for shape in shapes) > MOST:
                raise ValueError("no pictures, or too many")
            if wrong:
                raise ValueError(f"the shape of {', '.join(wrong)}")
            return float(about["kimg"]), sigmas, about.get("label", "network").replace("$", ""), tensors
    except Exception as error:  # what a file from elsewhere leads to has no base class
        raise UserError(f"expected samples of a measurement at {file}: {reason(error)}") from None


def theories(tensors: Mapping[str, np.ndarray]) -> list[str]:
    """The theories whose samples are there."""
    return [key.removeprefix(THEORY) for key in tensors if key.startswith(THEORY)]


def newest_samples(run: Path) -> Path | None:
    """The samples of the last measurement of a run."""
    files = timed_files(RunFolder(run).samples)
    return files[-1] if files else None
