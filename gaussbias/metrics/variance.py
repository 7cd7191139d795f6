"""Bias and variance of a denoiser over training sets, from two networks of disjoint halves on the same draws."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Means

QUANTITIES = ("first", "second", "product")


class BiasVariance(BlockMetric):
    """The error of denoisers that were trained on independent images, split without bias from two of them.

    - `variance`: `V = E||D_1 - D_2||^2 / (2 d)`: what the choice of the training images changes;
    - `bias`: `B = E[(D_1 - x0) . (D_2 - x0)] / d`: the squared bias of their mean, and what nobody can know of x0;
    - `error`: `(L_1 + L_2) / 2`, which is `B + V` exactly.

    With two seeds on the same images V is what the initialisation and the order of the images change.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
    """

    def __init__(self, blocks: int, levels: int) -> None:
        super().__init__(blocks, levels, QUANTITIES)

    def update(self, first: Tensor, second: Tensor, clean: Tensor, block: int) -> None:
        """Measure a block: values (S, m, C, H, W) of both denoisers, and the clean images (m, C, H, W)."""
        x0 = clean.double().flatten(1)
        rows: dict[str, list[Tensor]] = {name: [] for name in QUANTITIES}
        for one, other in zip(first, second, strict=True):
            a, b = (part.double().flatten(1) - x0 for part in (one, other))
            for name, value in zip(QUANTITIES, (a * a, b * b, a * b), strict=True):
                rows[name].append(value.mean())
        self.fill(block, {name: torch.stack(values) for name, values in rows.items()})

    def derive(self, means: Means) -> Means:
        """Both parts and their sum, from means over blocks (..., S)."""
        error = (means["first"] + means["second"]) / 2
        return {"bias": means["product"], "variance": error - means["product"], "error": error}
