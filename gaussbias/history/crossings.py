"""When a value passes a level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CLEAR = 10
"""Standard errors that a way takes to be timed: the times of noise mean nothing."""


@dataclass(frozen=True)
class Crossing:
    """When a value passed a level.

    Attributes:
        time: In kimg: the time, or the bound that is known.
        kind: `at` that time; `after` it, for a run that ended before; `before` it, for one that was above when first
            measured.
        between: The times of the measurements before and after it, if it is known to be between two.
    """

    time: float
    kind: Literal["at", "after", "before"]
    between: tuple[float, float] | None = None


def crossing(times: Sequence[float], values: Sequence[float], level: float) -> Crossing | None:
    """The first time that values are above a level, linear in log time between two measurements.

    Args:
        times: Ascending, above 0.
        values: One at each.
        level: What they pass.

    Returns:
        `None` without values.

    >>> found = crossing([1, 10, 100], [0.0, 0.0, 0.5], 0.25)
    >>> round(found.time, 6), found.kind, found.between
    (31.622777, 'at', (10, 100))
    """
    for place, value in enumerate(values):
        if value > level:
            if place == 0:
                return Crossing(times[0], "before")
            before = values[place - 1]
            share = (level - before) / (value - before)
            log = math.log(times[place - 1]) + share * math.log(times[place] / times[place - 1])
            return Crossing(math.exp(log), "at", (times[place - 1], times[place]))
    return Crossing(times[-1], "after") if len(times) else None


def emergence(
    times: Sequence[float], gains: Sequence[float], first: float, target: float, error: float = 0.0
) -> Crossing | None:
    """When a gain came half of the way from its first value to its target, linear in log time.

    Args:
        times: Of measurements after the start, in kimg, ascending.
        gains: One at each.
        first: The gain before training.
        target: What the optimal affine denoiser has, `lam / (lam + sigma^2)`.
        error: The standard error of the first value; NaN if that is not known.

    Returns:
        `None` for a component that begins within a factor of two of its target, or within so many standard errors: its
        way is too short to be timed.
    """
    if (first > 0 and target / 2 <= first <= 2 * target) or abs(target - first) < CLEAR * error:
        return None
    return crossing(times, [(gain - first) / (target - first) for gain in gains], 0.5)
