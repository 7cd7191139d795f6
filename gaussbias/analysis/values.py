"""A mean over runs with an interval for the choice of images, the seeds and the draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

DRAWS = 15
"""Degrees of freedom of a standard error over draws: 16 blocks at least."""


@dataclass(frozen=True)
class Value:
    """A mean over runs.

    Attributes:
        mean: Of the runs.
        se: Its standard error, over runs and draws; of a single run over draws alone, NaN if that is not known.
        half: Half of the width of its 95 % interval.
        runs: How many.
    """

    mean: float
    se: float
    half: float
    runs: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half


def combine(values: Sequence[float], errors: Sequence[float]) -> Value:
    """The mean of runs of one kind that share their draws.

    Their scatter, s^2 / n, covers training images, seeds and what is independent in the draws; the draws are the same
    ones for all, so their error does not fall with the number of runs and is added whole, which errs on the safe
    side. Degrees of freedom are those of Welch (1947) and Satterthwaite (1946).

    Args:
        values: One for each run; what is not finite is left out.
        errors: Their standard errors over draws; NaN is left out.

    Returns:
        NaN for no values.
    """
    known = [(value, error) for value, error in zip(values, errors, strict=True) if math.isfinite(value)]
    if not known:
        return Value(math.nan, math.nan, math.nan, 0)
    found = np.array([value for value, _ in known])
    own = [error**2 for _, error in known if math.isfinite(error)]
    draws = float(np.mean(own)) if own else math.nan
    parts = [(draws, DRAWS)] if own else []
    if len(found) > 1:
        parts.append((float(found.var(ddof=1)) / len(found), len(found) - 1))
    variance = sum(part for part, _ in parts) if parts else math.nan
    spread = sum(part**2 / degrees for part, degrees in parts)
    degrees = variance**2 / spread if spread > 0 else DRAWS
    se = math.sqrt(variance)
    return Value(float(found.mean()), se, float(stdtrit(degrees, 0.975)) * se, len(found))


def difference(value: Value, other: Value) -> Value:
    """One mean less another, as if they were independent."""
    se, half = math.hypot(value.se, other.se), math.hypot(value.half, other.half)
    return Value(value.mean - other.mean, se, half, min(value.runs, other.runs))
