"""`python -m gaussbias.report FOLDER...`: what runs over size, capacity and time show, in figures and words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussbias.analysis import Record, Study, collect, studies, write_table
from gaussbias.report.page import page
from gaussbias.report.sections import Section, across, sections
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write

__all__ = ["Section", "report"]


def report(folders: Sequence[Path], out: Path) -> tuple[Path, list[Section], dict[Path, str]]:
    """Collect runs, however far they have come, and write `runs.csv`, `figures/*.png` and `.pdf`, and `report.html`.

    Args:
        folders: Runs, or folders of runs.
        out: Where to write.

    Returns:
        The page, what is on it, and why runs were left out.

    Raises:
        UserError: If there are no runs of networks, or nothing can be written.
    """
    records, left_out = collect(folders)
    sorted_out = studies(records)
    if not sorted_out:
        why = f"; {next(iter(left_out))}: {next(iter(left_out.values()))}" if left_out else ""
        raise UserError(f"expected runs of networks with measurements in {folders[0]}, found none{why}")
    write_table(records, out / "runs.csv")
    every: list[Section] = []
    caveats = _caveats(sorted_out)
    for study in sorted_out:
        there, missing = sections(study, out / "figures")
        every += there
        caveats += [f"{study.title}: a figure is missing, {why}" for why in missing]
    together, missing = across(sorted_out, out / "figures")
    every += together
    caveats += [f"a figure is missing, {why}" for why in missing]
    title = f"gaussbias: {', '.join(folder.absolute().name for folder in folders)}"
    text = page(title, sorted_out, every, records, left_out, caveats)
    try:
        write(out / "report.html", text)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {reason(error)}") from None
    return out / "report.html", every, left_out


def _caveats(there: Sequence[Study]) -> list[str]:
    """What the runs do not show."""
    lines = [
        "Errors of denoisers' values cover draws and, where there are several runs of one kind, the choice of training "
        "images and the seed; not the choice of held-out images.",
        "Verdicts are by the 95 % interval of one difference each; among many, some will be wrong by chance.",
    ]
    if all(_is_averaged(run) for study in there for run in study.runs):
        lines.append("All values are those of averaged weights (EMA), which lag behind what is trained.")
    for study in there:
        width = study.main_width()
        runs = {size: len({run.replicate for run in study.select(size, width)}) for size in study.ended_sizes(width)}
        if min(runs.values()) < 2:
            lines.append(f"{study.title}: one run for some sizes, so that part of the error is unknown.")
        unfinished = sum(not run.finished for run in study.runs)
        if unfinished:
            lines.append(f"{study.title}: {unfinished} of {len(study.runs)} runs have not come to their end.")
    return lines


def _is_averaged(run: Record) -> bool:
    return run.keys.get("train.ema_halflife_kimg") is not None and "ema" in run.keys.get("probes.weights", ["ema"])
