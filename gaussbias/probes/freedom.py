"""Degrees of freedom of a denoiser: the trace of its Jacobian, without any derivative."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.catalogue import IMAGES
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.errors import squared_errors
from gaussbias.metrics.pools import mean_difference
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, by_level
from gaussbias.probes.draws import EachDraw
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References

TRACE, BEYOND, OF_EMPIRICAL = "trace", "beyond", "empirical"
"""What is kept of each draw: the trace of D - D_G; its error less `sigma^2 / d` times that, less D_G's; that of D_M."""


class FreedomProbe(DrawProbe):
    """Degrees of freedom of the denoiser, `E tr J`, J its Jacobian, and how consistent they are with its error.

    By Stein's identity `E tr J = E[D(x) . eps] / sigma`. Of D_G, which is affine, it is known on any images, so only
    the rest is measured: `E tr J = sum lam / (lam + sigma^2) + E[(D - D_G)(x) . eps] / sigma`. It is the dimension of
    the geometry-adaptive basis of Kadkhodaie et al. 2024 (arXiv 2310.02557), `sigma^2` times the divergence of the
    score plus d, and the divergence in Stein's unbiased risk. For an exact posterior mean `sigma^2 E tr J / d` is its
    error (Tweedie's formula of second order), and `freedom/consistency` is 0.

    A network that memorises has fewer degrees of freedom on training images than on held-out ones. Errors of both
    differences cover the choice of the images and the draws (`gaussbias.metrics.pools`).
    """

    entries = (
        catalogue.TRACE,
        catalogue.GAUSSIAN_TRACE,
        catalogue.EMPIRICAL_TRACE,
        catalogue.CONSISTENCY,
        catalogue.TRACE_GAP,
        catalogue.CONSISTENCY_GAP,
    )

    def __init__(self, references: References) -> None:
        super().__init__(references)
        images = [pool for pool in IMAGES if pool in self.bank.pools]
        self.pools: dict[str, EachDraw] = {
            pool: EachDraw(self.bank, pool, (TRACE, BEYOND, OF_EMPIRICAL)) for pool in images
        }
        self.size = len(references.moments.mean)
        self.levels = torch.tensor(self.bank.sigmas, dtype=torch.float64)
        eigenvalues = references.moments.eigenvalues.cpu().double()
        self.of_gaussian = (eigenvalues / (eigenvalues + self.levels[:, None].square())).sum(1)
        self.expected = {pool: references.expected_mse(pool) for pool in images}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        gaussian, empirical = (self.references.at(name, batch) for name in (GAUSSIAN, EMPIRICAL))
        sigmas = batch.sigmas[:, None]
        trace, of_empirical = (_along(part, gaussian, batch.eps) / sigmas for part in (batch.output, empirical))
        above = squared_errors(batch.output, batch.x0) - self.references.errors(GAUSSIAN, batch)
        beyond = above - sigmas.square() * trace / self.size
        self.pools[batch.pool].update({TRACE: trace, BEYOND: beyond, OF_EMPIRICAL: of_empirical}, batch.block)

    def result(self) -> dict[str, Estimate]:
        """The traces and consistencies on both pools, their differences, and the traces of D_G and D_M."""
        estimates: dict[str, Estimate] = {}
        for pool, metric in self.pools.items():
            metric.compute()
            consistent = self.expected[pool] - self.levels.square() * self.of_gaussian / self.size
            found = {
                catalogue.TRACE: _plus(metric.estimates[TRACE], self.of_gaussian),
                catalogue.GAUSSIAN_TRACE: Estimate.exact(self.of_gaussian),
                catalogue.EMPIRICAL_TRACE: _plus(metric.estimates[OF_EMPIRICAL], self.of_gaussian),
                catalogue.CONSISTENCY: _plus(metric.estimates[BEYOND], consistent),
            }
            for entry, estimate in found.items():
                estimates |= self.on_pool(entry.name, pool, replace(estimate, reference=entry.reference))
        if len(self.pools) == len(IMAGES):
            train, heldout = (self.pools[pool].drawn for pool in IMAGES)
            for entry, name in ((catalogue.TRACE_GAP, TRACE), (catalogue.CONSISTENCY_GAP, BEYOND)):
                estimates |= by_level(entry.name, "", mean_difference(train[name], heldout[name]), self.bank.sigmas)
        return estimates


def _along(values: Tensor, gaussian: Tensor, eps: Tensor) -> Tensor:
    """`(D - D_G) . eps` of each draw (S, m), float64."""
    noise = eps.double().flatten(1)
    levels = zip(values, gaussian, strict=True)
    return torch.stack([((a.double() - b.double()).flatten(1) * noise).sum(1) for a, b in levels])


def _plus(estimate: Estimate, constant: Tensor) -> Estimate:
    return replace(estimate, value=estimate.value + constant, pseudo=estimate.pseudo + constant)
