"""How much of a denoiser a theory explains."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gaussbias.metrics.agreement import rmse
from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, certain

QUANTITIES = ("rmse", "square", "variance")


class Explained(BlockMetric):
    """A denoiser D beside a theory T, at each noise level.

    - `rmse`: the mean of `sqrt(||D - T||^2 / d)`;
    - `unexplained`: `E||D - T||^2 / E||D - E D||^2`, 1 less R2; the variance of D is unbiased, by the draws of a
      block. It is left out where the variance is below three of its standard errors.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels S.
    """

    def __init__(self, blocks: int, levels: int) -> None:
        super().__init__(blocks, levels, QUANTITIES)

    def update(self, output: Tensor, theory: Tensor, block: int) -> None:
        """Measure a block: values (S, m, C, H, W) of D and T."""
        values = output.double().flatten(2)
        self.fill(
            block,
            {
                "rmse": rmse(output, theory).mean(1),
                "square": (values - theory.double().flatten(2)).square().mean((1, 2)),
                "variance": values.var(1).mean(1),
            },
        )

    def derive(self, means: Means) -> Means:
        """The values, from means over blocks (..., S)."""
        return {"rmse": means["rmse"], "unexplained": means["square"] / means["variance"]}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors, and where the share means something."""
        estimates = super().estimate(rows)
        known = certain(rows[..., self.quantities.index("variance")])
        estimates["unexplained"] = replace(estimates["unexplained"], defined=known)
        return estimates
