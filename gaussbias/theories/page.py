"""What a comparison of theories leaves: a table of all values, a picture, and one page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from gaussbias import __version__
from gaussbias.catalogue import THEORY_TITLES
from gaussbias.figures.theories import draw_errors, draw_theory_samples
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write, write_rows
from gaussbias.system.html import bullets, document, picture, table
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import with_error
from gaussbias.tables.theories import Rows
from gaussbias.theories.comparing import Compared

PAGE, TABLE = "theories.html", "theories.csv"
CAVEATS = (
    "Errors are those on held-out images, which no theory has seen; their intervals cover the draws, not the choice of "
    "images.",
    "The best of a family was chosen on these draws: its error is a little too small where several are nearly equal.",
    "A network that does not beat the best of them has learnt nothing that a formula does not know "
    "(theory/best_mse of a run).",
)


def best_rows(compared: Compared) -> Rows:
    """A row for each family: the least error at each noise level, and whose it is."""
    groups: dict[str, list[str]] = {}
    for name, (group, _) in compared.families.items():
        groups.setdefault(group, []).append(name)
    rows: list[Sequence[str]] = []
    for group, members in groups.items():
        cells = []
        for level in range(len(compared.sigmas)):
            best = min(members, key=lambda name: float(compared.errors[name].value[level]))
            cells.append(f"{_told(compared, best, level)} {compared.families[best][1]}".strip())
        rows.append((_title(group), *cells))
    return ["family", *(f"{sigma:.3g}" for sigma in compared.sigmas)], rows


def write_page(compared: Compared, out: Path) -> tuple[Path, Path]:
    """Draw the pictures, and write `theories.csv` and `theories.html`.

    Raises:
        UserError: If something cannot be written.
    """
    figures = RunFolder(out).figures
    errors = {name: (error.value.numpy(), error.se.numpy()) for name, error in compared.errors.items()}
    drawn = draw_errors(compared.sigmas, errors, compared.best, figures / "errors.png")
    pictures = {name: value.numpy() for name, value in compared.samples.items()}
    tiles = draw_theory_samples(pictures, figures / "samples.png")
    head = ("theory", "family", "sigma", "mse", "mse_se")
    rows = [
        (name, compared.families[name][0], repr(sigma), repr(float(error.value[i])), repr(float(error.se[i])))
        for name, error in compared.errors.items()
        for i, sigma in enumerate(compared.sigmas)
    ]
    every = [
        (_title(name), *(_told(compared, name, level) for level in range(len(compared.sigmas))))
        for name in compared.errors
    ]
    levels = [f"{sigma:.3g}" for sigma in compared.sigmas]
    parts = [
        f"<p>{escape(compared.images)}; by gaussbias {__version__}. 0.364(9) is 0.364 with a standard error of 0.009. "
        "What each theory is: docs/theories.md.</p>",
        "<h2>The best of each family</h2>",
        "<p>Held-out error <code>||T - x0||^2 / d</code> at each noise level, and the number of the theory that has "
        "it: h of D_h, clusters of a mixture, pixels of a window, or width of the smoothing.</p>",
        table(*best_rows(compared)),
        picture(drawn, "errors against the noise level"),
        '<p class="caption">Errors over those of D_G, against the noise level: the theory of each family that is best '
        "in the mean over noise levels.</p>",
        "<h2>Samples</h2>",
        picture(tiles, "samples"),
        '<p class="caption">Samples of these theories from the same latents.</p>',
        "<h2>What to keep in mind</h2>",
        bullets([*compared.notes, *CAVEATS]),
        "<h2>Every theory</h2>",
        table(("theory", *levels), every),
    ]
    try:
        write_rows(out / TABLE, head, rows)
        write(out / PAGE, document("How far formulas get", parts))
    except OSError as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    return out / PAGE, out / TABLE


def _title(name: str) -> str:
    return THEORY_TITLES.get(name, name)


def _told(compared: Compared, name: str, level: int) -> str:
    error = compared.errors[name]
    return with_error(float(error.value[level]), float(error.se[level]))
