"""Bias and variance of denoisers over training sets: what was found of pairs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from gaussbias.analysis.halves import are_alike, halves
from gaussbias.analysis.table import Record

Kind = Literal["halves", "seeds"]


@dataclass(frozen=True)
class Pair:
    """Two runs whose denoisers are compared draw by draw.

    Attributes:
        kind: `halves`: alike, but trained on disjoint halves; `seeds`: on the same images, with another seed.
        first: One run.
        second: The other.
    """

    kind: Kind
    first: Record
    second: Record


@dataclass(frozen=True)
class Parts:
    """Mean squared errors of a pair at one time, on held-out images; arrays (S + 1,), the last is the band's mean.

    Attributes:
        pair: The runs.
        kimg: When.
        sigmas: Noise levels (S,).
        bias: B of the networks.
        bias_se: Its standard error over draws.
        variance: V of the networks.
        variance_se: Its standard error.
        gaussian_bias: B of the Gaussian denoisers of both sets of training images.
        gaussian_variance: V of them.
    """

    pair: Pair
    kimg: float
    sigmas: np.ndarray
    bias: np.ndarray
    bias_se: np.ndarray
    variance: np.ndarray
    variance_se: np.ndarray
    gaussian_bias: np.ndarray
    gaussian_variance: np.ndarray


def pairs(runs: Sequence[Record]) -> list[Pair]:
    """Runs on both halves that are alike, and runs on the same images with other seeds, whose folders are there."""
    there = [run for run in runs if run.finished and run.folder is not None]
    found = [Pair("halves", *pair) for pair in halves(there)]
    found += [Pair("seeds", *pair) for pair in combinations(there, 2) if _other_seed(*pair)]
    return sorted(found, key=lambda pair: (pair.kind, pair.first.channels, pair.first.images))


def _other_seed(run: Record, other: Record) -> bool:
    half, seed = ((run.keys.get(key), other.keys.get(key)) for key in ("data.half", "run.seed"))
    return half[0] == half[1] and seed[0] != seed[1] and are_alike(run, other, "run.seed")
