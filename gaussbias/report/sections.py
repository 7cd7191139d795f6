"""The parts of a report: figures of a study with what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gaussbias.analysis import (
    Chosen,
    Crossing,
    Study,
    choices,
    fit_power_law,
    similarities,
    tau_mem,
)
from gaussbias.analysis.clock import Clock, clock
from gaussbias.analysis.labels import told_apart
from gaussbias.analysis.signs import signs_of
from gaussbias.analysis.variance import pairs
from gaussbias.figures import atlas as figures
from gaussbias.figures.theories import draw_maps, draw_theories
from gaussbias.report import claims, labels, signs, theories
from gaussbias.report.claims import Claim
from gaussbias.system.errors import UserError


@dataclass(frozen=True)
class Section:
    """A figure, or some that belong together.

    Attributes:
        title: Of the figure.
        study: Which runs it shows.
        caption: What is drawn, and what to keep in mind.
        pictures: Files, png and pdf.
        claims: What was claimed, and whether it held.
        table: Head and rows of what is shown below.
    """

    title: str
    study: str
    caption: str
    pictures: list[Path]
    claims: list[Claim] = field(default_factory=list)
    table: signs.Table | None = None


def sections(study: Study, folder: Path) -> tuple[list[Section], list[str]]:
    """Draw all figures of a study that its runs have the values for, and say what they show.

    Nothing is claimed while no run is finished.

    Returns:
        The sections, and why others are missing.
    """
    makers: tuple[Callable[[Study, Path], Section | None], ...] = (
        _sizes,
        _distances,
        _capacity,
        _time,
        _phases,
        _taus,
        _halves,
        _variance,
        _stops,
        _signs,
        _clock,
        _theories,
    )
    made, missing = [], []
    for make in makers:
        try:
            section = make(study, folder)
        except UserError as error:  # a damaged file of one run is no reason to show nothing
            missing.append(str(error))
            continue
        if section is not None and section.pictures:
            made.append(section if study.settled else replace(section, claims=[]))
    return made, missing


def across(studies: Sequence[Study], folder: Path) -> tuple[list[Section], list[str]]:
    """Draw what studies show together, and say it: networks with labels against those without.

    Returns:
        The sections, and why others are missing.
    """
    made, missing = [], []
    for compared in told_apart(studies):
        caption = (
            "Networks that are told the class of each image against the same ones that are not, on the same training "
            "images with the same seeds, up to the last time of both. A sample counts as memorised if the nearest "
            "training image is less than a third as far as the next one. With labels all other figures seek both among "
            "the images of the class, where the next one is farther; here they are sought among the images of any "
            "class, which is the rule without labels, and tau_mem (the lower end of the memorised share's 95 % "
            "interval passes 0.05) is by that rule too."
        )
        settled, title = compared.plain.settled and compared.told.settled, compared.told.title
        if not compared.measured:
            missing.append(f"{title}: its runs have no share of memorised samples among images of any class")
            continue
        said, table = (labels.claims(compared), labels.table(compared)) if settled else ([], None)
        drawn = figures.draw_labels(compared, folder)
        made.append(Section("With and without labels", title, caption, drawn, said, table))
    return made, missing


def _sizes(study: Study, folder: Path) -> Section:
    caption = (
        "The paper's cosine and R2 of the affine fit against the noise level for each number of training images, the "
        "GL score beside that of real held-out images and of the Gaussian's samples, and memorised samples (three "
        "times nearer to one training image than to any other). The dotted line is what the cosine gives for a "
        "perfectly affine denoiser. An "
        f"untrained network is nearly linear as well: read it beside the error. {claims.about_calibration(study)}"
    )
    pictures = figures.draw_sizes(study, folder)
    return Section("Figure 1: data-set size", study.title, caption, pictures, claims.about_sizes(study))


def _distances(study: Study, folder: Path) -> Section:
    fitted = any(run.name in study.surrogates for run in figures.compared_runs(study))
    of = "of the fitted surrogate" if fitted else "from the error ladder (a root mean square, without a fit)"
    caption = f"Distance of networks to the linear surrogate D_L ({of}), to the Gaussian D_G and to the memoriser D_M."
    pictures = figures.draw_distances(study, folder) + figures.draw_sampling_paths(study, folder)
    return Section("Figure 2: which denoiser it is", study.title, caption, pictures, claims.about_distances(study))


def _capacity(study: Study, folder: Path) -> Section:
    caption = (
        "The end of training against the width of the network, and samples from the same latents as the Gaussian's."
    )
    pictures = figures.draw_capacity(study, folder) + figures.draw_capacity_samples(study, folder)
    return Section("Figure 3: capacity", study.title, caption, pictures, claims.about_capacity(study))


def _time(study: Study, folder: Path) -> Section:
    caption = "The same against training time. All values belong to the averaged weights."
    pictures = figures.draw_time(study, folder) + figures.draw_time_samples(study, folder)
    return Section("Figure 3: training time", study.title, caption, pictures, claims.about_time(study))


def _phases(study: Study, folder: Path) -> Section:
    caption = (
        "Means over runs. tau_gen: the held-out error comes within 5 % of the smallest that the run reaches. tau_mem: "
        f"the lower end of the memorised fraction's 95 % interval passes 0.05. {claims.about_tau_gen(study)}"
    )
    return Section("Phase diagrams", study.title, caption, figures.draw_phases(study, folder))


def _taus(study: Study, folder: Path) -> Section | None:
    width = study.main_width()
    times: Mapping[int, list[Crossing]] = {
        size: [crossing for run in study.longest(size, width) if (crossing := tau_mem(run)) is not None]
        for size in study.sizes_at(width)
    }
    if not any(times.values()):
        return None
    law = fit_power_law(dict(times))
    caption = (
        "Each mark is a run, its time interpolated in log kimg between measurements; triangles are bounds of runs that "
        "had not passed at their end (up) or had passed when first measured (down), which the fit counts as such."
    )
    drawn = figures.draw_taus(study, law, folder)
    return Section("How long until it memorises", study.title, caption, drawn, claims.about_taus(law, times))


def _halves(study: Study, folder: Path) -> Section | None:
    alike = similarities(study.runs)
    if not alike:
        return None
    caption = (
        "Two networks trained on disjoint halves of the data, sampled from the same latents; cosines after subtracting "
        "the mean of both training sets. The two Gaussians: the same of what mean and covariance alone make."
    )
    drawn = figures.draw_halves(study, alike, folder)
    return Section("Strong generalisation", study.title, caption, drawn, claims.about_halves(alike))


def _variance(study: Study, folder: Path) -> Section | None:
    if not pairs(study.runs):
        return None
    from gaussbias.report import variance  # it needs torch, since networks are evaluated

    found = variance.compare(study)
    if not found:
        return None
    variance.write(found, folder.parent / f"variance_{study.name}.csv")
    caption = (
        "Two networks of disjoint halves on the same draws of held-out images: half of their mean squared difference "
        "is the variance V of a denoiser over training sets, the mean product of their errors its squared bias and "
        "what cannot be known, B; both add up to the error. Dotted: the same of the two Gaussian denoisers, what "
        "moments alone vary. Dashed: two seeds on the same images, what initialisation and order vary. Times are those "
        "of checkpoints that both runs keep (train.checkpoints_kept=all)."
    )
    drawn = figures.draw_variance(study, found, folder)
    return Section("Bias and variance", study.title, caption, drawn, variance.claims(found))


def _stops(study: Study, folder: Path) -> Section:
    chosen: Mapping[str, Sequence[Chosen]] = {run.name: choices(run) for run in study.runs}
    caption = (
        "What rules for early stopping would have kept in the same runs: gaussian_gap the weights nearest to D_G on "
        "held-out images, memorization the last before samples were memorised, gap and novelty the last before the "
        "gap between training and held-out images opened that D_G does not explain, and before samples drifted to "
        "the training images; against the smallest held-out error and training to the end."
    )
    drawn = figures.draw_stops(study, chosen, folder)
    return Section("Early stopping", study.title, caption, drawn, claims.about_stops(study, chosen))


def _signs(study: Study, folder: Path) -> Section | None:
    width = study.main_width()
    runs = [run for size in study.ended_sizes(width) for run in study.ended(size, width)]
    there = signs_of(runs)
    if not there:
        return None
    main = [sign for sign in there if sign.sigma is None]
    caption = (
        "When each sign is above its null (of samples, what new images have) by more than 3 standard errors at two "
        "measurements in a row, the first measurement with a memorised sample, and the one with the least error on "
        "held-out images. Times are those of measurements, in kimg, one for each run; > is a bound. late: runs with "
        "copies that the sign did not precede; alone: runs with the sign that had no copies by their end."
    )
    shown = signs.table(study, there)
    signs.write(shown, folder.parent / f"early_signs_{study.name}.csv")
    drawn = figures.draw_signs(study, main, folder)
    return Section("How early each sign is", study.title, caption, drawn, signs.claims(study, main), shown)


def _clock(study: Study, folder: Path) -> Section | None:
    width = study.main_width()
    clocks: list[Clock] = []
    for size in study.ended_sizes(width):
        found = clock(study.ended(size, width))
        clocks += [] if found is None else [found]
    if not clocks:
        return None
    caption = (
        "When the gain of a principal component came half of the way from the untrained network's to "
        "lam / (lam + sigma^2), at the noise level where most components can be timed; those that begin within a "
        "factor of two of their end are left out. Filled marks rise, open ones fall. Times of averaged weights lag."
    )
    drawn = figures.draw_clock(study, clocks, folder)
    return Section("The spectral clock", study.title, caption, drawn, claims.about_clocks(clocks))


def _theories(study: Study, folder: Path) -> Section | None:
    runs = theories.compared_runs(study)
    if not runs:
        return None
    files = theories.pictures_of(runs)
    caption = (
        "Which denoiser that can be written down leaves least of a network unexplained, at each noise level and time, "
        "for the first run of each N; pale where another one may leave as little, white where none explains any of it. "
        "Then, at the end, what each theory leaves and its error over that of D_G. The table is on held-out images, a "
        "value for each run."
    )
    drawn = []
    for kind in ("png", "pdf"):
        drawn.append(draw_maps(files, folder / f"theories_kimg_{study.name}.{kind}"))
        drawn.append(draw_theories([times[-1] for times in files.values()], folder / f"theories_{study.name}.{kind}"))
    table = theories.table(runs)
    return Section("Which formula explains the network", study.title, caption, drawn, theories.claims(runs), table)
