"""What a fit needs to know of the draws: sums of products, in four parts that share no draw."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor, nn

QUARTERS = 4
"""Two for each half: the halves fit and choose for each other, two quarters of one measure the error of the other."""


ROWS = 512
"""Rows of a matrix that are worked on together."""


def some_rows(matrix: Tensor) -> list[slice]:
    """All rows, some at a time: what is made of those takes little memory beside the matrices that stay."""
    return [slice(start, min(start + ROWS, len(matrix))) for start in range(0, len(matrix), ROWS)]


class Sums(nn.Module):
    """Sums over draws of inputs c (noisy images) and outputs y (denoised ones), both (n, d) along a basis; float64.

    The memory is that of 8 d x d matrices, whatever the number of draws.

    Args:
        d: Pixels times channels.
    """

    count: Tensor
    inputs: Tensor
    outputs: Tensor
    squares: Tensor
    covariance: Tensor
    product: Tensor

    def __init__(self, d: int) -> None:
        super().__init__()
        shapes = {
            "count": (),
            "inputs": (d,),
            "outputs": (d,),
            "squares": (d,),
            "covariance": (d, d),
            "product": (d, d),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(QUARTERS, *shape, dtype=torch.float64), persistent=False)

    def update(self, quarter: int, c: Tensor, y: Tensor) -> None:
        """Add draws to a quarter: sums of c, y, y^2, `c c^T` and `y c^T`."""
        self.count[quarter] += len(c)
        self.inputs[quarter] += c.sum(0)
        self.outputs[quarter] += y.sum(0)
        self.squares[quarter] += y.square().sum(0)
        self.covariance[quarter].addmm_(c.T, c)
        self.product[quarter].addmm_(y.T, c)

    def reset(self) -> None:
        """Forget all draws."""
        for buffer in self.buffers():
            buffer.zero_()


class Moments:
    """Sums of some quarters about their own means; `y` less an affine map of c is one of these again.

    It holds vectors alone. Matrices are made of the sums when they are asked for, some rows of them where rows do.

    Attributes:
        n: Draws.
        c: (d,), mean of the inputs.
        y: (d,), mean of the outputs.
        yy: (d,), `sum (y_i - y)^2`.
        cc_diagonal: (d,), that of `sum (c_i - c) (c_i - c)^T`.
        yc_diagonal: (d,), that of `sum (y_i - y) (c_i - c)^T`.
    """

    def __init__(self, sums: Sums, quarters: Sequence[int]) -> None:
        self._sums, self._quarters, self._taken = sums, quarters, list[Tensor]()
        self.n = self._total(sums.count)
        self._number = float(self.n)
        self.c, self.y = self._total(sums.inputs) / self.n, self._total(sums.outputs) / self.n
        self._outputs = self.y
        self.yy = self._total(sums.squares) - self.n * self.y.square()
        diagonals = (part.diagonal(dim1=1, dim2=2) for part in (sums.covariance, sums.product))
        cc, yc = (self._total(part) for part in diagonals)
        self.cc_diagonal = cc - self.n * self.c * self.c
        self.yc_diagonal = yc - self.n * self.y * self.c

    @staticmethod
    def of(sums: Sums, *quarters: int) -> Moments:
        """The moments of the draws of some quarters."""
        return Moments(sums, quarters)

    def _total(self, part: Tensor, rows: slice = slice(None)) -> Tensor:
        first, *others = (part[quarter][rows] if part.ndim > 1 else part[quarter] for quarter in self._quarters)
        result: Tensor = first.clone()
        for other in others:
            result += other
        return result

    def cc(self, rows: slice = slice(None)) -> Tensor:
        """Rows (., d) of `sum (c_i - c) (c_i - c)^T`."""
        return self._total(self._sums.covariance, rows).addr_(self.c[rows], self.c, alpha=-self._number)

    def yc(self, rows: slice = slice(None)) -> Tensor:
        """Rows (., d) of `sum (y_i - y) (c_i - c)^T`."""
        result = self._total(self._sums.product, rows).addr_(self._outputs[rows], self.c, alpha=-self._number)
        for weights in self._taken:
            result -= self._mapped(weights, rows)
        return result

    def _mapped(self, weights: Tensor, rows: slice) -> Tensor:
        """Rows of the product of weights with `cc`."""
        if weights.ndim == 1:
            return self.cc(rows).mul_(weights[rows, None])
        some = weights[rows]
        result = some @ self._sums.covariance[self._quarters[0]]
        for quarter in self._quarters[1:]:
            result.addmm_(some, self._sums.covariance[quarter])
        return result.addr_(some @ self.c, self.c, alpha=-self._number)

    def less(self, weights: Tensor) -> Moments:
        """The moments of `y - weights c`; weights are (d, d), or (d,) for a diagonal."""
        left = copy(self)
        left._taken = [*self._taken, weights]
        if weights.ndim == 1:
            left.yy = self.yy - 2 * weights * self.yc_diagonal + weights.square() * self.cc_diagonal
            left.y, left.yc_diagonal = self.y - weights * self.c, self.yc_diagonal - weights * self.cc_diagonal
            return left
        left.yy, left.yc_diagonal = self.yy.clone(), self.yc_diagonal.clone()
        left.y = self.y - weights @ self.c
        for rows in some_rows(weights):
            mapped = self._mapped(weights, rows)
            left.yy[rows] += -2 * (weights[rows] * self.yc(rows)).sum(1) + (weights[rows] * mapped).sum(1)
            left.yc_diagonal[rows] -= mapped.diagonal(rows.start)
        return left
