"""Fits an affine map by sums over draws and a solve, and says when its error is small enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gaussbias.surrogate import QUARTERS, AffineFit, Pool, Sums, fewest_draws, fit_affine
from gaussbias.system.errors import TrainingError

GROWTH = 2.0
"""Between two trials whether an error is small enough the draws grow at most so much."""
LEAST_GROWTH = 1.2
"""Between two trials the draws grow at least so much."""
FIRST_TRIAL = 0.5
"""The first trial comes after so many draws per dimension."""
SURE = 2.0
"""Standard errors by which a predicted error has to be below the one asked for."""


def add(sums: Sums, pool: Pool, x: Tensor, output: Tensor, first: int) -> None:
    """Add draws to the sums, each to the quarter that its position in the level says.

    Args:
        sums: Of this rank.
        pool: Of the clean images.
        x: Noisy images (b, C, H, W).
        output: The teacher's values there.
        first: The position of the first draw.
    """
    c, y = pool.along(x), pool.along(output)
    quarters = (torch.arange(len(c)) + first) % QUARTERS  # on the host, which knows how many they are
    for quarter in range(QUARTERS):
        mine = (quarters == quarter).nonzero()[:, 0].to(c.device, non_blocking=True)
        sums.update(quarter, c[mine], y[mine])


def fit(
    sums: Sums, pool: Pool, sigma: float, shrink: bool, over_ranks: Callable[[Tensor], Tensor] | None = None
) -> AffineFit:
    """The fit to the draws of all ranks; every rank comes here.

    Args:
        sums: Of this rank.
        pool: Of the clean images.
        sigma: The noise level.
        shrink: Whether to shrink to the Gaussian denoiser.
        over_ranks: Adds a tensor up over ranks; `None` for one rank.

    Raises:
        TrainingError: If a value of the teacher is not finite.
    """
    if over_ranks is not None:
        own, sums = sums, Sums(len(pool.mean)).to(sums.squares.device)
        for name, value in own.named_buffers():
            getattr(sums, name).copy_(over_ranks(value))
    if not bool(torch.isfinite(sums.squares.sum())):
        raise TrainingError(f"a value of the teacher at sigma {sigma:g} is not finite; nothing of this level was kept")
    return fit_affine(sums, pool, sigma, shrink)


def first_trial(d: int, shrink: bool) -> int:
    """After how many draws to look at the error first."""
    return max(math.ceil(FIRST_TRIAL * d), fewest_draws(d, shrink))


def sure_error(fit: AffineFit) -> float:
    """What the error of a fit's weights is surely below, as a share of them."""
    return fit.weight_error + SURE * fit.weight_error_se


def next_trial(drawn: int, reached: float, target: float) -> int:
    """After how many draws to look again."""
    growth = min(GROWTH, max(LEAST_GROWTH, reached / target))
    return math.ceil(growth * drawn)
