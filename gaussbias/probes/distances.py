"""Distances to further denoisers: a linear surrogate that was fitted before, and theories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.denoisers import Evaluate, LinearDenoiser, at_levels
from gaussbias.metrics.agreement import rmse
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.known import KnownErrors
from gaussbias.metrics.theories import Explained
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, MeanProbe
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References
from gaussbias.system.drawer import Picture
from gaussbias.system.run_folder import RunFolder

KNOWN = {GAUSSIAN: ("rmse", "mse"), EMPIRICAL: ("rmse", "mse"), catalogue.LINEAR: ("rmse",)}
"""What is logged of them under other names."""


class SurrogateProbe(MeanProbe):
    """The distance of the denoiser to a linear surrogate that was fitted before (`probes.surrogate`).

    Args:
        references: With a bank whose noise levels the surrogate has.
        surrogate: D_L.
    """

    entries = (catalogue.LINEAR_RMSE,)

    def __init__(self, references: References, surrogate: LinearDenoiser) -> None:
        super().__init__(references)
        for sigma in self.bank.sigmas:
            surrogate.level(sigma)  # raises ValueError for one that it does not have
        self.surrogate = surrogate

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        super().to(device)
        self.surrogate.to(device)

    def of_draws(self, batch: DrawValues, denoiser: Evaluate) -> dict[str, Tensor]:
        """The distance at each draw."""
        values = at_levels(self.surrogate, batch.x, batch.sigmas)
        return {catalogue.LINEAR_RMSE.name: rmse(batch.output, values)}


class TheoryProbe(DrawProbe):
    """How much of a denoiser a theory explains, a denoiser that can be written down, and the theory's own error.

    The error is a mean over draws less the noise that D_G's error on the same draws foretells, as that of the denoiser.
    What has a name of its own already is left out: distances to D_G, D_M and D_L, and errors of D_G and D_M.

    Args:
        references: With a denoiser of that name.
        name: Of the theory.
    """

    def __init__(self, references: References, name: str) -> None:
        super().__init__(references)
        self.name = name
        known = KNOWN.get(name, ())
        entries = dict(zip(("unexplained", "rmse", "mse"), catalogue.theory_entries(name), strict=True))
        self.names = {quantity: entry.name for quantity, entry in entries.items() if quantity not in known}
        self.entries: tuple[Entry, ...] = tuple(entries[quantity] for quantity in self.names)
        blocks, pools = self.bank.blocks, self.bank.pools if "mse" in self.names else {}
        self.pools = {pool: Explained(blocks, len(self.bank.sigmas)) for pool in self.bank.names}
        self.errors = {pool: KnownErrors(blocks, references.expected_mse(pool), [name]) for pool in pools}

    def metrics(self) -> Iterable[Metric]:
        """Those of all pools."""
        return (*self.pools.values(), *self.errors.values())

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        values = self.references.at(self.name, batch)
        self.pools[batch.pool].update(batch.output, values, batch.block)
        if batch.pool in self.errors:
            own, gaussian = (self.references.errors(name, batch) for name in (self.name, GAUSSIAN))
            self.errors[batch.pool].update({self.name: own}, gaussian, batch.block)

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Those of all theories, which D_G, one of them always, stands for."""
        if self.name != GAUSSIAN:
            return []
        path = RunFolder(folder).figures / "theories_kimg.png"
        return [Picture(catalogue.THEORY_MAP.name, "gaussbias.figures:draw_theories_now", (folder,), path)]

    def result(self) -> dict[str, Estimate]:
        """What it leaves on all pools, and its error where there are clean images."""
        estimates: dict[str, Estimate] = {}
        for pool, metric in self.pools.items():
            metric.compute()
            for quantity, estimate in metric.estimates.items():
                if quantity in self.names:
                    estimates |= self.on_pool(self.names[quantity], pool, estimate)
        for pool, errors in self.errors.items():
            errors.compute()
            estimates |= self.on_pool(self.names["mse"], pool, replace(errors.estimates[self.name], reference=True))
        return estimates
