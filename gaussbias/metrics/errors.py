"""Denoising errors: of a denoiser, of the memoriser, and of the Gaussian's, whose expectation is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, regressed
from gaussbias.moments import Eigenmoments, Projection

FLOOR = 0.05
"""`position` is left out where L_G - L_M is at most this share of L_G: there it is 0/0."""
ERRORS = ("error", "empirical_error", "gaussian_error")
PRODUCTS = tuple(f"{name}_product" for name in ERRORS)


def gaussian_mse(moments: Eigenmoments, pool: Projection, sigmas: Sequence[float]) -> Tensor:
    """The expected error `E||D_G - x0||^2 / d` of the Gaussian denoiser on a pool, in closed form.

    With W = U diag(lam/(lam+sigma^2)) U^T of the training data and the pool's mean and covariance:
    `tr[(I-W) Sigma_P (I-W)^T] + sigma^2 ||W||_F^2 + ||(I-W)(mu_P-mu)||^2`. On the training data itself this is
    `sum_i lam_i sigma^2 / (lam_i + sigma^2)`.

    Returns:
        (S,), float64.
    """
    levels = torch.tensor(list(sigmas), dtype=torch.float64, device=moments.mean.device)[:, None]
    kept = moments.eigenvalues / (moments.eigenvalues + levels.square())
    lost = 1 - kept
    error = (lost.square() * (pool.variances + pool.offset.square())).sum(1) + (levels * kept).square().sum(1)
    return (error + pool.variance_outside + pool.offset_outside) / len(moments.mean)


def squared_errors(values: Tensor, clean: Tensor) -> Tensor:
    """`||value - clean||^2 / d` of each draw: values (S, m, C, H, W), clean images (m, C, H, W); (S, m), float64."""
    rows = clean.double()
    return torch.stack([(level.double() - rows).square().flatten(1).mean(1) for level in values])


class DenoisingErrors(BlockMetric):
    """Errors `E||D - x0||^2 / d` at each noise level, averaged over draws.

    - `mse` (and `empirical_mse`): of D and of D_M. Part of their noise is that of D_G's error on the same draws, whose
      expectation is known: it is taken away (`regressed`).
    - `position`: `(L_G - L) / (L_G - L_M)` of these errors, 0 at D_G and 1 at D_M; left out where the two are alike.

    Args:
        blocks: Number of blocks.
        expected: D_G's expected error on the pool, over d, (S,) (`gaussian_mse`).
        position: Whether to compare with D_M; of the training images only.
    """

    def __init__(self, blocks: int, expected: Tensor, position: bool = False) -> None:
        super().__init__(blocks, len(expected), (*ERRORS, *PRODUCTS))
        self.expected, self.position = expected.cpu(), position

    def update(self, output: Tensor, empirical: Tensor, gaussian: Tensor, x0: Tensor, block: int) -> None:
        """Measure a block: values (S, m, C, H, W) of D, D_M and D_G, and the clean images (m, C, H, W)."""
        clean = x0.double()
        errors = [
            torch.stack([(level.double() - clean).square().flatten(1).sum(1) for level in part])
            for part in (output, empirical, gaussian)
        ]
        size = clean[0].numel()
        products = [part * errors[-1] / size for part in errors]
        sums = dict(zip((*ERRORS, *PRODUCTS), [*errors, *products], strict=True))
        self.fill(block, {name: part.mean(1) / size for name, part in sums.items()})

    def observed(self) -> Tensor:
        """The rows of blocks, with less noise in the errors."""
        rows = super().observed().clone()
        columns = dict(zip(self.quantities, rows.unbind(-1), strict=True))
        other, square = columns["gaussian_error"], columns["gaussian_error_product"]
        for name in ("error", "empirical_error"):
            value, product = columns[name], columns[f"{name}_product"]
            value.copy_(regressed(value, other, product, square, self.expected))
        return rows

    def derive(self, means: Means) -> Means:
        """The errors, and the position, from means over blocks (..., S)."""
        values = {"mse": means["error"], "empirical_mse": means["empirical_error"]}
        if self.position:
            values["position"] = (self.expected - values["mse"]) / (self.expected - values["empirical_mse"])
        return values

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors, and where the position means something."""
        estimates = super().estimate(rows)
        if "position" in estimates:
            apart = self.expected - estimates["empirical_mse"].value > FLOOR * self.expected
            estimates["position"] = replace(estimates["position"], defined=apart)
        return estimates
