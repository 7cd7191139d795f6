"""Where a denoiser stands between the memoriser and the Gaussian."""

from __future__ import annotations

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.denoisers.theories import BootstrapDenoiser
from gaussbias.metrics.between import Between
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References

STEPS = 10
"""Steps of h from 0 to 1."""


class BetweenProbe(DrawProbe):
    """Which D_h is nearest to the denoiser: h = 0 is the memoriser, h = 1 the Gaussian.

    D_h is the optimal denoiser of a smoothed bootstrap of the training images, which has their mean and covariance for
    every h (`gaussbias.denoisers.theories.bootstrap`). `between/h` is where `E||D - D_h||^2` is least, of eleven h and
    by a parabola, and `between/unexplained` what is left there, over the variance of D. Both are left out where that
    variance is not known to three standard errors.
    """

    entries = (catalogue.BETWEEN, catalogue.BETWEEN_UNEXPLAINED)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        grid = [step / STEPS for step in range(STEPS + 1)]
        self.names = [EMPIRICAL, *(f"bootstrap-{h:g}" for h in grid[1:-1]), GAUSSIAN]
        for name, h in zip(self.names[1:-1], grid[1:-1], strict=True):
            references.add(name, BootstrapDenoiser(references.images, references.moments, h, references.bank.flip))
        sizes = self.bank.blocks, len(self.bank.sigmas)
        self.pools = {pool: Between(*sizes, grid) for pool in self.bank.names}

    def named(self, quantity: str) -> str:
        """A name of the group `between`."""
        return {"h": catalogue.BETWEEN, "unexplained": catalogue.BETWEEN_UNEXPLAINED}[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        family = [self.references.at(name, batch) for name in self.names]
        self.pools[batch.pool].update(batch.output, family, batch.block)
