"""Errors of denoisers on draws, less the noise that D_G's error foretells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Means, regressed

OTHER, SQUARE = "of the Gaussian", "its square"


class KnownErrors(BlockMetric):
    """Mean errors `E||T - x0||^2 / d` of several denoisers at each noise level, as `DenoisingErrors` has that of D.

    Part of their noise is that of D_G's error on the same draws, whose expectation is known: it is taken away
    (`regressed`). That of D_G itself is exact.

    Args:
        blocks: Number of blocks.
        expected: D_G's expected error on the pool, over d, (S,) (`gaussian_mse`).
        names: Of the denoisers.
    """

    def __init__(self, blocks: int, expected: Tensor, names: Sequence[str]) -> None:
        self.names = tuple(names)
        products = [self._product(name) for name in self.names]
        super().__init__(blocks, len(expected), (*self.names, *products, OTHER, SQUARE))
        self.expected = expected.cpu()

    @staticmethod
    def _product(name: str) -> str:
        return f"{name}, product"

    def update(self, errors: Mapping[str, Tensor], gaussian: Tensor, block: int) -> None:
        """Measure a block: errors (S, m) by name, and those of D_G, float64."""
        rows = {name: errors[name].mean(1) for name in self.names}
        rows |= {self._product(name): (errors[name] * gaussian).mean(1) for name in self.names}
        self.fill(block, rows | {OTHER: gaussian.mean(1), SQUARE: gaussian.square().mean(1)})

    def observed(self) -> Tensor:
        """The rows of blocks, with less noise in the errors."""
        rows = super().observed().clone()
        columns = dict(zip(self.quantities, rows.unbind(-1), strict=True))
        for name in self.names:
            value, product = columns[name], columns[self._product(name)]
            value.copy_(regressed(value, columns[OTHER], product, columns[SQUARE], self.expected))
        return rows

    def derive(self, means: Means) -> Means:
        """The errors, from means over blocks (..., S)."""
        return {name: means[name] for name in self.names}


class BestError(KnownErrors):
    """The least of these errors at each noise level, `least`; of nearly equal ones a little below all of them."""

    def derive(self, means: Means) -> Means:
        """From means over blocks (..., S)."""
        return {"least": torch.stack([means[name] for name in self.names], -1).amin(-1)}
