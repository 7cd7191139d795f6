"""Figure 1: the paper's cosine and R2 against the noise level for each N; GL score and memorised samples."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import Study
from gaussbias.analysis.studies import value_of
from gaussbias.figures.atlas.axes import against_sigma, against_sizes, draw_study_figure, finish, line, panels, shades
from gaussbias.noise import sigma_of

SCORES = (
    (catalogue.GL_SCORE.name, "samples", "-", "#0072B2"),
    (catalogue.GL_SCORE_HELDOUT.name, "real held-out images", "--", "#000000"),
    (catalogue.GL_SCORE_GAUSSIAN.name, "samples of $D_G$", ":", "#009E73"),
)


def draw_sizes(study: Study, folder: Path) -> list[Path]:
    """Draw Figure 1 of a study."""
    return draw_study_figure(sizes_figure(study), folder, f"figure1_{study.name}")


def sizes_figure(study: Study) -> Figure:
    """The paper's cosine and R2 of the affine fit against sigma for each N; GL and memorised against N."""
    width = study.main_width()
    sizes = study.ended_sizes(width)
    figure, (cosine, r2, score, memorized) = panels(4)
    for place, (size, colour) in enumerate(zip(sizes, shades(len(sizes)), strict=True)):
        rows = [run.rows[-1] for run in study.ended(size, width)]
        for axes, name in ((cosine, catalogue.COSINE.on("heldout")), (r2, catalogue.R2.on("heldout"))):
            levels = levels_of(rows, name)
            values = [value_of(rows, f"{name}/{end}") for _, end in levels]
            line(axes, [sigma for sigma, _ in levels], values, colour, f"$N$ = {size:,}", place=place)
    reference = [run.rows[-1] for size in sizes for run in study.ended(size, width)]
    levels = levels_of(reference, catalogue.GAUSSIAN_COSINE.on("heldout"))
    exact = [value_of(reference, f"{catalogue.GAUSSIAN_COSINE.on('heldout')}/{end}").mean for _, end in levels]
    cosine.plot([sigma for sigma, _ in levels], exact, color="black", linestyle=":", label="$D_G$ (affine)")
    for key, label, style, colour in SCORES:
        line(score, sizes, [study.value(key, size, width) for size in sizes], colour, label, style)
    shares = [study.value(catalogue.MEMORIZED_FRACTION.name, size, width) for size in sizes]
    line(memorized, sizes, shares, "#D55E00")
    for axes in (cosine, r2):
        against_sigma(axes)
    for axes in (score, memorized):
        against_sizes(axes, sizes)
    finish(cosine, "Cosine, held-out", "cosine of $D(ax_1+bx_2)$\nand $aD(x_1)+bD(x_2)$", legend=True)
    finish(r2, "Affine share, held-out", "$R^2$ of the affine fit")
    finish(score, "GL score", "distance to nearest\ntraining image / norm", legend=True)
    finish(memorized, "Memorised samples", "fraction")
    score.set_ylim(bottom=0)
    memorized.set_ylim(-0.03, 1.03)
    figure.suptitle(f"{study.title}, {width} channels", fontsize=10)
    return figure


def levels_of(rows: list[dict[str, float]], name: str) -> list[tuple[float, str]]:
    """The noise levels at which rows have a value, ascending, with the ends of its keys."""
    ends = {key.removeprefix(f"{name}/") for row in rows for key in row if key.startswith(f"{name}/sigma_")}
    return sorted((sigma_of(end), end) for end in ends if not end.endswith("_se"))
