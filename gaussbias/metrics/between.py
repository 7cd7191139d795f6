"""Where a denoiser stands in a family of denoisers with one number, by its distance to some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, certain

FINE = 81
"""Places at which that polynomial is evaluated before the lowest is refined."""


def family_place(step: int, steps: int) -> float:
    """The h of a step of u.

    >>> [round(family_place(step, 4), 3) for step in range(5)]
    [0.0, 0.098, 0.383, 0.773, 1.0]
    """
    return math.sin(math.pi / 2 * (step / steps) ** 2)


def lowest(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the lowest of values at even places, and the value there, refined by a parabola.

    Args:
        values: (..., G), G of at least 3.
        places: (G,), rising evenly.

    Returns:
        Two tensors (...); the place lies between the first and the last.
    """
    middle = values.argmin(-1).clamp(1, len(places) - 2)
    left, centre, right = (values.gather(-1, (middle + step)[..., None])[..., 0] for step in (-1, 0, 1))
    slope, bend = (right - left) / 2, right - 2 * centre + left
    # with a bend of 0 or less the lowest of the three is at an end
    end = torch.where(right < left, 1.0, -1.0).to(values)
    step = torch.where(bend > 0, (-slope / bend).clamp(-1, 1), end)
    return places[middle] + step * (places[1] - places[0]), centre + step * slope + step.square() * bend / 2


class Between(BlockMetric):
    """Which D_h of a family is nearest to a denoiser D at each noise level, 0 <= h <= 1.

    - `h`: where `E||D - D_h||^2` is least;
    - `unexplained`: that least distance over the variance of D, `E||D - E D||^2`.

    Some h are compared, at even steps of u from 0 to 1 with `h = sin(pi u^2 / 2)`: D_h is a smooth function of u at
    both ends, and near h = 0, where it changes most, steps are small. About the nearest of them D_h is taken to be the
    parabola in u through three of these denoisers, pixel by pixel, so its distance to D is a polynomial in u whose
    coefficients are means of products of D - D_h.
    Both are left out where the variance of D is below three of its standard errors.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels S.
        steps: Of u, at least 2.
    """

    def __init__(self, blocks: int, levels: int, steps: int) -> None:
        pairs = [f"{place} {place + step}" for step in (0, 1, 2) for place in range(steps + 1 - step)]
        super().__init__(blocks, levels, [*pairs, "variance"])
        self.steps = steps

    def update(self, output: Tensor, family: Sequence[Tensor], block: int) -> None:
        """Measure a block: values (S, m, C, H, W) of D, and of the family, h rising from 0 to 1."""
        values = output.double().flatten(2)
        rests = [values - part.double().flatten(2) for part in family]
        products = [
            (rest * other).mean((1, 2)) for step in (0, 1, 2) for rest, other in zip(rests, rests[step:], strict=False)
        ]
        self.fill(block, dict(zip(self.quantities, [*products, values.var(1).mean(1)], strict=True)))

    def derive(self, means: Means) -> Means:
        """Place and share, from means over blocks (..., S)."""
        count = self.steps + 1
        products = torch.stack([means[name] for name in self.quantities[:-1]], -1)
        squares, beside, beyond = products.split([count, count - 1, count - 2], -1)
        # before h = 0 comes the second one again, since D_h depends on the square of h there
        squares = torch.cat([squares[..., 1:2], squares], -1)
        beside, beyond = torch.cat([beside[..., :1], beside], -1), torch.cat([squares[..., :1], beyond], -1)
        middle = squares[..., 1:].argmin(-1, keepdim=True).clamp(max=count - 2) + 1
        gram = [squares.gather(-1, middle + step) for step in (-1, 0, 1)]
        gram += [beside.gather(-1, middle + step) for step in (-1, 0)] + [beyond.gather(-1, middle - 1)]
        step = torch.linspace(-1, 1, FINE, dtype=torch.float64)
        left, centre, right = step * (step - 1) / 2, 1 - step.square(), step * (step + 1) / 2
        weights = [left**2, centre**2, right**2, 2 * left * centre, 2 * centre * right, 2 * left * right]
        found, least = lowest(
            torch.stack([part * weight for part, weight in zip(gram, weights, strict=True)]).sum(0), step
        )
        u = (middle[..., 0] - 1 + found) / self.steps
        return {"h": (u.square() * math.pi / 2).sin(), "unexplained": least / means["variance"]}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors, and where they mean something."""
        known = certain(rows[..., -1])
        return {name: replace(estimate, defined=known) for name, estimate in super().estimate(rows).items()}
