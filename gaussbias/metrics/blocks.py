"""Averages over numbered blocks of draws, or over numbered samples, with their standard errors.

Standard errors are those of the jackknife over blocks (Efron and Stein 1981, Ann. Statist. 9, 586): for a value that
is a function f of means over B blocks, the pseudo-value of a block is `B f(all) - (B - 1) f(all but this one)`, and the
squared standard error of f is the variance of the pseudo-values over B. For a mean it is the usual one, since the
pseudo-value of a block is its own mean. Draws of different blocks are independent, so intervals are
Student's, with B - 1 degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchmetrics import Metric

Means = dict[str, Tensor]
"""By name, means over blocks (..., S)."""
CERTAIN = 3.0
"""A mean below so many of its standard errors is not divided by."""
FAR = 10
"""Standard deviations of a draw by which a block's mean is never from its expectation, if they are known at all."""


@dataclass(frozen=True)
class Estimate:
    """A value with what is needed for its error and for paired differences.

    Attributes:
        value: (...), float64.
        pseudo: (B, ...), the jackknife's pseudo-values, one a block.
        defined: (...), where the value means something; elsewhere it is not to be shown.
        pool: Of the probe bank, whose draws the blocks are; `None` if they are no draws of a bank.
        reference: Whether it belongs to a baseline, whatever the weights that are measured.
    """

    value: Tensor
    pseudo: Tensor
    defined: Tensor
    pool: str | None = None
    reference: bool = False

    @classmethod
    def exact(cls, value: Tensor) -> Estimate:
        """A value (...) that is known, without draws."""
        return cls(value, value[None], torch.ones_like(value, dtype=torch.bool), reference=True)

    @property
    def se(self) -> Tensor:
        """The standard error (...); NaN for a single block."""
        spread = self.pseudo.std(0) if len(self.pseudo) > 1 else self.value * torch.nan
        error: Tensor = spread / len(self.pseudo) ** 0.5
        return error

    def at(self, place: int) -> Estimate:
        """One level."""
        return replace(self, value=self.value[place], pseudo=self.pseudo[:, place], defined=self.defined[place])

    def mean(self, places: Sequence[int]) -> Estimate:
        """The mean over levels; levels share draws, so the jackknife is that of the mean as a whole."""
        chosen = list(places)
        return replace(
            self,
            value=self.value[chosen].mean(-1),
            pseudo=self.pseudo[:, chosen].mean(-1),
            defined=self.defined[chosen].all(-1),
        )


def jackknife(rows: Tensor, derive: Callable[[Tensor], Means]) -> dict[str, Estimate]:
    """Values of a function of the means over blocks, with their pseudo-values.

    Args:
        rows: (B, ...), one row a block.
        derive: From means (..., S, Q) of rows (S, Q) to values (..., S) by name; of any number of means at once.
    """
    count = len(rows)
    values = derive(rows.mean(0))
    if count == 1:
        return {name: _estimate(value, value[None]) for name, value in values.items()}
    others = derive((rows.sum(0) - rows) / (count - 1))
    return {name: _estimate(value, count * value - (count - 1) * others[name]) for name, value in values.items()}


def _estimate(value: Tensor, pseudo: Tensor) -> Estimate:
    return Estimate(value, pseudo, torch.ones_like(value, dtype=torch.bool))


def certain(rows: Tensor) -> Tensor:
    """Whether the mean of rows (B, S) is above three of its standard errors, (S,); of one block it never is."""
    spread = rows.std(0) if len(rows) > 1 else rows[0] * torch.nan
    known: Tensor = rows.mean(0) > CERTAIN * spread / len(rows) ** 0.5
    return known


def regressed(value: Tensor, other: Tensor, product: Tensor, square: Tensor, expected: Tensor) -> Tensor:
    """Means of a value over blocks, less the noise that another one foretells, whose expectation is known.

    `value - b (other - expected)` has the same expectation for every b. The b of a block is the slope of the value on
    the other one over the draws of the other blocks, so nothing is biased. Where they say nothing of this block, since
    there the other one varies far less than it is from its expectation here (images that hardly differ), b is 0.

    Args:
        value: (B, S), means over the draws of blocks.
        other: (B, S), of the other one.
        product: (B, S), of the product of both.
        square: (B, S), of the other one's square.
        expected: (S,).

    Returns:
        (B, S); unchanged for a single block.
    """
    if len(value) == 1:
        return value
    v, o, p, s = ((part.sum(0) - part) / (len(part) - 1) for part in (value, other, product, square))
    variance = s - o.square()
    told = variance * FAR**2 > (other - expected).square()
    b = torch.where(told, (p - v * o) / variance.where(told, 1.0), 0.0)
    return value - b * (other - expected)


class BlockMetric(Metric):
    """A metric whose state is one float64 row per block: each rank fills its own, and the sum over ranks is all.

    Blocks are the same whatever the number of ranks, the size of a batch and the order, and so are the values.
    After `compute`, `estimates` holds the values (S,) with their errors, on the CPU, and `missing` the number of blocks
    that no rank has filled.

    Args:
        blocks: Number of blocks; for what is measured once a sample, of samples.
        levels: Number of noise levels S.
        quantities: Names of what is measured at each level.
        each: Numbers that are kept of each of them, one for each draw of a block; `None`: one, their mean.
    """

    full_state_update = False
    rows: Tensor
    filled: Tensor

    def __init__(self, blocks: int, levels: int, quantities: Sequence[str], each: int | None = None) -> None:
        super().__init__()
        self.quantities = tuple(quantities)
        self.estimates: dict[str, Estimate] = {}
        self.missing = 0
        shape = (blocks, levels, *(() if each is None else (each,)), len(self.quantities))
        self.add_state("rows", torch.zeros(*shape, dtype=torch.float64), "sum")
        self.add_state("filled", torch.zeros(blocks, dtype=torch.float64), "sum")

    def fill(self, blocks: int | slice, values: dict[str, Tensor]) -> None:
        """Set the row of a block: (S,) for each quantity, or (S, each); or many rows, (B, S)."""
        self.rows[blocks] = torch.stack([values[name].to(self.rows) for name in self.quantities], -1)
        self.filled[blocks] += 1

    def observed(self) -> Tensor:
        """The rows of the blocks that were filled (B, S, Q), or (B, S, each, Q), on the CPU."""
        return self.rows[self.filled > 0].cpu()

    def derive(self, means: Means) -> Means:
        """What is reported, from means over blocks (..., S); here the means themselves."""
        return means

    def compute(self) -> dict[str, Tensor]:
        """Each value over the blocks that were filled, (S,), and as `<name>_se` its standard error.

        Raises:
            ValueError: If no block was filled, or one twice, by one rank or by two.
        """
        if (self.filled > 1).any():
            raise ValueError(f"Expected each block to be filled once but got counts {self.filled.tolist()}.")
        if not self.filled.any():
            raise ValueError("Expected at least one block but got none.")
        self.missing = int((self.filled == 0).sum())
        self.estimates = self.estimate(self.observed())
        values = {name: estimate.value for name, estimate in self.estimates.items()}
        return values | {f"{name}_se": estimate.se for name, estimate in self.estimates.items()}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors from the rows (B, S, Q) of blocks."""
        return jackknife(rows, lambda means: self.derive(dict(zip(self.quantities, means.unbind(-1), strict=True))))


class DrawMeans(BlockMetric):
    """Means over the draws of numbers that each draw has at each noise level."""

    def update(self, values: Mapping[str, Tensor], block: int) -> None:
        """Measure a block: values (S, m) by name."""
        self.fill(block, {name: values[name].double().mean(1) for name in self.quantities})
