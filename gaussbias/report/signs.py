"""How early each sign of memorisation is, as a table and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gaussbias.analysis import Crossing, Record, Study, Value
from gaussbias.analysis.signs import DOUBT, Sign, departure, first_copies, lead, least_error, missed
from gaussbias.report.claims import Claim, judge
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write_rows

HEAD = (
    "sign",
    "N",
    "kimg",
    "first copies",
    "copies / sign (95 %)",
    "least held-out error",
    "least / sign",
    "late",
    "alone",
)
Table = tuple[Sequence[str], list[Sequence[str]]]


def table(study: Study, signs: Sequence[Sign]) -> Table:
    """For each sign and N: when it is beyond doubt in each run, and by how much before copies and the least error."""
    width = study.main_width()
    rows: list[Sequence[str]] = []
    for sign in signs:
        for size in study.ended_sizes(width):
            runs = study.ended(size, width)
            late, alone = missed(runs, sign)
            rows.append(
                (
                    sign.title,
                    f"{size:,}",
                    _times(runs, partial(departure, sign=sign)),
                    _times(runs, first_copies),
                    ratio(lead(runs, sign)),
                    _times(runs, least_error),
                    ratio(lead(runs, sign, least_error)),
                    str(late),
                    str(alone),
                )
            )
    return HEAD, rows


def write(shown: Table, path: Path) -> None:
    """Write the table as csv.

    Raises:
        UserError: If it cannot be written.
    """
    try:
        write_rows(path, *shown)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None


def claims(study: Study, signs: Sequence[Sign]) -> list[Claim]:
    """Whether each sign is there before the first copies, over all N at which there are copies."""
    width = study.main_width()
    told = []
    for sign in signs:
        runs = [run for size in study.ended_sizes(width) for run in study.ended(size, width)]
        value = lead(runs, sign)
        if not value.runs:
            continue
        each = {size: lead(study.ended(size, width), sign) for size in study.ended_sizes(width)}
        parts = [f"N = {size:,}: {ratio(own)}" for size, own in each.items() if own.runs]
        late, alone = missed(runs, sign)
        text = f"{sign.title} is beyond doubt (z > {DOUBT:g} at two measurements in a row) before the first copies."
        found = (
            f"time of the first copies over that of the sign: {ratio(value)} over {value.runs} runs; "
            f"{'; '.join(parts)}. Later than the copies in {late} runs; without any copies in {alone}"
        )
        told.append(Claim("the use of early signs", text, found, judge(value)))
    return told


def _times(runs: Sequence[Record], when: Callable[[Record], Crossing | None]) -> str:
    """The times of runs in kimg, those that did not come as bounds."""
    found = [crossing for run in runs if (crossing := when(run)) is not None]
    shown = sorted(found, key=lambda crossing: crossing.time)
    return ", ".join(f"{'> ' if crossing.kind == 'after' else ''}{crossing.time:.3g}" for crossing in shown)


def ratio(value: Value) -> str:
    """A ratio from its log, with the interval if it is known; nothing if there is none."""
    if not math.isfinite(value.mean):
        return ""
    middle = f"{math.exp(value.mean):.2f}"
    if not math.isfinite(value.half):
        return middle
    return f"{middle} ({math.exp(value.low):.2f} to {math.exp(min(value.high, 50.0)):.2f})"
