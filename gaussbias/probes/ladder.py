"""The error ladder: the affine and the nonlinear part of the distance to the Gaussian's denoiser, and errors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.ladder import Ladder
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, by_level
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References
from gaussbias.system.drawer import Picture

NAMES = {
    "total": catalogue.TOTAL,
    "affine": catalogue.AFFINE,
    "nonlinear": catalogue.NONLINEAR,
    "weight_gap": catalogue.WEIGHT_GAP,
    "weight_nmse": catalogue.WEIGHT_NMSE,
    "r2": catalogue.R2,
    "position": catalogue.POSITION,
    "mse": catalogue.MSE,
    "empirical_mse": catalogue.EMPIRICAL_MSE,
}
"""The entries of the rungs of the metric."""


class LadderProbe(DrawProbe):
    """The distance to D_G in its nonlinear and affine part, and errors (`gaussbias.metrics.ladder`).

    D_L is the affine map closest to D on the pool, of weights W_L. Parts are unbiased, and small ones may come out
    below 0. `ladder/r2` is left out where the variance of D is not clear of its error, `ladder/position` where D_G and
    D_M are alike (`L_G - L_M` at most 5 % of L_G); the mean over the band is then over the other levels. L and L_M are
    means over draws less the noise that D_G's error on the same draws foretells. At each measurement
    `figures/ladder_kimg.png` shows both parts over time; it goes to W&B as `ladder/parts`.
    """

    entries = (*NAMES.values(), catalogue.GAUSSIAN_MSE)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.expected = {pool: references.expected_mse(pool) for pool in self.bank.pools}
        self.pools = {pool: self._metric(pool) for pool in self.bank.names}

    def _metric(self, pool: str) -> Ladder:
        return Ladder(
            self.bank.blocks,
            self.bank.sigmas,
            self.references.moments,
            pool=self.references.pools.get(pool),
            expected=self.expected.get(pool),
            position=pool == "train",
        )

    def named(self, quantity: str) -> str:
        """Of the group `ladder`, but for some."""
        return NAMES[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        gaussian, pairs = self.references.at(GAUSSIAN, batch), self.references.pairs(batch)
        clean: dict[str, Tensor] = {}
        if batch.pool in self.bank.pools:
            clean = {"x0": batch.x0, "empirical": self.references.at(EMPIRICAL, batch)}
        self.pools[batch.pool].update(batch.output, gaussian, batch.block, pairs, **clean)

    def result(self) -> dict[str, Estimate]:
        """The rungs, and D_G's expected errors."""
        estimates = super().result()
        for pool, errors in self.expected.items():
            estimates |= by_level(catalogue.GAUSSIAN_MSE.name, pool, Estimate.exact(errors), self.bank.sigmas)
        return estimates

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Both parts over time."""
        path = folder / "figures" / "ladder_kimg.png"
        return [Picture(catalogue.LADDER_PARTS.name, "gaussbias.figures:draw_ladder_times", (folder,), path)]
