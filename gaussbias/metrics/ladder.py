"""The error ladder: how far a denoiser is from the Gaussian's, in a nonlinear and an affine part.

On noisy images x of a pool P, let D_L be the affine map closest to D in mean square, with weights W_L (Li, Dai and Qu
2024, Section 3.2, arXiv 2410.24060). D_G is affine as well, so by Pythagoras

    total       E||D - D_G||^2     =    nonlinear   E||D - D_L||^2    +    affine   E||D_L - D_G||^2

The affine part, and `||W_L - W_G||_F^2`, are means over pairs of independent draws (`gaussbias.metrics.pairs`): no W is
fitted or stored, and they are unbiased at any number of draws. Small parts may come out slightly below zero, and stay
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, regressed
from gaussbias.metrics.pairs import Pairs, group_count, leading_groups, repeated, with_controls
from gaussbias.moments import Eigenmoments, Projection

FLOOR = 0.05
"""`position` is left out where L_G - L_M is at most this share of L_G: there it is 0/0."""
ERRORS = [
    *("error", "empirical_error", "gaussian_error"),
    *("error_product", "empirical_error_product", "gaussian_error_product"),
]
CERTAIN = 3.0
"""`r2` is left out where the variance of the output is below so many of its standard errors ..."""
UNCERTAIN = 0.3
"""... and where its own standard error is not below this."""


def ladder(output: Tensor, gaussian: Tensor, pairs: Pairs | None = None) -> dict[str, Tensor]:
    """The parts of a denoiser's distance to D_G, from one block of draws.

    Args:
        output: D (S, m, C, H, W).
        gaussian: D_G of the training data, at the same points.
        pairs: Of these draws; `None` where the moments of the points are not known.

    Returns:
        (S,) each, float64, not divided by d: `total`; and with pairs `affine`, `weight_gap`, and `variance`, that of
        the output, `E||D - E[D]||^2`. Also `controls` (S, ...), by which other blocks reduce their noise.
    """
    levels: list[dict[str, Tensor]] = []
    for level, (value, reference) in enumerate(zip(output, gaussian, strict=True)):
        value = value.double().flatten(1)
        g = value - reference.double().flatten(1)
        found = {"total": g.square().sum(1).mean()}
        if pairs is not None:
            found["affine"], found["weight_gap"] = pairs.means(level, g @ g.T)
            found["variance"] = value.var(0).sum()
            found["controls"] = pairs.controls(level, g)
        levels.append(found)
    return {name: torch.stack([found[name] for found in levels]) for name in levels[0]}


def gaussian_weights(moments: Eigenmoments, sigmas: Sequence[float]) -> Tensor:
    """`||W_G||_F^2 = sum_i (lam_i / (lam_i + sigma^2))^2` at each level, (S,), float64."""
    levels = torch.tensor(list(sigmas), dtype=torch.float64)[:, None]
    kept = moments.eigenvalues.cpu() / (moments.eigenvalues.cpu() + levels.square())
    return kept.square().sum(1)


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


class Ladder(BlockMetric):
    """The error ladder at each noise level, by pairs of draws within blocks.

    Values that have the unit of a squared error are divided by d; `weight_gap` is not. What a pool has no meaning
    for is left out: without `expected` (points that are no noisy images) the denoising errors and `position`,
    without known moments everything but `total`.

    - `total`, `affine`, `nonlinear`, `weight_gap`: see the module; `weight_nmse` is `weight_gap / ||W_G||_F^2`.
    - `r2`: `1 - nonlinear / V`, the share of the variance V of the output that an affine map explains; left out where
      V is below three of its standard errors, or the error of `r2` is 0.3 or more.
    - `mse` (and `empirical_mse`): `E||D - x0||^2`, of D and of D_M. Part of their noise is that of D_G's error on the
      same draws, whose expectation is known: it is taken away (`regressed`).
    - `position`: `(L_G - L) / (L_G - L_M)` of these errors, 0 at D_G and 1 at D_M; left out where the two are alike.

    Args:
        blocks: Number of blocks.
        sigmas: Noise levels (S,).
        moments: Of the training data.
        pool: Moments of the images that the draws come from; `None` where they are not known.
        expected: D_G's expected error on the pool, over d, (S,) (`gaussian_mse`); `None` for points without clean
            images.
        position: Whether to compare with D_M; of the training images only.
    """

    marks: Tensor
    controls: Tensor
    scale: Tensor

    def __init__(
        self,
        blocks: int,
        sigmas: Sequence[float],
        moments: Eigenmoments,
        pool: Eigenmoments | None = None,
        expected: Tensor | None = None,
        position: bool = False,
    ) -> None:
        quantities = ["total"]
        quantities += ["affine", "weight_gap", "variance"] if pool is not None else []
        quantities += ERRORS if expected is not None else []
        super().__init__(blocks, len(sigmas), quantities)
        self.size = len(moments.mean)
        self.norms = gaussian_weights(moments, sigmas)
        self.expected = None if expected is None else expected.cpu()
        self.position = position
        groups = 0 if pool is None else group_count(pool)
        self.leading = torch.zeros(0, dtype=torch.long) if pool is None else leading_groups(pool)
        self.add_state("marks", torch.zeros(blocks, dtype=torch.float64), "sum")
        width = 0 if pool is None else 5 * (groups + len(self.leading)) + 2
        self.add_state("controls", torch.zeros(blocks, len(sigmas), width, dtype=torch.float64), "sum")
        self.add_state("scale", torch.zeros(len(sigmas), groups, dtype=torch.float64), "max")

    def update(
        self,
        output: Tensor,
        gaussian: Tensor,
        block: int,
        pairs: Pairs | None = None,
        x0: Tensor | None = None,
        empirical: Tensor | None = None,
    ) -> None:
        """Measure a block: `x0` is (m, C, H, W), the others (S, m, C, H, W); D_M only where there is x0."""
        if (pairs is None) != ("affine" not in self.quantities):
            raise ValueError("Expected `pairs` exactly if the metric has a `pool` but got otherwise.")
        if (x0 is None or empirical is None) != (self.expected is None):
            raise ValueError("Expected `x0` and `empirical` exactly if the metric has `expected` but got otherwise.")
        values = ladder(output, gaussian, pairs)
        if x0 is not None and empirical is not None:
            clean = x0.double()
            errors = [
                torch.stack([(level.double() - clean).square().flatten(1).sum(1) for level in part])
                for part in (output, empirical, gaussian)
            ]
            products = [part * errors[-1] / self.size for part in errors]
            values |= {name: part.mean(1) for name, part in zip(ERRORS, [*errors, *products], strict=True)}
        self.fill(block, {name: values[name] / (1 if name == "weight_gap" else self.size) for name in self.quantities})
        if pairs is not None:
            self.marks[block] = pairs.mark
            self.controls[block] = values["controls"]
            self.scale = pairs.scale

    def observed(self) -> Tensor:
        """The rows of blocks, with less noise in what pairs measured, and in errors."""
        rows = super().observed().clone()
        columns = dict(zip(self.quantities, rows.unbind(-1), strict=True))
        if "affine" in columns:
            controls, scale = self.controls[self.filled > 0].cpu(), self.scale.cpu()
            affine, gap = with_controls(
                columns["affine"] * self.size, columns["weight_gap"], controls, scale, self.leading
            )
            columns["affine"].copy_(affine / self.size)
            columns["weight_gap"].copy_(gap)
        if self.expected is not None:
            other, square = columns["gaussian_error"], columns["gaussian_error_product"]
            for name in ("error", "empirical_error"):
                value, product = columns[name], columns[f"{name}_product"]
                value.copy_(regressed(value, other, product, square, self.expected))
        return rows

    def derive(self, means: Means) -> Means:
        """The rungs, from means over blocks (..., S)."""
        values = {"total": means["total"]}
        if "affine" in means:
            values["affine"] = means["affine"]
            values["nonlinear"] = means["total"] - means["affine"]
            values["weight_gap"] = means["weight_gap"]
            values["weight_nmse"] = means["weight_gap"] / self.norms
            values["r2"] = 1 - values["nonlinear"] / means["variance"]
        if self.expected is not None:
            values["mse"], values["empirical_mse"] = means["error"], means["empirical_error"]
            if self.position:
                values["position"] = (self.expected - values["mse"]) / (self.expected - values["empirical_mse"])
        return values

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors, and where the ratios mean something."""
        estimates = super().estimate(rows)
        if "r2" in estimates:
            place = self.quantities.index("variance")
            variance = rows[..., place]
            certain = variance.mean(0) > CERTAIN * variance.std(0) / len(rows) ** 0.5
            certain &= estimates["r2"].se < UNCERTAIN
            estimates["r2"] = replace(estimates["r2"], defined=certain)
        if "position" in estimates:
            assert self.expected is not None
            apart = self.expected - estimates["empirical_mse"].value > FLOOR * self.expected
            estimates["position"] = replace(estimates["position"], defined=apart)
        return estimates

    def compute(self) -> dict[str, Tensor]:
        """Each value (S,), and as `<name>_se` its standard error.

        Raises:
            ValueError: If a block was filled twice, also under another number.
        """
        if repeated(self.marks[self.marks > 0]):
            raise ValueError("Expected independent blocks but got the same draws under two numbers.")
        return super().compute()
