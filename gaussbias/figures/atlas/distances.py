"""Figure 2: the distance of networks to their linear surrogate, the Gaussian and the memoriser; sampling paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import Record, Study, Value
from gaussbias.analysis.studies import value_of
from gaussbias.figures.atlas.axes import against_sigma, draw_study_figure, finish, line, panels
from gaussbias.figures.atlas.sizes import levels_of
from gaussbias.figures.samples import draw_paths
from gaussbias.figures.style import DPI
from gaussbias.figures.surrogate import PATHS, has_surrogate, read_surrogate

BASELINES = (("linear", "$D_L$", "#009E73"), ("gaussian", "$D_G$", "#0072B2"), ("empirical", "$D_M$", "#D55E00"))
TO_TEACHER = {
    "linear": catalogue.TEACHER_LINEAR,
    "gaussian": catalogue.TEACHER_GAUSSIAN,
    "empirical": catalogue.TEACHER_EMPIRICAL,
}
"""Distances of the teacher of a surrogate."""
TO_NETWORK = {
    "linear": catalogue.LINEAR_RMSE,
    "gaussian": catalogue.GAUSSIAN_RMSE,
    "empirical": catalogue.EMPIRICAL_RMSE,
}
"""Distances of a network."""


def compared_runs(study: Study) -> list[Record]:
    """The networks that have a surrogate; without any those of the fewest and of the most images."""
    runs = [run for run in study.runs if run.name in study.surrogates]
    if not runs:
        width = study.main_width()
        sizes = study.ended_sizes(width)
        runs = [study.ended(size, width)[0] for size in dict.fromkeys((sizes[0], sizes[-1]))]
    return sorted(runs, key=lambda run: (run.images, run.channels))


def distances(study: Study, run: Record) -> dict[str, list[tuple[float, Value]]]:
    """Distances on held-out images at each noise level to `linear`, `gaussian` and `empirical`.

    With a surrogate all three are means of roots (P, Eq. 10), `teacher/*_rmse`. Without one the distance to D_L is the
    root of the ladder's nonlinear part, which needs no fit; that of a root mean square is a little larger.
    """
    surrogate = study.surrogates.get(run.name)
    by_name = {}
    for name, _, _ in BASELINES:
        if surrogate is not None:
            rows, key = [surrogate.rows[-1]], TO_TEACHER[name].on("heldout")
        else:
            rows = [alike.rows[-1] for alike in study.ended(run.images, run.channels)]
            key = (catalogue.NONLINEAR if name == "linear" else TO_NETWORK[name]).on("heldout")
        pairs = [(sigma, value_of(rows, f"{key}/{end}")) for sigma, end in levels_of(rows, key)]
        by_name[name] = (
            [(sigma, _root(value)) for sigma, value in pairs] if key == catalogue.NONLINEAR.on("heldout") else pairs
        )
    return by_name


def draw_distances(study: Study, folder: Path) -> list[Path]:
    """Draw Figure 2 of a study."""
    return draw_study_figure(distances_figure(study), folder, f"figure2_{study.name}")


def distances_figure(study: Study) -> Figure:
    """A panel for each compared network: distances to D_L, D_G and D_M against sigma, held-out images."""
    runs = compared_runs(study)
    figure, grid = panels(len(runs), width=4.2)
    for axes, run in zip(grid, runs, strict=True):
        for place, (name, label, colour) in enumerate(BASELINES):
            pairs = distances(study, run)[name]
            line(axes, [s for s, _ in pairs], [v for _, v in pairs], colour, f"to {label}", place=place)
        against_sigma(axes)
        axes.set_ylim(bottom=0)
        finish(axes, f"$N$ = {run.images:,}, {run.channels} channels", "rms distance, held-out", legend=True)
    top = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        axes.set_ylim(top=top)
    figure.suptitle(study.title, fontsize=10)
    return figure


def draw_sampling_paths(study: Study, folder: Path) -> list[Path]:
    """Draw the denoised images along sampling paths of networks that have a surrogate, if there are any.

    Raises:
        UserError: If a surrogate's file cannot be read.
    """
    known: list[tuple[Record, list[float], dict[str, np.ndarray]]] = []
    for run in compared_runs(study):
        place = study.surrogates[run.name].folder if run.name in study.surrogates else None
        if place is not None and has_surrogate(place):
            sigmas, tensors = read_surrogate(place)
            known.append((run, sigmas, {label: tensors[f"path_{name}"][:, :2] for name, label in PATHS}))
    if not known:
        return []
    levels = len(known[0][1])
    figure = Figure(figsize=(len(known) * (0.62 * levels + 1.2), 0.62 * 8 + 1), layout="constrained", dpi=DPI)
    for axes, (run, sigmas, paths) in zip(np.atleast_1d(figure.subplots(1, len(known))), known, strict=True):
        draw_paths(axes, paths, [f"{sigma:.2g}" for sigma in sigmas])
        axes.set_title(f"$N$ = {run.images:,}: from the same latents", loc="left", fontsize=10, fontweight="bold")
    return draw_study_figure(figure, folder, f"figure2_paths_{study.name}")


def _root(value: Value) -> Value:
    mean, low, high = (max(end, 0.0) ** 0.5 for end in (value.mean, value.low, value.high))
    half = max(high - mean, mean - low)
    return Value(mean, half / 2, half, value.runs)
