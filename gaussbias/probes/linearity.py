"""How nearly linear a denoiser is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.linearity import Linearity
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, moves
from gaussbias.probes.references import GAUSSIAN, References

NAMES = {
    "cosine": (catalogue.COSINE, catalogue.GAUSSIAN_COSINE),
    "cosine_signed": (catalogue.COSINE_SIGNED, catalogue.GAUSSIAN_COSINE_SIGNED),
    "nmse": (catalogue.NMSE, catalogue.GAUSSIAN_NMSE),
    "affine_cosine": (catalogue.AFFINE_COSINE, None),
    "affine_nmse": (catalogue.AFFINE_NMSE, None),
}
"""The entries of the quantities of the metric, of a denoiser and of D_G."""


class LinearityProbe(DrawProbe):
    """Mixtures of two noisy images against mixtures of the denoiser's values (`gaussbias.metrics.linearity`).

    x1 and x2 are two noisy images of one level, a = b = 1/sqrt 2, and the mean is that of the training images. D_G is
    affine, so its values are what the plain forms give for a perfectly affine denoiser. An untrained network is nearly
    linear as well: read these beside the loss.
    """

    entries = (
        *(entry for entry, _ in NAMES.values()),
        *(entry for _, entry in NAMES.values() if entry is not None),
    )

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.pools = {pool: self._metric() for pool in self.bank.names}
        self.moving = {pool: self._metric() for pool in self.bank.names if moves(pool)}
        self.fixed = {
            pool: references.constant(f"linearity of D_G on {pool}", self._metric)
            for pool in self.bank.names
            if not moves(pool)
        }

    def _metric(self) -> Linearity:
        return Linearity(self.bank.blocks, len(self.bank.sigmas), self.references.mean)

    def metrics(self) -> Iterable[Metric]:
        """Those of all pools, and of D_G where its points move."""
        return [*self.pools.values(), *self.moving.values()]

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        self.pools[batch.pool].update(denoiser, batch.x, batch.output, batch.sigmas, batch.block)
        moving = self.moving.get(batch.pool)
        if moving is None and not self.fixed[batch.pool].lacks(batch.block):
            return
        metric = self.fixed[batch.pool].metric if moving is None else moving
        values = self.references.at(GAUSSIAN, batch)
        metric.update(self.references.gaussian, batch.x, values, batch.sigmas, batch.block)

    def named(self, quantity: str) -> str:
        """The name of a quantity of the denoiser."""
        return NAMES[quantity][0].name

    def result(self) -> dict[str, Estimate]:
        """The estimates of all pools, and D_G's."""
        estimates = super().result()
        for pool in self.bank.names:
            for quantity, estimate in self._of_gaussian(pool).items():
                entry = NAMES[quantity][1]
                if entry is not None:
                    # where the points move with the denoiser, so does what D_G has there
                    estimates |= self.on_pool(entry.name, pool, replace(estimate, reference=not moves(pool)))
        return estimates

    def _of_gaussian(self, pool: str) -> dict[str, Estimate]:
        if pool in self.fixed:
            return self.fixed[pool].compute()
        self.moving[pool].compute()
        return self.moving[pool].estimates
