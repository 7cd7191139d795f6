"""Mean and covariance of all images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case, relative
from gaussbias.data.images import to_unit
from gaussbias.moments import Moments
from gaussbias.numerics import integers


def cases(images: Tensor) -> Iterator[Case]:
    """Against one centred product of all images in float32."""
    n, d = len(images), images[0].numel()

    def usual() -> Tensor:
        flat = to_unit(images.flatten(1))
        flat = flat - flat.mean(0)
        return flat.T @ flat / n

    def ours() -> Tensor:
        moments = Moments(tuple(images.shape[1:]), pixels=True).to(images.device)
        moments.update(images)
        return moments.compute()[1]

    outer = images.new_zeros(d, d, dtype=torch.float64)
    total = outer.new_zeros(d)
    for rows in images.flatten(1).split(4096):
        values = rows.double() - 128
        total += values.sum(0)
        outer += values.T @ values
    exact = (outer / n - (total / n).outer(total / n)) / 127.5**2
    dtype = torch.int8 if integers.are_fast(images.device) else torch.float32
    yield Case("covariance", f"d={d}, N={n}", usual, ours, lambda c: relative(c, exact), 1.1, n * d**2, dtype)
