"""What a lens leaves: figures, one table of all values, and one page."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path

from gaussbias import __version__, catalogue
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import SE, Entry, read_extra
from gaussbias.config import Config
from gaussbias.figures import draw_ladder, draw_samples, draw_surrogate
from gaussbias.figures.guidance import draw_guidance, has_guidance
from gaussbias.figures.lens import draw_levels, draw_numbers, draw_sample_rows
from gaussbias.figures.style import plain
from gaussbias.figures.theories import draw_maps, draw_theories, has_theories
from gaussbias.lens.results import Looked
from gaussbias.lens.strong import Strong
from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, reason, write
from gaussbias.system.html import bullets, document, picture, table
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import with_error
from gaussbias.tables.theories import theory_rows
from gaussbias.training.others import sides

PAGE = "lens.html"
TABLE = "lens.csv"
SHOWN = (
    ("GL score", catalogue.GL_SCORE.name),
    ("of real images", catalogue.GL_SCORE_HELDOUT.name),
    ("memorised", catalogue.MEMORIZED_FRACTION.name),
    ("to D_G, held-out", catalogue.GAUSSIAN_RMSE.on("heldout")),
    ("to D_M, held-out", catalogue.EMPIRICAL_RMSE.on("heldout")),
    ("to D_L, held-out", catalogue.LINEAR_RMSE.on("heldout")),
    ("linearity, held-out", catalogue.AFFINE_COSINE.on("heldout")),
    ("R2, held-out", catalogue.R2.on("heldout")),
    ("error, held-out", catalogue.MSE.on("heldout")),
    ("error, train", catalogue.MSE.on("train")),
    ("error of the best theory", catalogue.BEST_MSE.on("heldout")),
    ("between D_M (0) and D_G (1)", catalogue.BETWEEN.on("heldout")),
    ("samples: cosine with D_G's", catalogue.SAMPLE_COSINE.name),
    ("nearest to a training image", catalogue.TRAIN_SHARE.name),
    ("of new images", catalogue.TRAIN_SHARE_NULL.name),
    ("gap beyond D_G, z", catalogue.GAP_Z.name),
    ("Frechet distance", catalogue.FRECHET.name),
    ("of training images", catalogue.FRECHET_TRAIN.name),
)
SAMPLES = (
    ("GL score", catalogue.GL_SCORE.name),
    ("of real images", catalogue.GL_SCORE_HELDOUT.name),
    ("of D_G's samples", catalogue.GL_SCORE_GAUSSIAN.name),
    ("memorised", catalogue.MEMORIZED_FRACTION.name),
    ("cosine with D_G's", catalogue.SAMPLE_COSINE.name),
)
CAPTIONS = {
    "guidance": "What guidance adds for each unit of its weight, D(x, c) - D(x), against the noise level: how much of "
    "it the Gaussians of class and of all images explain, along the mean shift and along both signs of the contrast; "
    "and its size.",
    "samples": "Samples from the same latents, above those of the Gaussian denoiser D_G and of the memoriser D_M; of "
    "one checkpoint also the nearest training images, and denoised images on the way to the first two samples.",
    "ladder": "Against the noise level, a row for each pool: the squared distance to D_G in its affine and its "
    "nonlinear part; denoising errors; linearity; distances to D_G and to D_M.",
    "theories": "Denoisers that can be written down, against the noise level: the share of the network's variance that "
    "each leaves unexplained, and the least that any affine map could; errors over that of D_G; which D_h between D_M "
    "(0) and D_G (1) is nearest, and which window of the local machines.",
    "theories_kimg": "Which theory leaves least unexplained at each noise level and time. Pale: another one may leave "
    "as little, by the 95 % interval of the difference. White: none explains any of it.",
    "cycles": "Samples to which noise is added and that are sampled back, again and again: a network that memorises "
    "carries samples that are no copies yet to training images.",
    "leaks": "The samples that come closest to a training image, compared with the next one, above that image: "
    "d1 / d2, and the share of held-out images that come as close. measured/*_leaks.csv has all of them.",
    "surrogate": "The linear surrogate D_L, the affine map closest to the network: distances, weights, spectra.",
    "surrogate_paths": "Denoised images along the sampling paths of the network, of D_L, of D_G and of D_M.",
    "levels": "Distances and linearity against the noise level, on images that were held out if there are any.",
    "numbers": "What is one number for each checkpoint, with 95 % intervals.",
}
CAVEATS = (
    "Errors of denoisers' values cover the draws, not the choice of the images in a pool.",
    "Distances, linearity and R2 are means over sigma in 0.1 to 20.",
    "An untrained network is nearly linear as well: read linearity beside the error.",
)


@dataclass
class Report:
    """What goes on the page.

    Attributes:
        config: Images and draws.
        looked: The checkpoints.
        images: The training images, in words.
        notes: What to keep in mind, beside what always is.
        strong: Similarity of two networks, if that was asked for.
    """

    config: Config
    looked: Sequence[Looked]
    images: str
    notes: Sequence[str] = field(default_factory=list)
    strong: Strong | None = None


def write_page(report: Report, out: Path) -> Path:
    """Draw the figures, and write `lens.csv` and `lens.html`.

    Raises:
        UserError: If something cannot be read or written.
    """
    looked = report.looked
    parts = [
        f"<p>{_count(looked)} against {escape(report.images)}, by gaussbias {__version__}. 0.364(9) is 0.364 with a "
        "standard error of 0.009.</p>",
        _checkpoints(looked),
        "<h2>Values</h2>",
        _values(looked),
        "<h2>What to keep in mind</h2>",
        bullets([*report.notes, *CAVEATS]),
    ]
    if len(looked) > 1:
        parts += _together(looked, RunFolder(out).figures)
    if report.strong is not None:
        parts += _strong(report.strong)
    for result in looked:
        parts += _alone(result, report)
    title = f"gaussbias lens: {', '.join(result.subject.name for result in looked)}"
    try:
        write_table(looked, out / TABLE)
        write(out / PAGE, document(title, parts))
    except OSError as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    return out / PAGE


def write_table(looked: Sequence[Looked], file: Path) -> None:
    """One row for each checkpoint, with every value by its logged name."""
    keys = dict.fromkeys(key for result in looked for key in result.values)
    with (
        complete(file) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as opened,
    ):
        writer = csv.DictWriter(opened, ["checkpoint", "kind", "kimg", "parameters", *keys], lineterminator="\n")
        writer.writeheader()
        for result in looked:
            about = result.subject
            row = {"checkpoint": about.name, "kind": about.kind, "kimg": about.kimg, "parameters": about.parameters}
            writer.writerow(row | result.values)


def told(looked: Looked, key: str) -> str:
    """A value with its error, or nothing."""
    value = looked.values.get(key, math.nan)
    if not math.isfinite(value):
        return ""
    return with_error(value, looked.values.get(key + SE, 0.0))


def labels(looked: Sequence[Looked]) -> list[str]:
    """What tells checkpoints apart: their times, their sizes, or their names."""
    times, sizes = ([getattr(result.subject, name) for result in looked] for name in ("kimg", "parameters"))
    if None not in times and len(set(times)) == len(times):
        return [f"{time:g} kimg" for time in times]
    if len(set(sizes)) == len(sizes):
        return [f"{size / 1e6:.3g} M weights" for size in sizes]
    return [plain(result.subject.name) for result in looked]


def _count(looked: Sequence[Looked]) -> str:
    return "One checkpoint" if len(looked) == 1 else f"{len(looked)} checkpoints"


def _checkpoints(looked: Sequence[Looked]) -> str:
    rows = []
    for result in looked:
        about = result.subject
        kimg = "" if about.kimg is None else f"{about.kimg:g}"
        size = f"{about.parameters / 1e6:.2f} M" if about.parameters else ""
        notes = "; ".join(about.notes)
        rows.append((about.name, about.kind, sides(about.shape), size, kimg, about.denoiser.told_range(), notes))
    head = ("checkpoint", "what it is", "images", "weights", "kimg", "sigma", "of note")
    return table(head, rows)


def _values(looked: Sequence[Looked]) -> str:
    extra = not_of_theories(read_extra(*(result.folder for result in looked)))
    every = [*SHOWN, *((f"{title}{entry.title}", key) for entry in extra for title, key in _columns(entry))]
    shown = [(title, key) for title, key in every if any(told(result, key) for result in looked)]
    rows = [(result.subject.name, *(told(result, key) for _, key in shown)) for result in looked]
    return table(("checkpoint", *(title for title, _ in shown)), rows)


def _theories(result: Looked) -> list[str]:
    """A table of theories: what each leaves unexplained, its error, and how alike its samples are."""
    head, rows = theory_rows(read_extra(result.folder), "heldout", partial(told, result))
    return ["<p>Theories, on held-out images:</p>", table(head, rows)] if rows else []


def _columns(entry: Entry) -> list[tuple[str, str]]:
    """The columns of an entry that is not in the catalogue: what stands before its title, and the logged name."""
    return [(f"{pool}: " if pool else "", entry.on(pool)) for pool in entry.shown_pools]


def _together(looked: Sequence[Looked], folder: Path) -> list[str]:
    names = labels(looked)
    files = [draw_levels([result.measurement for result in looked], names, folder / "levels.png")]
    times = [result.subject.kimg for result in looked]
    sizes = [float(result.subject.parameters) for result in looked]
    known = [time for time in times if time is not None]
    for axis, label in ((known, "kimg (thousands of images seen)"), (sizes, "number of weights")):
        if len(set(axis)) == len(looked) and min(axis) > 0:
            files.append(draw_numbers([result.measurement for result in looked], axis, label, folder / "numbers.png"))
            break
    if len(set(known)) == len(looked) and has_theories(looked[0].measurement):
        ordered = sorted(looked, key=lambda result: result.subject.kimg or 0.0)
        files.append(draw_maps({"checkpoints": [one.measurement for one in ordered]}, folder / "theories_kimg.png"))
    files.append(draw_sample_rows([result.samples for result in looked], names, folder / "samples.png"))
    return ["<h2>Together</h2>", *(captioned(file, "all") for file in files)]


def captioned(file: Path, name: str) -> str:
    """A picture, with what it shows."""
    return f'{picture(file, f"{name}, {file.stem}")}<p class="caption">{CAPTIONS[file.stem]}</p>'


def _strong(strong: Strong) -> list[str]:
    a, b = strong.names[:2]
    text = (
        f"{strong.samples} samples from the same latents, cosines after subtracting the mean of both training sets: "
        f"{a} and {b} {with_error(float(strong.cosine[0, 1]), float(strong.se[0, 1]))}; the two Gaussians "
        f"{with_error(float(strong.cosine[2, 3]), float(strong.se[2, 3]))}; networks and the Gaussians of their own "
        f"images {with_error(float(strong.cosine[0, 2]), float(strong.se[0, 2]))} and "
        f"{with_error(float(strong.cosine[1, 3]), float(strong.se[1, 3]))}; samples of the networks from different "
        f"latents {strong.chance:.3f}."
    )
    caption = f'<p class="caption">{escape(text)}</p>'
    return ["<h2>Strong generalisation</h2>", picture(strong.picture, "similarity"), caption]


def _alone(result: Looked, report: Report) -> list[str]:
    folder = RunFolder(result.folder).figures
    files = [
        draw_samples([result.samples], folder / "samples.png"),
        draw_ladder([result.measurement], folder / "ladder.png"),
    ]
    if has_theories(result.measurement):
        files.append(draw_theories([result.measurement], folder / "theories.png"))
    if has_guidance(result.measurement):
        files.append(draw_guidance([result.measurement], folder / "guidance.png"))
    files += [path for name in ("cycles.png", "leaks.png") if (path := folder / name).exists()]
    if result.surrogate is not None:
        files += draw_surrogate(result.surrogate, folder)
    sigmas = report.config.probes.sigmas or []
    rows = [
        (f"{sigma:.3g}", f"{taken:.6g}", "" if said is None else f"{said:.5g}")
        for sigma, taken, said in result.subject.levels(sigmas)
    ]
    return [
        f"<h2>{escape(result.subject.name)}</h2>",
        *(captioned(file, result.subject.name) for file in files),
        *_theories(result),
        bullets(result.audits),
        "<p>Noise levels: what was asked for, what the network takes it for, and what it is told (c_noise, or the "
        "time step).</p>",
        table(("sigma", "taken for", "told"), rows),
    ]
