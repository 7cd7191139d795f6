"""The gap between errors on held-out and on training images that the Gaussian's denoiser does not explain."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.catalogue import IMAGES
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.metrics.pools import Drawn, mean_difference, probability_below
from gaussbias.noise import in_band
from gaussbias.probes.bank import DrawValues, ProbeBank
from gaussbias.probes.base import DrawProbe, by_level
from gaussbias.probes.references import GAUSSIAN, References


class EachDraw(BlockMetric):
    """Numbers of each draw of a pool at each noise level, kept for comparing pools by their images.

    Args:
        bank: The draws.
        pool: Of images.
        quantities: Names of the numbers.
    """

    def __init__(self, bank: ProbeBank, pool: str, quantities: tuple[str, ...]) -> None:
        super().__init__(bank.blocks, len(bank.sigmas), quantities, each=bank.block)
        self.bank, self.pool = bank, pool

    def update(self, values: dict[str, Tensor], block: int) -> None:
        """Keep the numbers (S, m) of a block."""
        self.fill(block, values)

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """The mean of each number, by blocks."""
        return super().estimate(rows.mean(2))

    def drawn(self) -> dict[str, Drawn]:
        """The numbers of all draws that were measured (S, M), with their images."""
        blocks = self.filled.nonzero().flatten().tolist()
        images = torch.cat([self.bank.chosen(self.pool, block) for block in blocks])
        values = self.observed().permute(3, 1, 0, 2).flatten(2)
        return {name: Drawn(part, images) for name, part in zip(self.quantities, values, strict=True)}


def errors(values: Tensor, clean: Tensor) -> Tensor:
    """`||value - clean||^2 / d` of values (S, m, C, H, W) and clean images (m, C, H, W), (S, m), float64."""
    rows = clean.double()
    return torch.stack([(level.double() - rows).square().flatten(1).mean(1) for level in values])


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
        own, gaussian = (errors(part, batch.x0) for part in (batch.output, self.references.at(GAUSSIAN, batch)))
        self.pools[batch.pool].update({"beyond": own - gaussian, "gaussian": gaussian}, batch.block)

    def result(self) -> dict[str, Estimate]:
        """The differences of both pools."""
        for metric in self.pools.values():
            metric.compute()
        train, heldout = (self.pools[pool].drawn() for pool in IMAGES)
        found = {
            catalogue.GAP_MSE: mean_difference(train["beyond"], heldout["beyond"]),
            catalogue.GAP_AUC: probability_below(train["beyond"], heldout["beyond"]),
            catalogue.GAP_AUC_GAUSSIAN: probability_below(train["gaussian"], heldout["gaussian"]),
        }
        estimates: dict[str, Estimate] = {}
        for entry, estimate in found.items():
            estimates |= by_level(entry.name, "", replace(estimate, reference=entry.reference), self.bank.sigmas)
        return estimates | self._in_errors(found[catalogue.GAP_MSE])

    def _in_errors(self, gap: Estimate) -> dict[str, Estimate]:
        """The gap over its standard error at each level, and the largest of the band.

        The mean over the band would hide it: at high noise the choice of images makes far more noise than any network
        that memorises makes gap, and at low noise D_G, which fits few images as well as a memoriser, explains too much.
        """
        z = gap.value / gap.se
        values = {catalogue.GAP_Z.at(sigma): z[i] for i, sigma in enumerate(self.bank.sigmas)}
        band = in_band(self.bank.sigmas)
        if band:
            values[catalogue.GAP_Z.name] = z[band].max()
        return {name: replace(Estimate.exact(value), reference=False) for name, value in values.items()}
