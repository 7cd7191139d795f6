"""`python -m gaussbias.dashboard`: the panels of a W&B project as code."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussbias import catalogue
from gaussbias.analysis.theories import error_of, not_of_theories, theories_in, unexplained
from gaussbias.catalogue import Entry, likeness_entries, read_extra
from gaussbias.noise import in_band, karras_sigmas
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.terminal import Parser, command, say

NAME = "gaussbias"
PICTURES = catalogue.SAMPLE_GRID.name
WIDTH, HEIGHT, COLUMNS = 8, 6, 3
"""The size of a panel, in W&B's grid of 24 columns."""
SIZE, CAPACITY = "data.n_train", "model.channels"


@dataclass(frozen=True)
class Panel:
    """Curves of logged values against kimg; or, `against` a key of the configuration, the last value of each run.

    Attributes:
        title: Of the panel.
        keys: Logged names.
        by: A key of the configuration, by which runs are averaged, with their range.
        against: A key of the configuration.
        logarithmic: Whether the values have a logarithmic axis.
    """

    title: str
    keys: tuple[str, ...]
    by: str | None = None
    against: str | None = None
    logarithmic: bool = False


def _values(*entries: Entry) -> tuple[str, ...]:
    return tuple(entry.name for entry in entries)


def _on(pool: str, *entries: Entry) -> tuple[str, ...]:
    return tuple(entry.on(pool) for entry in entries)


HEADLINE = (
    Panel("GL score", _values(catalogue.GL_SCORE, catalogue.GL_SCORE_HELDOUT, catalogue.GL_SCORE_GAUSSIAN)),
    Panel(
        "Memorised samples, 95 %",
        _values(catalogue.MEMORIZED_FRACTION, catalogue.MEMORIZED_LOW, catalogue.MEMORIZED_HIGH),
    ),
    Panel("Samples against the Gaussian's: cosine", _values(catalogue.SAMPLE_COSINE)),
    Panel("Distance on held-out images", _on("heldout", catalogue.GAUSSIAN_RMSE, catalogue.EMPIRICAL_RMSE)),
    Panel("Linearity and cosine, held-out", _on("heldout", catalogue.AFFINE_COSINE, catalogue.COSINE)),
    Panel(
        "Denoising error",
        (catalogue.MSE.on("heldout"), catalogue.MSE.on("train"), catalogue.GAUSSIAN_MSE.on("heldout")),
        logarithmic=True,
    ),
    Panel("Frechet distance (PCA)", _values(catalogue.FRECHET, catalogue.FRECHET_GAUSSIAN, catalogue.FRECHET_TRAIN)),
    Panel("Training loss", _values(catalogue.LOSS)),
)
LADDER = (
    Panel("Parts of the squared distance, held-out", _on("heldout", catalogue.AFFINE, catalogue.NONLINEAR)),
    Panel("Parts of the squared distance, training images", _on("train", catalogue.AFFINE, catalogue.NONLINEAR)),
    Panel("R2 of the affine fit", (catalogue.R2.on("heldout"), catalogue.R2.on("train"))),
    Panel("Position: 0 Gaussian, 1 memoriser", _on("train", catalogue.POSITION)),
    Panel("Weights of the affine fit to the Gaussian's", _on("heldout", catalogue.WEIGHT_NMSE), logarithmic=True),
)
STOPPING = (
    Panel("Nearest to the Gaussian so far, kimg", _values(catalogue.GAUSSIAN_GAP_KIMG)),
    Panel("Last before memorisation so far, kimg", _values(catalogue.MEMORIZATION_KIMG)),
    Panel("Rules that would end the run", _values(catalogue.GAUSSIAN_GAP_STOP, catalogue.MEMORIZATION_STOP)),
    Panel("Distance to the Gaussian, held-out", _on("heldout", catalogue.GAUSSIAN_RMSE)),
    Panel("Memorised samples, lower end", _values(catalogue.MEMORIZED_LOW)),
    Panel("Error on held-out images", _on("heldout", catalogue.MSE)),
)
EARLY = (
    Panel(
        "Samples nearest to a training image",
        _values(catalogue.TRAIN_SHARE, catalogue.TRAIN_SHARE_NULL, catalogue.TRAIN_SHARE_GAUSSIAN),
    ),
    Panel("That share less its null, in standard errors", _values(catalogue.TRAIN_SHARE_Z)),
    Panel("Samples nearer than held-out images: 1/2 is neither", _values(catalogue.NEAREST_AUC)),
    Panel("Gap that the Gaussian does not explain", _values(catalogue.GAP_MSE)),
    Panel("That gap in standard errors, at its largest level", _values(catalogue.GAP_Z)),
    Panel("Training errors below held-out ones", _values(catalogue.GAP_AUC, catalogue.GAP_AUC_GAUSSIAN)),
    Panel(
        "Degrees of freedom",
        (catalogue.TRACE.on("heldout"), catalogue.TRACE.on("train"), catalogue.GAUSSIAN_TRACE.on("train")),
    ),
    Panel("Degrees of freedom, held-out less training", _values(catalogue.TRACE_GAP)),
    Panel("Consistency, held-out less training", _values(catalogue.CONSISTENCY_GAP)),
    Panel("Last before the gap opened so far, kimg", _values(catalogue.GAP_KIMG)),
    Panel("Last before samples drifted so far, kimg", _values(catalogue.NOVELTY_KIMG)),
    Panel("Rules of early signs that would end the run", _values(catalogue.GAP_STOP, catalogue.NOVELTY_STOP)),
)
COMPARED = (
    ("GL score", catalogue.GL_SCORE.name),
    ("Memorised samples", catalogue.MEMORIZED_FRACTION.name),
    ("Samples against the Gaussian's", catalogue.SAMPLE_COSINE.name),
    ("Distance to the Gaussian, held-out", catalogue.GAUSSIAN_RMSE.on("heldout")),
    ("R2 of the affine fit, held-out", catalogue.R2.on("heldout")),
    ("Error on held-out images", catalogue.MSE.on("heldout")),
)
COST = (
    Panel("Images a second", _values(catalogue.SPEED)),
    Panel("Share of time that is measuring", _values(catalogue.SHARE)),
    Panel("Seconds of a measurement", _values(catalogue.SECONDS)),
)
LEVELS = (
    ("Distance to the Gaussian, held-out, sigma = {}", catalogue.GAUSSIAN_RMSE),
    ("R2 of the affine fit, held-out, sigma = {}", catalogue.R2),
    ("Linearity, held-out, sigma = {}", catalogue.AFFINE_COSINE),
)


def layout(sigmas: Sequence[float], extra: Sequence[Entry] = ()) -> dict[str, tuple[Panel, ...]]:
    """The panels of each section, but for pictures.

    Args:
        sigmas: Noise levels of the runs; those of the intermediate band get panels of their own.
        extra: Entries that are not in the catalogue; with some there is a section more.
    """
    band = [sigmas[i] for i in in_band(sigmas)]
    others = not_of_theories(extra)
    further = {"Further values": tuple(_panel(entry) for entry in others)} if others else {}
    names = theories_in(extra)
    return {
        "Headline": HEADLINE,
        "Error ladder": LADDER,
        "Data-set size": tuple(_compared(SIZE)),
        "Capacity": tuple(_compared(CAPACITY)),
        "Early stopping": STOPPING,
        "Early signs": EARLY,
        "Noise levels": tuple(
            Panel(title.format(f"{sigma:.3g}"), (entry.on("heldout", sigma),))
            for title, entry in LEVELS
            for sigma in band
        ),
        "Cost": COST,
        **({"Theories": tuple(_theories(names, band))} if names else {}),
        **further,
    }


def _theories(names: Sequence[str], band: Sequence[float]) -> Iterator[Panel]:
    """What each theory leaves, the line to beat, where the network is between them, and how alike samples are."""
    shares = [unexplained(name) for name in names]
    for pool, title in (("heldout", "held-out"), ("train", "training images")):
        yield Panel(f"Not explained by theories, {title}", _on(pool, *shares), logarithmic=True)
        yield Panel(f"Between memoriser (0) and Gaussian (1), {title}", _on(pool, catalogue.BETWEEN))
    errors = catalogue.MSE, catalogue.BEST_MSE, *map(error_of, names)
    yield Panel(
        "Errors, and the least of theories, the line to beat: held-out", _on("heldout", *errors), logarithmic=True
    )
    yield Panel("Correlation of samples with theories'", _values(*(likeness_entries(name)[0] for name in names)))
    for sigma in band:
        keys = tuple(entry.on("heldout", sigma) for entry in shares)
        yield Panel(f"Not explained by theories, held-out, sigma = {sigma:.3g}", keys, logarithmic=True)


def _panel(entry: Entry) -> Panel:
    """The curve of an entry: on each of its pools of images, or of its own."""
    return Panel(entry.title, tuple(entry.on(pool) for pool in entry.shown_pools))


def _compared(axis: str) -> Iterator[Panel]:
    """Curves averaged over runs with one value of a key, and the last values against it."""
    for title, key in COMPARED:
        yield Panel(title, (key,), by=axis)
    for title, key in COMPARED:
        yield Panel(f"{title}, last", (key,), against=axis)


def workspace(project: str, entity: str, sigmas: Sequence[float], extra: Sequence[Entry] = ()) -> Any:
    """The workspace, not saved.

    Raises:
        UserError: Without the package wandb-workspaces.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses what pydantic deprecates
        try:
            import wandb_workspaces.reports.v2 as panels
            import wandb_workspaces.workspaces as workspaces
        except ImportError:
            raise UserError(
                "expected the package wandb-workspaces, found none; install it with pip install 'gaussbias[dashboard]'"
            ) from None

        def draw(panel: Panel, place: int) -> Any:
            where = panels.Layout(x=place % COLUMNS * WIDTH, y=place // COLUMNS * HEIGHT, w=WIDTH, h=HEIGHT)
            if panel.against is not None:
                x, y = panels.Config(panel.against), panels.SummaryMetric(panel.keys[0])
                return panels.ScatterPlot(title=panel.title, x=x, y=y, log_x=True, layout=where)
            grouped = {} if panel.by is None else {"groupby": panels.Config(panel.by), "groupby_rangefunc": "minmax"}
            return panels.LinePlot(
                title=panel.title, x="kimg", y=list(panel.keys), log_y=panel.logarithmic, layout=where, **grouped
            )

        sections = [
            workspaces.Section(
                name=name,
                panels=[draw(panel, place) for place, panel in enumerate(shown)],
                is_open=name in ("Headline", "Error ladder"),
            )
            for name, shown in layout(sigmas, extra).items()
        ]
        whole = panels.Layout(x=0, y=0, w=24, h=12)
        browser = panels.MediaBrowser(title="Samples and their references", media_keys=[PICTURES], layout=whole)
        sections.insert(1, workspaces.Section(name="Samples", panels=[browser], is_open=True))
        return workspaces.Workspace(
            entity=entity,
            project=project,
            name=NAME,
            sections=sections,
            settings=workspaces.WorkspaceSettings(x_axis="kimg", max_runs=100),
        )


def specification(built: Any) -> dict[str, Any]:
    """What W&B stores of a workspace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stored: dict[str, Any] = json.loads(built._to_model().model_dump_json(by_alias=True, exclude_none=True))
        return stored


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command("gaussbias.dashboard", lambda: _dashboard(arguments))


def _dashboard(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.dashboard",
        description="Make a workspace in a W&B project, "
        "with panels of the headline values, the error ladder, data-set size, capacity and early stopping.",
    )
    parser.add_argument("--project", required=True, help="the W&B project (run.project of its runs)")
    parser.add_argument("--entity", help="the W&B entity; default: that of your account")
    parser.add_argument(
        "--sigmas",
        type=float,
        nargs="+",
        metavar="S",
        help="noise levels of the runs (probes.sigmas); default: EDM's ten",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="run folders; what they measure beside the usual values gets panels",
    )
    parser.add_argument("--dry-run", action="store_true", help="write the workspace to a file instead of sending it")
    parser.add_argument("--out", type=Path, default=Path("dashboard.json"), help="the file that --dry-run writes")
    options = parser.parse_args(arguments)
    sigmas = options.sigmas or karras_sigmas(10)
    if any(not sigma > 0 for sigma in sigmas):
        raise UserError(f"--sigmas: expected noise levels above 0, got {sigmas}")
    for run in options.runs:
        if not run.is_dir():
            raise UserError(f"--runs: expected run folders, found none at {run}")
    extra = read_extra(*options.runs)
    if options.dry_run:
        built = workspace(options.project, options.entity or "entity", sigmas, extra)
        try:
            write(options.out, json.dumps(specification(built), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--out: cannot write {options.out}: {reason(error)}") from None
        count = sum(len(section.panels) for section in built.sections)
        say(f"{options.out}: {count} panels in {len(built.sections)} sections; nothing was sent")
        return 0
    say(_save(options.project, options.entity, sigmas, extra))
    return 0


def _save(project: str, entity: str | None, sigmas: Sequence[float], extra: Sequence[Entry]) -> str:
    """Send the workspace to W&B; its address."""
    import wandb

    try:
        owner = entity or wandb.Api().default_entity
        if not owner:
            raise UserError("--entity: expected one, since this W&B account has no default")
        built = workspace(project, owner, sigmas, extra).save()
        return f"{built.url}"
    except UserError:
        raise
    except Exception as error:  # no key, no network, no such project: what it raises has no base class
        raise UserError(
            f"W&B could not take the workspace ({reason(error)}); `wandb login` stores a key, --dry-run needs none"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
