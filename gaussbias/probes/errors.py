"""Denoising errors, beside those of the Gaussian's denoiser and of the memoriser."""

from __future__ import annotations

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.errors import DenoisingErrors
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, by_level
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References

NAMES = {"mse": catalogue.MSE, "empirical_mse": catalogue.EMPIRICAL_MSE, "position": catalogue.POSITION}
"""The entries of the quantities of the metric."""


class ErrorsProbe(DrawProbe):
    """Denoising errors on pools of images (`gaussbias.metrics.errors`).

    L and L_M are means over draws less the noise that D_G's error on the same draws foretells. `ladder/position` is
    left out where D_G and D_M are alike (`L_G - L_M` at most 5 % of L_G); the mean over the band is then over the other
    levels.
    """

    entries = (*NAMES.values(), catalogue.GAUSSIAN_MSE)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.expected = {pool: references.expected_mse(pool) for pool in self.bank.pools}
        self.pools = {
            pool: DenoisingErrors(self.bank.blocks, expected, position=pool == "train")
            for pool, expected in self.expected.items()
        }

    def named(self, quantity: str) -> str:
        """A name of the group `denoising`, but for one."""
        return NAMES[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        empirical, gaussian = (self.references.at(name, batch) for name in (EMPIRICAL, GAUSSIAN))
        self.pools[batch.pool].update(batch.output, empirical, gaussian, batch.x0, batch.block)

    def result(self) -> dict[str, Estimate]:
        """The errors, and D_G's expected ones."""
        estimates = super().result()
        for pool, errors in self.expected.items():
            estimates |= by_level(catalogue.GAUSSIAN_MSE.name, pool, Estimate.exact(errors), self.bank.sigmas)
        return estimates
