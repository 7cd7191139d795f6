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
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, certain
from gaussbias.metrics.pairs import Controls, Pairs, group_count, leading_groups, repeated, with_controls
from gaussbias.moments import Eigenmoments

UNCERTAIN = 0.3
"""`r2` is left out where its own standard error is not below this."""


@dataclass(frozen=True)
class Parts:
    """The parts of a denoiser's distance to D_G from one block of draws, not divided by d.

    Attributes:
        values: (S,) each, float64: `total`; and with pairs `affine`, `weight_gap`, and `variance`, that of the output,
            `E||D - E[D]||^2`.
        controls: (S, ...), by which other blocks reduce their noise; `None` without pairs.
    """

    values: dict[str, Tensor]
    controls: Controls | None


def ladder(output: Tensor, gaussian: Tensor, pairs: Pairs | None = None) -> Parts:
    """The parts of a denoiser's distance to D_G, from one block of draws.

    Args:
        output: D (S, m, C, H, W).
        gaussian: D_G of the training data, at the same points.
        pairs: Of these draws; `None` where the moments of the points are not known.
    """
    levels: list[dict[str, Tensor]] = []
    controls: list[Controls] = []
    for level, (value, reference) in enumerate(zip(output, gaussian, strict=True)):
        value = value.double().flatten(1)
        g = value - reference.double().flatten(1)
        parts = {"total": g.square().sum(1).mean()}
        if pairs is not None:
            parts["affine"], parts["weight_gap"] = pairs.means(level, g @ g.T)
            parts["variance"] = value.var(0).sum()
            controls.append(pairs.controls(level, g))
        levels.append(parts)
    values = {name: torch.stack([parts[name] for parts in levels]) for name in levels[0]}
    return Parts(values, Controls.stack(controls) if controls else None)


def gaussian_weights(moments: Eigenmoments, sigmas: Sequence[float]) -> Tensor:
    """`||W_G||_F^2 = sum_i (lam_i / (lam_i + sigma^2))^2` at each level, (S,), float64."""
    levels = torch.tensor(list(sigmas), dtype=torch.float64)[:, None]
    kept = moments.eigenvalues.cpu() / (moments.eigenvalues.cpu() + levels.square())
    return kept.square().sum(1)


class Ladder(BlockMetric):
    """The error ladder at each noise level, by pairs of draws within blocks.

    Values that have the unit of a squared error are divided by d; `weight_gap` is not. Without known moments of the
    pool there is `total` alone.

    - `total`, `affine`, `nonlinear`, `weight_gap`: see the module; `weight_nmse` is `weight_gap / ||W_G||_F^2`.
    - `r2`: `1 - nonlinear / V`, the share of the variance V of the output that an affine map explains; left out where
      V is below three of its standard errors, or the error of `r2` is 0.3 or more.

    Args:
        blocks: Number of blocks.
        sigmas: Noise levels (S,).
        moments: Of the training data.
        pool: Moments of the images that the draws come from; `None` where they are not known.
    """

    marks: Tensor
    scale: Tensor

    def __init__(
        self, blocks: int, sigmas: Sequence[float], moments: Eigenmoments, pool: Eigenmoments | None = None
    ) -> None:
        known = ["affine", "weight_gap", "variance"] if pool is not None else []
        super().__init__(blocks, len(sigmas), ["total", *known])
        self.size = len(moments.mean)
        self.norms = gaussian_weights(moments, sigmas)
        groups = 0 if pool is None else group_count(pool)
        self.leading = torch.zeros(0, dtype=torch.long) if pool is None else leading_groups(pool)
        self.add_state("marks", torch.zeros(blocks, dtype=torch.float64), "sum")
        self.add_state("scale", torch.zeros(len(sigmas), groups, dtype=torch.float64), "max")
        shapes = {} if pool is None else Controls.shapes(groups, len(self.leading))
        for name, shape in shapes.items():
            self.add_state(f"control_{name}", torch.zeros(blocks, len(sigmas), *shape, dtype=torch.float64), "sum")

    def update(self, output: Tensor, gaussian: Tensor, block: int, pairs: Pairs | None = None) -> None:
        """Measure a block of values (S, m, C, H, W) of D and of D_G."""
        if (pairs is None) != ("affine" not in self.quantities):
            raise ValueError("Expected `pairs` exactly if the metric has a `pool` but got otherwise.")
        parts = ladder(output, gaussian, pairs)
        divisors = {name: 1 if name == "weight_gap" else self.size for name in self.quantities}
        self.fill(block, {name: parts.values[name] / divisors[name] for name in self.quantities})
        if pairs is not None and parts.controls is not None:
            self.marks[block] = pairs.mark
            self.scale = pairs.scale
            for name, value in vars(parts.controls).items():
                getattr(self, f"control_{name}")[block] = value

    def observed(self) -> Tensor:
        """The rows of blocks, with less noise in what pairs measured."""
        rows = super().observed().clone()
        columns = dict(zip(self.quantities, rows.unbind(-1), strict=True))
        if "affine" in columns:
            there = self.filled > 0
            controls = Controls(*(getattr(self, f"control_{field.name}")[there].cpu() for field in fields(Controls)))
            affine, gap = with_controls(
                columns["affine"] * self.size, columns["weight_gap"], controls, self.scale.cpu(), self.leading
            )
            columns["affine"].copy_(affine / self.size)
            columns["weight_gap"].copy_(gap)
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
        return values

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors, and where `r2` means something."""
        estimates = super().estimate(rows)
        if "r2" in estimates:
            known = certain(rows[..., self.quantities.index("variance")]) & (estimates["r2"].se < UNCERTAIN)
            estimates["r2"] = replace(estimates["r2"], defined=known)
        return estimates

    def compute(self) -> dict[str, Tensor]:
        """Each value (S,), and as `<name>_se` its standard error.

        Raises:
            ValueError: If a block was filled twice, also under another number.
        """
        if repeated(self.marks[self.marks > 0]):
            raise ValueError("Expected independent blocks but got the same draws under two numbers.")
        return super().compute()
