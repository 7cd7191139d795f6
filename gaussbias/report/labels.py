"""Whether networks that are told the class of each image memorise sooner, as a table and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gaussbias import catalogue
from gaussbias.analysis import tau_mem
from gaussbias.analysis.labels import ANY, PLAIN, Told, more, sooner
from gaussbias.analysis.studies import value_of
from gaussbias.report.claims import Claim, judge, told, when
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
    """For each N the times of memorisation, and the memorised share and the held-out error at the end of both."""
    rows: list[Sequence[str]] = []
    loss = catalogue.MSE.on("heldout")
    for size in compared.sizes:
        pairs = compared.pairs(size)
        times = [tau_mem(run) for run, _ in pairs], [tau_mem(run, ANY) for _, run in pairs]
        plain, labelled = ([pair[place].rows[-1] for pair in pairs] for place in (0, 1))
        values = (plain, PLAIN), (labelled, ANY), (labelled, PLAIN), (plain, loss), (labelled, loss)
        rows.append(
            (
                f"{size:,}",
                str(len(pairs)),
                *(", ".join("unknown" if time is None else when(time) for time in each) for each in times),
                ratio(sooner(pairs)[0]),
                *(told(value_of(ends, key)) for ends, key in values),
            )
        )
    return HEAD, rows


def claims(compared: Told) -> list[Claim]:
    """Whether networks with labels memorise sooner, and more by the end."""
    every, made = compared.pairs(), []
    value, first, last = sooner(every)
    if value.runs:
        each = {size: sooner(compared.pairs(size))[0] for size in compared.sizes}
        parts = [f"N = {size:,}: {ratio(own)}" for size, own in each.items() if own.runs]
        found = (
            f"tau_mem without labels over that with, on the same images: {ratio(value)} over {value.runs} pairs of "
            f"runs; {'; '.join(parts)}. Bounds count as times: in {first} pairs only the run with labels had memorised "
            f"by the end of both, or had before it was first measured; in {last} only that without"
        )
        verdict = judge(value)
        against = last if verdict == "held" else first
        text = "A network that is told the class of each image memorises sooner."
        made.append(Claim(SOURCE, text, found, "undecided" if against else verdict))
    value = more(every)
    if math.isfinite(value.mean):
        parts = [f"N = {size:,}: {told(more(compared.pairs(size)))}" for size in compared.sizes]
        found = (
            "memorised share at the end with labels, among images of any class, less that without: "
            f"{told(value)} over {value.runs} pairs of runs; {'; '.join(parts)}"
        )
        made.append(Claim(SOURCE, "It has memorised more by the end.", found, judge(value)))
    return made
