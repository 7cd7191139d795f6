"""The error ladder: the affine and the nonlinear part of the distance to the Gaussian's denoiser."""

from __future__ import annotations

from pathlib import Path

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.ladder import Ladder
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe
from gaussbias.probes.references import GAUSSIAN, References
from gaussbias.system.drawer import Picture
from gaussbias.system.run_folder import RunFolder

NAMES = {
    "total": catalogue.TOTAL,
    "affine": catalogue.AFFINE,
    "nonlinear": catalogue.NONLINEAR,
    "weight_gap": catalogue.WEIGHT_GAP,
    "weight_nmse": catalogue.WEIGHT_NMSE,
    "r2": catalogue.R2,
}
"""The entries of the rungs of the metric."""


class LadderProbe(DrawProbe):
    """The distance to D_G in its nonlinear and affine part (`gaussbias.metrics.ladder`).

    D_L is the affine map closest to D on the pool, of weights W_L. Parts are unbiased, and small ones may come out
    below 0. `ladder/r2` is left out where the variance of D is not clear of its error; the mean over the band is then
    over the other levels. At each measurement `figures/ladder_kimg.png` shows both parts over time; it goes to W&B as
    `ladder/parts`.
    """

    entries = tuple(NAMES.values())

    def __init__(self, references: References) -> None:
        super().__init__(references)
        moments, pools = references.moments, references.pools
        sizes = self.bank.blocks, self.bank.sigmas
        self.pools = {pool: Ladder(*sizes, moments, pools.get(pool)) for pool in self.bank.names}

    def named(self, quantity: str) -> str:
        """A name of the group `ladder`, but for one."""
        return NAMES[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        gaussian, pairs = self.references.at(GAUSSIAN, batch), self.references.pairs(batch)
        self.pools[batch.pool].update(batch.output, gaussian, batch.block, pairs)

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Both parts over time."""
        path = RunFolder(folder).figures / "ladder_kimg.png"
        return [Picture(catalogue.LADDER_PARTS.name, "gaussbias.figures:draw_ladder_times", (folder,), path)]
