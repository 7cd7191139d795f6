"""Training images, a chunk at a time: multiplied with noisy images, and added up by weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from gaussbias.data.rows import ImageRows
from gaussbias.numerics import integers
from gaussbias.numerics.integers import Digits

SPARSE = 0.05
"""Share of weights above zero below which adding up images is faster than a product with all."""
OFF_CENTRE = 4
"""The longest image over the longest centred one, up to which products of pixels are as good as those of float32."""
LARGE = 20
"""Weights above so many times their mean are not made integers."""


class Chunks(ABC):
    """Images y about a centre c, of which those of the last chunk are at hand.

    Args:
        rows: All images.
        centre: c (d,), float64.
        vectors: v (V, d).
        size: Images in a chunk.
    """

    def __init__(self, rows: ImageRows, centre: Tensor, vectors: Tensor, size: int) -> None:
        self.rows, self.centre, self.vectors, self.size = rows, centre, vectors, size

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """The number of the first image, and `v . (y - c)` (V, n), of each chunk."""
        for start, part in self.rows.chunks(self.size, self.vectors.device):
            yield start, self._multiply(part)

    def sum(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`sum_i w_i (y_i - c)` (B, d) and `sum_i w_i` (B,) over the chunk, float64, of weights (B, n), at least 0."""
        few = int(weights.count_nonzero()) < SPARSE * weights.numel()
        summed, total = self._sum_some(weights, weights) if few else self._sum_all(weights)
        return self._centred(summed.double(), total), total

    def _sum_some(self, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of those that are chosen (not 0), of images as `_numbers` has them."""
        row, place = chosen.nonzero().unbind(1)
        values, total = weights[row, place], weights.new_zeros(len(weights), dtype=torch.float64)
        total.index_add_(0, row, values.double())
        if not len(row):
            return weights.new_zeros(len(weights), len(self.centre)), total
        first = torch.searchsorted(row, torch.arange(len(weights), device=row.device))
        return embedding_bag(place, self._numbers(), first, mode="sum", per_sample_weights=values), total

    @abstractmethod
    def _multiply(self, part: Tensor) -> Tensor:
        """Take the images (n, d) as they are stored."""

    @abstractmethod
    def _sum_all(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of all, of images as `_numbers` has them."""

    @abstractmethod
    def _numbers(self) -> Tensor:
        """The images (n, d) of this chunk as floating point, in whatever unit."""

    @abstractmethod
    def _centred(self, summed: Tensor, total: Tensor) -> Tensor:
        """`sum_i w_i (y_i - c)` from the same sum (B, d) of those numbers, and of the weights."""


class Numbers(Chunks):
    """Centred images in the dtype of the vectors."""

    def __init__(self, rows: ImageRows, centre: Tensor, vectors: Tensor, size: int) -> None:
        super().__init__(rows, centre, vectors, size)
        self._unit = 127.5 if rows.images.dtype == torch.uint8 else 1.0
        self._shift = ((centre + (self._unit != 1)) * self._unit).to(vectors.dtype)
        self._buffer = vectors.new_empty(min(size, len(rows.images)), vectors.shape[1])

    def _multiply(self, part: Tensor) -> Tensor:
        self._images = self._buffer[: len(part)].copy_(part).sub_(self._shift).mul_(1 / self._unit)
        return self.vectors @ self._images.T

    def _sum_all(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        return weights @ self._images, weights.sum(1, dtype=torch.float64)

    def _numbers(self) -> Tensor:
        return self._images

    def _centred(self, summed: Tensor, total: Tensor) -> Tensor:
        return summed


class Pixels(Chunks):
    """Pixels p = 127.5 y - 1/2 as integers, which vectors and weights are made to be as well, for float32.

    `v . (y - c) = v . p / 127.5 - v . c'` and `sum_i w_i (y_i - c) = sum_i w_i p_i / 127.5 - c' sum_i w_i`, with
    `c' = c - 1 / 255`. The integers of a vector err by 2^-15 units at most, a unit being its largest number over 127:
    less than float32 products of the centred images do, unless those are much shorter than p.

    Weights do not all get integers: the unit would be that of the largest one, though nearly all of the sum may be of
    small ones. Those above 20 times their mean, 5 % of them at most, are added up as they are. The others err by 2^-15
    of at most 20/127 of the mean each, at random: of n images together by less than 3e-6 / sqrt(n).
    """

    def __init__(self, rows: ImageRows, centre: Tensor, vectors: Tensor, size: int) -> None:
        super().__init__(rows, centre, vectors, size)
        self._off = centre - 0.5 / 127.5
        self._digits = Digits(vectors / 127.5)
        self._floats: Tensor | None = None
        self._along = (vectors.double() @ self._off).float()[:, None]

    def _multiply(self, part: Tensor) -> Tensor:
        self._images, self._floats = integers.signed(part), None
        return self._digits.times(self._images.T).sub_(self._along)

    def _sum_all(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        large = weights > LARGE * weights.mean(1, keepdim=True)
        summed, total = self._sum_some(weights, large)
        digits = Digits(weights.masked_fill(large, 0))
        rest = digits.sum()
        return digits.times(self._images).add_(summed), total + rest

    def _numbers(self) -> Tensor:
        if self._floats is None:
            self._floats = self._images.float()
        return self._floats

    def _centred(self, summed: Tensor, total: Tensor) -> Tensor:
        return summed.addr_(total, self._off, beta=1 / 127.5, alpha=-1)
