"""Distances to further denoisers: a linear surrogate that was fitted before, and theories."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.denoisers import Evaluate, LinearDenoiser, at_levels
from gaussbias.metrics.agreement import rmse
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import MeanProbe
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


class TheoryProbe(MeanProbe):
    """The distance of the denoiser to a theory, a denoiser that can be written down, and the theory's own error.

    Args:
        references: With a denoiser of that name.
        name: Of the theory.
    """

    def __init__(self, references: References, name: str) -> None:
        self.name = name
        self.entries: tuple[Entry, ...] = catalogue.theory_entries(name)
        super().__init__(references)

    def of_draws(self, batch: DrawValues, denoiser: Evaluate) -> dict[str, Tensor]:
        """The distance, and the error, at each draw."""
        rmse_entry, mse_entry = self.entries
        values = self.references.at(self.name, batch)
        error = (values.double() - batch.x0.double()).flatten(2).square().mean(2)
        return {rmse_entry.name: rmse(batch.output, values), mse_entry.name: error}
