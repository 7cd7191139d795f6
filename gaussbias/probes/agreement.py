"""How far a denoiser is from the Gaussian's and from the memoriser's."""

from __future__ import annotations

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.agreement import Agreement
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References


class AgreementProbe(DrawProbe):
    """Distances of the denoiser to D_G and to D_M (`gaussbias.metrics.agreement`); all are 0 or more."""

    entries = (catalogue.GAUSSIAN_RMSE, catalogue.GAUSSIAN_RELATIVE, catalogue.EMPIRICAL_RMSE)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.pools = {pool: Agreement(self.bank.blocks, len(self.bank.sigmas)) for pool in self.bank.names}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        gaussian, empirical = (self.references.at(name, batch) for name in (GAUSSIAN, EMPIRICAL))
        self.pools[batch.pool].update(batch.output, gaussian, empirical, batch.block)
