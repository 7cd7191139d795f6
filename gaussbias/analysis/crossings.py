"""When a value of a run passes a level: the times of generalisation and of memorisation."""

from __future__ import annotations

import math

from gaussbias import catalogue
from gaussbias.analysis.table import Record
from gaussbias.history.crossings import Crossing, crossing

MEMORIZED_FRACTION = 0.05
"""Samples count as memorised once the lower end of their share's 95 % interval passes this."""
Z = 1.959964
"""Standard errors to either end of a 95 % interval."""
NEAR_MINIMUM = 1.05
"""A network generalises once its error on held-out images is within 5 % of the smallest that it reaches."""


def tau_mem(run: Record, key: str = catalogue.MEMORIZED_FRACTION.name) -> Crossing | None:
    """When a run's samples began to be memorised: the lower end of their share's 95 % interval passes 0.05.

    With n samples that end, Wilson's, is at L where the share is `L + z sqrt(L (1 - L) / n)`. Between two measurements
    the logit of the share is linear in log time: a share that grows from none to most of the samples from one
    measurement to the next would by a straight line seem to have passed 0.05 at once.

    Args:
        run: The run.
        key: The logged name of the share. With labels n is that of all classes too, as if all had equal shares.
    """
    times, shares = run.curve(key)
    count = int(run.keys.get("probes.samples", 0))
    if count < 2:
        return crossing(*run.curve(key + catalogue.LOW), MEMORIZED_FRACTION)
    level = MEMORIZED_FRACTION + Z * math.sqrt(MEMORIZED_FRACTION * (1 - MEMORIZED_FRACTION) / count)
    return crossing(times, [_logit(share, count) for share in shares], _logit(level, count))


def tau_gen(run: Record) -> Crossing | None:
    """When a run's error on held-out images came within 5 % of the smallest that it reached.

    A run whose smallest error is its last one may fall further: its time is then one for the part that was run.
    """
    times, errors = run.curve(catalogue.MSE.on("heldout"))
    return crossing(times, [-error for error in errors], -NEAR_MINIMUM * min(errors)) if errors else None


def _logit(share: float, count: int) -> float:
    """Log p / (1 - p) of a share of so many, with half a count more of each, so that none and all are finite."""
    return math.log((share * count + 0.5) / ((1 - share) * count + 0.5))
