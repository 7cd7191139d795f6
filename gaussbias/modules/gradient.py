"""Fits an affine map by Adam, as the authors' code does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

LEARNING_RATES = {60.0: 5e-5, 6.0: 5e-4, 0.25: 5e-3, 0.05: 5e-2, 0.0: 5e-1}
"""Those that the authors' code names, to pick from for each noise level by hand; and the sigma from which each is the
best one on a network of 8 x 8 pixels (benchmarks/surrogate.py)."""
LAST = 0.75
"""The held-out error is the loss after this share of the draws: each batch is new when it is seen."""


class GradientFit:
    """W and b from 0, by Adam on the mean squared error, with inputs divided by sqrt(d).

    Args:
        weight: (d, d).
        bias: (d,).
        recent: (2,), float64: the sum of the losses of recent draws, and their number.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, recent: Tensor) -> None:
        self.weight, self.bias, self.recent = weight, bias, recent

    def loss(self, x: Tensor, output: Tensor) -> Tensor:
        """The mean squared error of draws (b, C, H, W)."""
        scaled = x.flatten(1) / math.sqrt(len(self.bias))
        return (scaled @ self.weight.T + self.bias - output.flatten(1)).square().mean()

    def remember(self, loss: Tensor, draws: int) -> None:
        """Count a loss among the recent ones."""
        self.recent[0] += loss.detach().double() * draws
        self.recent[1] += draws

    def map(self) -> tuple[Tensor, Tensor]:
        """W (d, d) and b (d,) of inputs as they are, float64."""
        return self.weight.detach().double() / math.sqrt(len(self.bias)), self.bias.detach().double()

    def restart(self, optimizer: Any, learning_rate: float | None) -> None:
        """From 0, with another learning rate."""
        for parameter in (self.weight, self.bias):
            parameter.data.zero_()
        self.recent.zero_()
        optimizer.state.clear()
        if learning_rate is not None:
            optimizer.param_groups[0]["lr"] = learning_rate


def heldout_error(recent: Tensor) -> float:
    """The mean of the recent losses (sum, number); NaN without any."""
    total, count = recent.tolist()
    return total / count if count else math.nan


def learning_rate(sigma: float) -> float:
    """The one of `LEARNING_RATES` for a noise level.

    >>> learning_rate(80.0), learning_rate(0.002)
    (5e-05, 0.5)
    """
    return next(rate for least, rate in LEARNING_RATES.items() if sigma >= least)


def parameters(d: int) -> tuple[nn.Parameter, nn.Parameter]:
    """W and b to begin with."""
    return nn.Parameter(torch.zeros(d, d)), nn.Parameter(torch.zeros(d))
