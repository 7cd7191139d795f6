"""Distances to further denoisers: a linear surrogate that was fitted before, and theories."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.catalogue import POOLS, Entry
from gaussbias.denoisers import Evaluate, LinearDenoiser, at_levels
from gaussbias.metrics.agreement import rmse
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.theories import Explained
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe, MeanProbe
from gaussbias.probes.references import References


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

    Args:
        references: With a denoiser of that name.
        name: Of the theory.
    """

    def __init__(self, references: References, name: str) -> None:
        super().__init__(references)
        self.name = name
        self.entries: tuple[Entry, ...] = catalogue.theory_entries(name)
        sizes = self.bank.blocks, len(self.bank.sigmas)
        self.pools = {pool: Explained(*sizes) for pool in self.bank.names}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        self.pools[batch.pool].update(batch.output, self.references.at(self.name, batch), batch.x0, batch.block)

    def named(self, quantity: str) -> str:
        """A name of the group of the theory."""
        return dict(zip(("unexplained", "rmse", "mse"), self.entries, strict=True))[quantity].name

    def on_pool(self, name: str, pool: str, estimate: Estimate) -> dict[str, Estimate]:
        """All values on all pools, but the error where there are no clean images."""
        entry = next(entry for entry in self.entries if entry.name == name)
        return super().on_pool(name, pool, estimate) if pool in entry.pools or pool not in POOLS else {}
