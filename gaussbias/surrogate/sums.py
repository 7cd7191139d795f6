"""What a fit needs to know of the draws: sums of products, in four parts that share no draw."""

from __future__ import annotations

import torch
from torch import Tensor, nn

QUARTERS = 4
"""Two for each half: the halves fit and choose for each other, two quarters of one measure the error of the other."""


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

    Attributes:
        n: Draws.
        c: (d,), mean of the inputs.
        y: (d,), mean of the outputs.
        cc: (d, d), `sum (c_i - c) (c_i - c)^T`.
        yc: (d, d), `sum (y_i - y) (c_i - c)^T`.
        yy: (d,), `sum (y_i - y)^2`.
    """

    def __init__(self, n: Tensor, c: Tensor, y: Tensor, cc: Tensor, yc: Tensor, yy: Tensor) -> None:
        self.n, self.c, self.y, self.cc, self.yc, self.yy = n, c, y, cc, yc, yy

    @staticmethod
    def of(sums: Sums, *quarters: int) -> Moments:
        """Of the draws of some quarters."""

        def total(part: Tensor) -> Tensor:
            first, *others = (part[quarter] for quarter in quarters)
            result = first.clone()
            for other in others:
                result += other
            return result

        n = total(sums.count)
        c, y = total(sums.inputs) / n, total(sums.outputs) / n
        cc, yc = total(sums.covariance), total(sums.product)
        cc.addr_(c, c, alpha=-float(n))
        yc.addr_(y, c, alpha=-float(n))
        return Moments(n, c, y, cc, yc, total(sums.squares) - n * y.square())

    def less(self, weights: Tensor) -> Moments:
        """Of `y - weights c`; weights are (d, d), or (d,) for a diagonal."""
        if weights.ndim == 1:
            yy = self.yy - 2 * weights * self.yc.diagonal() + weights.square() * self.cc.diagonal()
            return Moments(self.n, self.c, self.y - weights * self.c, self.cc, self.yc - weights[:, None] * self.cc, yy)
        mapped = weights @ self.cc
        yy = self.yy - 2 * (weights * self.yc).sum(1) + (weights * mapped).sum(1)
        return Moments(self.n, self.c, self.y - weights @ self.c, self.cc, self.yc - mapped, yy)
