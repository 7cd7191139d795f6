"""Averages of weights over training with power-law profiles, and how those that were kept make up any other.

The profile of an average with exponent gamma, at time t, is `p(tau) = (gamma + 1) tau^gamma / t^(gamma + 1)` on (0, t):
how much the weights at time tau count (Karras et al. 2024, arXiv 2312.02696, Section 3.1). Its standard deviation,
divided by t, is its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LONGEST = 1 / math.sqrt(12)
"""The length of the plain mean of all weights, with exponent 0."""


def exponent(length: float) -> float:
    """Gamma of a length: `length^2 = (gamma + 1) (gamma + 2)^-2 (gamma + 3)^-1`.

    >>> round(exponent(0.05), 2), round(exponent(0.1), 2)
    (16.97, 6.94)

    Raises:
        ValueError: For a length that is not between 0 and 0.2887.
    """
    if not 0 < length <= LONGEST * (1 + 1e-12):
        raise ValueError(f"Expected `length` above 0 and at most {LONGEST:.4f} but got {length:g}.")
    inverse = length**-2
    # (gamma + 2)^2 (gamma + 3) = (gamma + 1) / length^2
    roots = np.roots([1, 7, 16 - inverse, 12 - inverse])
    return max(0.0, float(roots.real[np.abs(roots.imag) < 1e-6].max()))


def length_of(gamma: float) -> float:
    """The length of an average with exponent gamma (Section 3.1)."""
    return math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3)))


def kept_share(step: int, gamma: float) -> float:
    """The share of the average that the update after step `step`, from 1, keeps: `(1 - 1/t)^(gamma + 1)`."""
    return float((1 - 1 / step) ** (gamma + 1))


def overlaps(
    first: Sequence[float], exponents: Sequence[float], second: Sequence[float], others: Sequence[float]
) -> np.ndarray:
    """Inner products of profiles, `integral p_i q_j`, (n, m).

    Args:
        first: Times of the profiles p (n,).
        exponents: Their exponents.
        second: Times of the profiles q (m,).
        others: Their exponents.
    """
    t, g = (np.asarray(part, np.float64)[:, None] for part in (first, exponents))
    s, h = (np.asarray(part, np.float64)[None] for part in (second, others))
    # (g + 1)(h + 1) / (g + h + 1) m^(g + h + 1) / (t^(g + 1) s^(h + 1)), m the smaller time, without large powers
    ratio = np.minimum(t / s, 1) ** h * np.minimum(s / t, 1) ** g
    return np.asarray((g + 1) * (h + 1) / (g + h + 1) * ratio / np.maximum(t, s))


def coefficients(
    times: Sequence[float], exponents: Sequence[float], time: float, gamma: float
) -> tuple[np.ndarray, float]:
    """The combination of profiles that comes closest to another one, by least squares (Section 3.2).

    Args:
        times: Of the averages that were kept (n,).
        exponents: Theirs.
        time: Of the average that is wanted, at least that of one of them.
        gamma: Its exponent.

    Returns:
        Coefficients (n,), which weights of the kept averages are multiplied by; and the distance of the combined
        profile to that which is wanted, over the size of the latter.
    """
    products = overlaps(times, exponents, times, exponents)
    wanted = overlaps(times, exponents, [time], [gamma])[:, 0]
    found = np.linalg.lstsq(products, wanted, rcond=1e-13)[0]
    found = found / found.sum()  # profiles have the mass 1, and weights that stay the same have to stay the same
    size = overlaps([time], [gamma], [time], [gamma])[0, 0]
    missed = size - 2 * found @ wanted + found @ products @ found
    return found, math.sqrt(max(0.0, missed) / size)
