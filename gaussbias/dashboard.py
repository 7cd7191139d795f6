"""`python -m gaussbias.dashboard`: the panels of a W&B project as code."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussbias.noise import in_band, karras_sigmas, sigma_name
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.signals import INTERRUPTED
from gaussbias.system.terminal import Parser, command, complain, say

NAME = "gaussbias"
PICTURES = "samples/grid"
WIDTH, HEIGHT, COLUMNS = 8, 6, 3
"""Of a panel, in W&B's grid of 24 columns."""
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


HEADLINE = (
    Panel("GL score", tuple(f"generalization/gl_score{end}" for end in ("", "_heldout", "_gaussian"))),
    Panel("Memorised samples, 95 %", tuple(f"generalization/memorized_fraction{end}" for end in ("", "_low", "_high"))),
    Panel("Samples against the Gaussian's: cosine", ("samples/gaussian_cosine",)),
    Panel("Distance on held-out images", ("gaussian/rmse/heldout", "empirical/rmse/heldout")),
    Panel("Linearity and cosine, held-out", ("linearity/affine_cosine/heldout", "linearity/cosine/heldout")),
    Panel(
        "Denoising error",
        ("denoising/mse/heldout", "denoising/mse/train", "denoising/gaussian_mse/heldout"),
        logarithmic=True,
    ),
    Panel("Frechet distance (PCA)", tuple(f"samples/frechet_pca{end}" for end in ("", "_gaussian", "_train"))),
    Panel("Training loss", ("train/loss",)),
)
LADDER = (
    Panel("Parts of the squared distance, held-out", ("ladder/affine/heldout", "ladder/nonlinear/heldout")),
    Panel("Parts of the squared distance, training images", ("ladder/affine/train", "ladder/nonlinear/train")),
    Panel("R2 of the affine fit", ("ladder/r2/heldout", "ladder/r2/train")),
    Panel("Position: 0 Gaussian, 1 memoriser", ("ladder/position/train",)),
    Panel("Weights of the affine fit to the Gaussian's", ("linear/weight_nmse/heldout",), logarithmic=True),
)
STOPPING = (
    Panel("Nearest to the Gaussian so far, kimg", ("stop/gaussian_gap_kimg",)),
    Panel("Last before memorisation so far, kimg", ("stop/memorization_kimg",)),
    Panel("Rules that would end the run", ("stop/gaussian_gap", "stop/memorization")),
    Panel("Distance to the Gaussian, held-out", ("gaussian/rmse/heldout",)),
    Panel("Memorised samples, lower end", ("generalization/memorized_fraction_low",)),
    Panel("Error on held-out images", ("denoising/mse/heldout",)),
)
COMPARED = (
    ("GL score", "generalization/gl_score"),
    ("Memorised samples", "generalization/memorized_fraction"),
    ("Samples against the Gaussian's", "samples/gaussian_cosine"),
    ("Distance to the Gaussian, held-out", "gaussian/rmse/heldout"),
    ("R2 of the affine fit, held-out", "ladder/r2/heldout"),
    ("Error on held-out images", "denoising/mse/heldout"),
)
COST = (
    Panel("Images a second", ("train/images_per_second",)),
    Panel("Share of time that is measuring", ("probes/share",)),
    Panel("Seconds of a measurement", ("probes/seconds",)),
)
LEVELS = (
    ("Distance to the Gaussian, held-out, sigma = {}", "gaussian/rmse/heldout"),
    ("R2 of the affine fit, held-out, sigma = {}", "ladder/r2/heldout"),
    ("Linearity, held-out, sigma = {}", "linearity/affine_cosine/heldout"),
)


def layout(sigmas: Sequence[float]) -> dict[str, tuple[Panel, ...]]:
    """The panels of each section, but for pictures.

    Args:
        sigmas: Noise levels of the runs; those of the intermediate band get panels of their own.
    """
    band = [sigmas[i] for i in in_band(sigmas)]
    return {
        "Headline": HEADLINE,
        "Error ladder": LADDER,
        "Data-set size": tuple(_compared(SIZE)),
        "Capacity": tuple(_compared(CAPACITY)),
        "Early stopping": STOPPING,
        "Noise levels": tuple(
            Panel(title.format(f"{sigma:.3g}"), (f"{key}/sigma_{sigma_name(sigma)}",))
            for title, key in LEVELS
            for sigma in band
        ),
        "Cost": COST,
    }


def _compared(axis: str) -> Iterator[Panel]:
    """Curves averaged over runs with one value of a key, and the last values against it."""
    for title, key in COMPARED:
        yield Panel(title, (key,), by=axis)
    for title, key in COMPARED:
        yield Panel(f"{title}, last", (key,), against=axis)


def workspace(project: str, entity: str, sigmas: Sequence[float]) -> Any:
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
                "expected the package wandb-workspaces, found none; pip install 'gaussbias[dashboard]' brings it"
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
            for name, shown in layout(sigmas).items()
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
        found: dict[str, Any] = json.loads(built._to_model().model_dump_json(by_alias=True, exclude_none=True))
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        return command("gaussbias.dashboard", lambda: _dashboard(arguments))
    except KeyboardInterrupt:
        complain("gaussbias.dashboard: interrupted")
        return INTERRUPTED


def _dashboard(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.dashboard",
        description="Make a workspace in a W&B project: headline curves, error ladder, size, capacity, early stopping.",
    )
    parser.add_argument("--project", required=True, help="W&B project, run.project")
    parser.add_argument("--entity", help="W&B entity; default: yours")
    parser.add_argument(
        "--sigmas", type=float, nargs="+", metavar="S", help="probes.sigmas of the runs; default: EDM's grid of 10"
    )
    parser.add_argument("--dry-run", action="store_true", help="write the specification instead, without network")
    parser.add_argument("--out", type=Path, default=Path("dashboard.json"), help="where --dry-run writes")
    options = parser.parse_args(arguments)
    sigmas = options.sigmas or karras_sigmas(10)
    if any(not sigma > 0 for sigma in sigmas):
        raise UserError(f"--sigmas: expected noise levels above 0, got {sigmas}")
    if options.dry_run:
        built = workspace(options.project, options.entity or "entity", sigmas)
        try:
            write(options.out, json.dumps(specification(built), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--out: cannot write {options.out}: {reason(error)}") from None
        count = sum(len(section.panels) for section in built.sections)
        say(f"{options.out}: {count} panels in {len(built.sections)} sections; nothing was sent")
        return 0
    say(_save(options.project, options.entity, sigmas))
    return 0


def _save(project: str, entity: str | None, sigmas: Sequence[float]) -> str:
    """Send the workspace to W&B; its address."""
    import wandb

    try:
        owner = entity or wandb.Api().default_entity
        if not owner:
            raise UserError("--entity: expected one, since this W&B account has no default")
        built = workspace(project, owner, sigmas).save()
        return f"{built.url}"
    except UserError:
        raise
    except Exception as error:  # no key, no network, no such project: what it raises has no base class
        raise UserError(
            f"W&B could not take the workspace ({reason(error)}); `wandb login` stores a key, --dry-run needs none"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
