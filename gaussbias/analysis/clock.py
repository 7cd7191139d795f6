"""The spectral clock: when principal components are learnt, against their variance.

Wang and Pehlevan 2025 (arXiv 2503.03206): under gradient flow a component of variance lam is learnt after a time that
falls as a power of lam, with exponent 1 for linear networks; they find less for multilayer perceptrons, and hardly any
dependence for convolutional networks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gaussbias import catalogue
from gaussbias.analysis.halves import moment_in
from gaussbias.analysis.powerlaw import PowerLaw, fit_power_law
from gaussbias.analysis.table import Record
from gaussbias.history.crossings import Crossing, emergence
from gaussbias.noise import sigma_of
from gaussbias.system.run_folder import RunFolder


@dataclass(frozen=True)
class Clock:
    """When components are learnt in runs of one kind, at one noise level.

    Attributes:
        images: N.
        sigma: The noise level, to three digits.
        rising: By mean variance of a component, the times of those whose gain grows, one for each run.
        falling: Of those whose gain shrinks.
        law: tau against the variance of rising ones; or why there is none.
    """

    images: int
    sigma: float
    rising: dict[float, list[Crossing]]
    falling: dict[float, list[Crossing]]
    law: PowerLaw | str


def clock(runs: Sequence[Record]) -> Clock | None:
    """The clock of runs of one size, at the noise level where most rising components can be timed.

    `None` for runs without gains, or whose folders are gone.

    Raises:
        UserError: If the moments of a run cannot be read.
    """
    known = [run for run in runs if run.folder is not None and run.rows[0]["kimg"] == 0]
    prefix = catalogue.numbered(catalogue.GAIN, 1) + "/"
    ends = [key.removeprefix(prefix) for key in known[0].rows[0] if key.startswith(prefix)] if known else []
    levels = [sigma_of(end) for end in ends if not end.endswith(catalogue.SE)]
    found = [_at(known, sigma) for sigma in levels]
    timed = [clock for clock in found if clock.rising or clock.falling]
    return max(timed, key=lambda clock: (_count(clock.rising), _count(clock.falling)), default=None)


def _count(times: dict[float, list[Crossing]]) -> int:
    """Components that are timed, not only bounded, in a run at least."""
    return sum(any(passed.kind == "at" for passed in each) for each in times.values())


def _at(runs: Sequence[Record], sigma: float) -> Clock:
    times: dict[int, list[tuple[float, bool, Crossing]]] = defaultdict(list)
    for run in runs:
        eigenvalues = moment_in(RunFolder(run.folder or ".").moments, "eigenvalues")
        for place in catalogue.component_places(len(eigenvalues)):
            lam = float(eigenvalues[place - 1])
            key, target = catalogue.numbered(catalogue.GAIN, place) + catalogue.GAIN.end(sigma), lam / (lam + sigma**2)
            curve, first = run.curve(key), run.rows[0].get(key)
            error = run.rows[0].get(key + catalogue.SE, math.nan)
            passed = emergence(*curve, first, target, error) if first is not None and curve[0] else None
            if passed is not None and first is not None:
                times[place].append((lam, bool(target > first), passed))
    parts: list[dict[float, list[Crossing]]] = []
    for rises in (True, False):
        parts.append({})
        for each in times.values():
            chosen = [(lam, passed) for lam, up, passed in each if up is rises]
            if chosen:
                parts[-1][float(np.mean([lam for lam, _ in chosen]))] = [passed for _, passed in chosen]
    law = fit_power_law(parts[0], of=("lam", "a component is learnt"))
    return Clock(runs[0].images, sigma, parts[0], parts[1], law)
