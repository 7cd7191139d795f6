"""Whether networks that are told the class of each image memorise sooner, as a table and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gaussbias import catalogue
from gaussbias.analysis import Crossing, tau_mem
from gaussbias.analysis.labels import ANY, PLAIN, Told, more, sooner
from gaussbias.report.claims import Claim, judge, told
from gaussbias.report.signs import Table, ratio

HEAD = (
    "N",
    "pairs",
    "tau_mem, without labels",
    "with",
    "without / with (95 %)",
    "memorised at the end, without",
    "with",
    "with, among images of the class",
    "held-out error, without",
    "with",
)
SOURCE = "the use of labels"


def table(compared: Told) -> Table:
    """For each N the times of memorisation, and the memorised share and the held-out error at the end."""
    rows: list[Sequence[str]] = []
    plain, labelled, width = compared.plain, compared.told, compared.width
    for size in compared.sizes:
        pairs = compared.pairs(size)
        times = [tau_mem(run) for run, _ in pairs], [tau_mem(run, ANY) for _, run in pairs]
        shares = plain.value(PLAIN, size, width), labelled.value(ANY, size, width), labelled.value(PLAIN, size, width)
        errors = (study.value(catalogue.MSE.on("heldout"), size, width) for study in (plain, labelled))
        rows.append(
            (
                f"{size:,}",
                str(len(pairs)),
                *(", ".join(map(_time, each)) for each in times),
                ratio(sooner(pairs)[0]),
                *map(told, shares),
                *map(told, errors),
            )
        )
    return HEAD, rows


def claims(compared: Told) -> list[Claim]:
    """Whether networks with labels memorise sooner, and more by the end."""
    every, made = compared.pairs(), []
    value, first, last = sooner(every)
    each = {size: sooner(compared.pairs(size))[0] for size in compared.sizes}
    if value.runs or first or last:
        parts = [f"N = {size:,}: {ratio(own)}" for size, own in each.items() if own.runs]
        found = (
            f"tau_mem without labels over that with, on the same images: {ratio(value) or 'unknown'} over {value.runs} "
            f"pairs of runs; {'; '.join(parts)}. Pairs in which only the run with labels memorised: {first}; "
            f"only that without: {last}"
        )
        made.append(
            Claim(SOURCE, "A network that is told the class of each image memorises sooner.", found, judge(value))
        )
    value = more(every)
    if math.isfinite(value.mean):
        parts = [f"N = {size:,}: {told(more(compared.pairs(size)))}" for size in compared.sizes]
        found = (
            "memorised share at the end with labels, among images of any class, less that without: "
            f"{told(value)} over {value.runs} pairs of runs; {'; '.join(parts)}"
        )
        made.append(Claim(SOURCE, "It has memorised more by the end.", found, judge(value)))
    return made


def _time(crossing: Crossing | None) -> str:
    if crossing is None:
        return "unknown"
    return f"{ {'at': '', 'after': '> ', 'before': '< '}[crossing.kind] }{crossing.time:.3g}"
