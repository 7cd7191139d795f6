"""What guidance adds to an unconditional denoiser, and how much of it two Gaussians explain.

The term of classifier-free guidance is `g = D(x, c) - D(x)`. With the Gaussian of class c, of mean mu_c and
`S_c = Sigma_c (Sigma_c + sigma^2)^-1`, and that of all images it is

    g_G = (S_c - S)(x - mu_c) + (I - S)(mu_c - mu)

(Li, Wang and Qu 2025, arXiv 2505.19210): the mean shift, which is the same at every x, and the contrast, whose
eigenvectors with positive eigenvalues are what the class has more of than others, those with negative ones what it has
less of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate, Means, certain

PARTS = ("shift", "positive", "negative")


class GuidanceTerm(BlockMetric):
    """The term of guidance at each noise level, averaged over draws.

    - `norm`: `sqrt(E ||g||^2 / d)`;
    - `explained`: `1 - E ||g - g_G||^2 / E ||g||^2`;
    - `shift`, `positive`, `negative`: `E <g, part> / E ||g||^2` of each part of g_G. If g is g_G they add up to 1.

    Shares are left out where `E ||g||^2` is not clear of 0.

    Args:
        blocks: Number of blocks.
        levels: Number of noise levels.
        parts: Which parts are told apart.
    """

    def __init__(self, blocks: int, levels: int, parts: tuple[str, ...] = PARTS) -> None:
        super().__init__(blocks, levels, ("square", "rest", *parts))
        self.parts = parts

    def update(self, term: Tensor, parts: Mapping[str, Tensor], block: int) -> None:
        """Measure a block.

        Args:
            term: g (S, m, d).
            parts: Those of g_G, which adds them up, by name, (S, m, d) each or the same for all draws (S, 1, d).
            block: Its number.
        """
        g = term.double()
        rest = g - sum(part.double() for part in parts.values())
        values = {"square": g.square().mean((1, 2)), "rest": rest.square().mean((1, 2))}
        self.fill(block, values | {name: (g * parts[name].double()).mean((1, 2)) for name in self.parts})

    def derive(self, means: Means) -> Means:
        """The norm and the shares."""
        square = means["square"]
        shares = {name: means[name] / square for name in self.parts}
        return {"norm": square.sqrt(), "explained": 1 - means["rest"] / square, **shares}

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """Values with their errors from the rows of blocks."""
        clear = certain(rows[..., 0])
        found = super().estimate(rows)
        return {name: each if name == "norm" else replace(each, defined=clear) for name, each in found.items()}
