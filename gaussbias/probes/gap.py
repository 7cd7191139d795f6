"""The gap between errors on held-out and on training images that the Gaussian's denoiser does not explain."""

from __future__ import annotations

from dataclasses import replace

import torch

from gaussbias import catalogue
from gaussbias.catalogue import IMAGES
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.errors import squared_errors
from gaussbias.metrics.pools import mean_difference, probability_below
from gaussbias.noise import in_band
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, by_level
from gaussbias.probes.draws import EachDraw
from gaussbias.probes.references import GAUSSIAN, References


class GapProbe(DrawProbe):
    """How much smaller errors are on training images than on held-out ones, beyond what D_G explains.

    D_G fits the moments of its training images, so it has such a gap too, and the larger the fewer they are; each
    draw's error is taken less D_G's error on the same draw. Standard errors cover the choice of the images and the
    draws (`gaussbias.metrics.pools`). A network that copies nothing has a `gap/z` that is normal about 0 or below at
    each noise level (`gap/z` without a level is the largest of the intermediate ones), and a `gap/auc` of 1/2 or below:
    while it has not yet learnt what D_G knows of its training images, both are below.
    """

    entries = (catalogue.GAP_MSE, catalogue.GAP_Z, catalogue.GAP_AUC, catalogue.GAP_AUC_GAUSSIAN)
    needs_pools = IMAGES

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.pools: dict[str, EachDraw] = {pool: EachDraw(self.bank, pool, ("beyond", "gaussian")) for pool in IMAGES}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        own, gaussian = squared_errors(batch.output, batch.x0), self.references.errors(GAUSSIAN, batch)
        self.pools[batch.pool].update({"beyond": own - gaussian, "gaussian": gaussian}, batch.block)

    def result(self) -> dict[str, Estimate]:
        """The differences of both pools, and the gap over its error."""
        return self.finish(self.measured())

    def measured(self) -> dict[str, Estimate]:
        """The differences of both pools."""
        for metric in self.pools.values():
            metric.compute()
        train, heldout = (self.pools[pool].drawn for pool in IMAGES)
        found = {
            catalogue.GAP_MSE: mean_difference(train["beyond"], heldout["beyond"]),
            catalogue.GAP_AUC: probability_below(train["beyond"], heldout["beyond"]),
            catalogue.GAP_AUC_GAUSSIAN: probability_below(train["gaussian"], heldout["gaussian"]),
        }
        estimates: dict[str, Estimate] = {}
        for entry, estimate in found.items():
            estimates |= by_level(entry.name, "", replace(estimate, reference=entry.reference), self.bank.sigmas)
        return estimates

    def finish(self, estimates: dict[str, Estimate], alike: float = 1.0) -> dict[str, Estimate]:
        """Also the gap over its standard error at each level, and the largest of the band.

        The mean over the band would hide it: at high noise the choice of images makes far more noise than any network
        that memorises makes gap, and at low noise D_G, which fits few images as well as a memoriser, explains too much.
        """
        sigmas = self.bank.sigmas
        gaps = [estimates[catalogue.GAP_MSE.at(sigma)] for sigma in sigmas]
        z = torch.stack([gap.value / gap.se for gap in gaps])
        values = {catalogue.GAP_Z.at(sigma): z[i] for i, sigma in enumerate(sigmas)}
        band = in_band(sigmas)
        if band:
            values[catalogue.GAP_Z.name] = z[band].max()
        return estimates | {name: replace(Estimate.exact(value), reference=False) for name, value in values.items()}
