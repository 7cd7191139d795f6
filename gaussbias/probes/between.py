"""Where a denoiser stands between the memoriser and the Gaussian."""

from __future__ import annotations

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.denoisers.theories import bootstraps
from gaussbias.metrics.between import Between, family_place
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References

STEPS = 10
"""From h = 0 to 1: nine D_h between D_M and D_G."""


class BetweenProbe(DrawProbe):
    """Which D_h is nearest to the denoiser: h = 0 is the memoriser, h = 1 the Gaussian.

    D_h is the optimal denoiser of a smoothed bootstrap of the training images, which has their mean and covariance for
    every h (`gaussbias.denoisers.theories.bootstrap`). `between/h` is where `E||D - D_h||^2` is least, and
    `between/unexplained` what is left there, over the variance of D; nine D_h are compared beside D_M and D_G, with
    parabolas between them (`gaussbias.metrics.between`). Both are left out where that variance is not known to three
    standard errors. A value of exactly 0 or 1 is an end of the family.
    """

    entries = (catalogue.BETWEEN, catalogue.BETWEEN_UNEXPLAINED)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        places = {f"bootstrap at step {step}": family_place(step, STEPS) for step in range(1, STEPS)}
        self.names = [EMPIRICAL, *places, GAUSSIAN]
        if set(places) - set(references):
            images, moments, flip = references.images, references.moments, references.bank.flip
            for name, member in zip(places, bootstraps(images, moments, list(places.values()), flip), strict=True):
                references.add(name, member)
        sizes = self.bank.blocks, len(self.bank.sigmas)
        self.pools = {pool: Between(*sizes, STEPS) for pool in self.bank.names}

    def named(self, quantity: str) -> str:
        """A name of the group `between`."""
        return {"h": catalogue.BETWEEN, "unexplained": catalogue.BETWEEN_UNEXPLAINED}[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        family = [self.references.at(name, batch) for name in self.names]
        self.pools[batch.pool].update(batch.output, family, batch.block)
