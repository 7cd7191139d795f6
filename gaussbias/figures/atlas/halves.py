"""Strong generalisation: samples of networks that were trained on disjoint halves, from the same latents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gaussbias.analysis import Similarity, Study, Value, combine
from gaussbias.figures.atlas.axes import against_sizes, draw_study_figure, finish, line, panels, shades
from gaussbias.figures.samples import draw_tiles
from gaussbias.figures.style import DPI

LABELS = ("network of S1", "network of S2", "Gaussian of S1", "Gaussian of S2")


def draw_halves(study: Study, similarities: Sequence[Similarity], folder: Path) -> list[Path]:
    """Draw the similarity of both halves' samples against N, and first samples of the fewest and the most images."""
    drawn = draw_study_figure(halves_figure(study, similarities), folder, f"halves_{study.name}")
    width = similarities[-1].channels
    alike = [similarity for similarity in similarities if similarity.channels == width]
    ends = [alike[0], alike[-1]] if len(alike) > 1 else alike
    figure = Figure(figsize=(5.8 * len(ends), 2.3), layout="constrained", dpi=DPI)
    for place, similarity in enumerate(ends):
        axes = figure.add_subplot(1, len(ends), place + 1)
        draw_tiles(axes, list(similarity.samples), list(LABELS))
        axes.set_title(f"$N$ = {similarity.images:,} each, {similarity.channels} channels", loc="left", fontsize=10)
    return drawn + draw_study_figure(figure, folder, f"halves_samples_{study.name}")


def halves_figure(study: Study, similarities: Sequence[Similarity]) -> Figure:
    """Cosines of paired samples against N, a line for each capacity, with those of the two Gaussians and of chance."""
    figure, (axes,) = panels(1, width=5.2, height=3.6)
    widths = sorted({similarity.channels for similarity in similarities})
    for place, (width, colour) in enumerate(zip(widths, shades(len(widths)), strict=True)):
        alike = [similarity for similarity in similarities if similarity.channels == width]
        sizes = sorted({similarity.images for similarity in alike})
        line(axes, sizes, [of_size(alike, n) for n in sizes], colour, f"networks, {width} channels", place=place)
        if place == len(widths) - 1:
            for name, style, shade, label in (
                ("gaussian", ":", "black", "the two Gaussians"),
                ("chance", "--", "0.6", "other latents"),
            ):
                means = [of_size(alike, n, name).mean for n in sizes]
                axes.plot(sizes, means, color=shade, linestyle=style, label=label)
    against_sizes(axes, sorted({similarity.images for similarity in similarities}))
    axes.set_ylim(top=1.03)
    finish(axes, f"{study.title}: S1 and S2", "cosine of samples about the mean", legend=True)
    return figure


def of_size(similarities: Sequence[Similarity], images: int, name: str = "cosine") -> Value:
    """The mean of a cosine over pairs of runs of one size."""
    alike = [similarity for similarity in similarities if similarity.images == images]
    errors = [similarity.se if name == "cosine" else float("nan") for similarity in alike]
    return combine([getattr(similarity, name) for similarity in alike], errors)
