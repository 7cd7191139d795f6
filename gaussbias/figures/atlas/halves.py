"""Strong generalisation: samples of networks that were trained on disjoint halves, from the same latents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gaussbias.analysis import Similarity, Study, Value
from gaussbias.figures.atlas.axes import against_sizes, draw_study_figure, finish, line, panels, shades
from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import DPI

LABELS = ("network of S1", "network of S2", "Gaussian of S1", "Gaussian of S2")


def draw_halves(study: Study, found: Sequence[Similarity], folder: Path) -> list[Path]:
    """Draw the similarity of both halves' samples against N, and first samples of the fewest and the most images."""
    drawn = draw_study_figure(halves_figure(study, found), folder, f"halves_{study.name}")
    width = found[-1].channels
    alike = [one for one in found if one.channels == width]
    ends = [alike[0], alike[-1]] if len(alike) > 1 else alike
    figure = Figure(figsize=(5.8 * len(ends), 3), layout="constrained", dpi=DPI)
    for place, one in enumerate(ends):
        axes = figure.add_subplot(1, len(ends), place + 1)
        draw_tiles(axes, list(one.samples), list(LABELS))
        axes.set_title(f"$N$ = {one.images:,} each, {one.channels} channels", loc="left", fontsize=10)
    return drawn + draw_study_figure(figure, folder, f"halves_samples_{study.name}")


def halves_figure(study: Study, found: Sequence[Similarity]) -> Figure:
    """Cosines of paired samples against N, a line for each capacity, with those of the two Gaussians and of chance."""
    figure, (axes,) = panels(1, width=5.2, height=3.6)
    widths = sorted({one.channels for one in found})
    for place, (width, colour) in enumerate(zip(widths, shades(len(widths)), strict=True)):
        alike = [one for one in found if one.channels == width]
        sizes = [one.images for one in alike]
        values = [Value(one.cosine, float("nan"), one.half, 1) for one in alike]
        line(axes, sizes, values, colour, f"networks, {width} channels", place=place)
        if place == len(widths) - 1:
            axes.plot(sizes, [one.gaussian for one in alike], color="black", linestyle=":", label="the two Gaussians")
            axes.plot(sizes, [one.chance for one in alike], color="0.6", linestyle="--", label="other latents")
    against_sizes(axes, sorted({one.images for one in found}))
    axes.set_ylim(top=1.03)
    finish(axes, f"{study.title}: S1 and S2", "cosine of samples about the mean", legend=True)
    return figure
