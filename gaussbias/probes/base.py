"""What a probe is, and one that takes a mean over draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from gaussbias.catalogue import POOLS, Entry, on_pool
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import BlockMetric, DrawMeans, Estimate
from gaussbias.metrics.frechet import FrechetDistance
from gaussbias.noise import in_band
from gaussbias.probes.bank import TRAJECTORY, DrawValues, SampleValues, Values
from gaussbias.probes.references import GAUSSIAN, Constant, References
from gaussbias.system.drawer import Picture


class Probe(ABC):
    """One thing that is measured of a denoiser, on the batches of a probe bank.

    Its state is that of metrics that are added up over ranks. Values have standard errors by blocks of draws.

    Args:
        references: What it compares with; their bank says how many draws and noise levels there are.

    Attributes:
        entries: What it measures, for all who show it.
        needs_samples: Whether it looks at samples, which a bank may not have.
        needs_pools: Pools that it cannot do without.
    """

    entries: Sequence[Entry] = ()
    needs_samples: ClassVar[bool] = False
    needs_pools: ClassVar[tuple[str, ...]] = ()

    def __init__(self, references: References) -> None:
        self.references, self.bank = references, references.bank
        if self.needs_samples and not self.bank.samples:
            raise ValueError(f"Expected a probe bank with `samples` above 0 but got {self.bank.samples}.")
        if set(self.needs_pools) - set(self.bank.names):
            raise ValueError(
                f"Expected a probe bank with the pools {', '.join(self.needs_pools)} but got "
                f"{', '.join(self.bank.names)}."
            )

    def metrics(self) -> Iterable[Metric]:
        """The metrics that are moved and emptied together."""
        return ()

    def to(self, device: torch.device) -> None:
        """Move the references and the metrics to a device."""
        self.references.to(device)
        for metric in self.metrics():
            metric.to(device)

    def reset(self) -> None:
        """Forget the last measurement."""
        for metric in self.metrics():
            metric.reset()

    @abstractmethod
    def update(self, batch: Values, denoiser: Evaluate) -> None:
        """Measure one batch; nothing that ranks do together, since they may have unequal numbers of them.

        Args:
            batch: With the denoiser's values, or its samples.
            denoiser: For points beyond those of the batch.
        """

    @abstractmethod
    def result(self) -> dict[str, Estimate]:
        """What was measured, by logged name; every rank comes here, and all have the same."""

    def measured(self) -> dict[str, Estimate]:
        """What was measured that means something as a mean over classes, by logged name; every rank comes here."""
        return self.result()

    def finish(self, estimates: dict[str, Estimate], alike: float = 1.0) -> dict[str, Estimate]:
        """What was measured, with what is made of its values and errors: intervals, and values over their errors.

        Args:
            estimates: What `measured` gives, or means over classes of it.
            alike: Over how many classes of equal shares.
        """
        return estimates

    def join(self, others: Sequence[Probe]) -> None:  # noqa: B027, most show the same for all classes
        """Take what the same probe has of other classes, for pictures of all of them."""

    @property
    def missing(self) -> int:
        """Blocks that no rank has measured."""
        return max((metric.missing for metric in self.metrics() if isinstance(metric, BlockMetric)), default=0)

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Write what pictures of this measurement are drawn from, on the first rank, and say which they are.

        Args:
            folder: Of the run.
            kimg: When it was measured.
        """
        return []


class DrawProbe(Probe):
    """A probe with a metric for each pool of draws, whose values are those of each noise level."""

    pools: Mapping[str, BlockMetric]

    def metrics(self) -> Iterable[Metric]:
        """Those of all pools."""
        return self.pools.values()

    def update(self, batch: Values, denoiser: Evaluate) -> None:
        """Measure one block of draws."""
        if isinstance(batch, DrawValues) and batch.pool in self.pools:
            self.measure(batch, denoiser)

    @abstractmethod
    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Update the metric of the pool of the batch."""

    def named(self, quantity: str) -> str:
        """The name of the entry of a quantity of the metrics."""
        return quantity

    def result(self) -> dict[str, Estimate]:
        """The estimates of all pools."""
        estimates: dict[str, Estimate] = {}
        baselines = {entry.name for entry in self.entries if entry.reference}
        for pool, metric in self.pools.items():
            metric.compute()
            for quantity, estimate in metric.estimates.items():
                name = self.named(quantity)
                estimates |= self.on_pool(name, pool, replace(estimate, reference=name in baselines))
        return estimates

    def on_pool(self, name: str, pool: str, estimate: Estimate) -> dict[str, Estimate]:
        """An estimate (S,) by its logged names on a pool."""
        return by_level(name, pool, replace(estimate, pool=estimate.pool or pool), self.bank.sigmas)


class MeanProbe(DrawProbe):
    """A probe whose values are means over draws of one number for each draw and noise level: see `of_draws`."""

    def __init__(self, references: References) -> None:
        super().__init__(references)
        named = {
            pool: [entry.name for entry in self.entries if pool in entry.pools or pool not in POOLS]
            for pool in self.bank.names
        }
        levels = len(self.bank.sigmas)
        self.pools: dict[str, DrawMeans] = {
            pool: DrawMeans(self.bank.blocks, levels, names) for pool, names in named.items() if names
        }

    @abstractmethod
    def of_draws(self, batch: DrawValues, denoiser: Evaluate) -> dict[str, Tensor]:
        """Values (S, m) for the draws of a batch, by the names of the entries."""

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Update the metric of the pool of the batch."""
        self.pools[batch.pool].update(self.of_draws(batch, denoiser), batch.block)


class SampleProbe(Probe):
    """A probe of samples."""

    needs_samples = True

    def update(self, batch: Values, denoiser: Evaluate) -> None:
        """Measure one block of samples."""
        if isinstance(batch, SampleValues):
            self.measure(batch, denoiser)

    @abstractmethod
    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Update the metrics with one block of samples."""


class ScoreProbe(SampleProbe):
    """A probe of samples with one metric, beside that of D_G's samples from the same latents, which is made once."""

    metric: BlockMetric | FrechetDistance
    fixed: Constant[Any]

    def metrics(self) -> Iterable[Metric]:
        """That of the samples, once it is made."""
        return (self.metric,) if hasattr(self, "metric") else ()

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Measure one block of samples."""
        self.metric.update(batch.samples, batch.start)
        if self.fixed.lacks(batch.block):
            self.fixed.metric.update(self.references.samples(GAUSSIAN, batch), batch.start)


def by_level(name: str, pool: str, estimate: Estimate, sigmas: Sequence[float]) -> dict[str, Estimate]:
    """An estimate (S,) by its logged names: the mean over the intermediate band, then each level.

    Levels where the value has no meaning are left out, of the mean too. An empty pool is none.
    """
    defined = [i for i in range(len(sigmas)) if estimate.defined[i]]
    band = [i for i in in_band(sigmas) if i in defined]
    where = on_pool(name, pool)
    levels = {f"{where}{Entry.end(sigmas[i])}": estimate.at(i) for i in defined}
    return ({where: estimate.mean(band)} if band else {}) | levels


def moves(pool: str) -> bool:
    """Whether the points of a pool move with the denoiser."""
    return pool == TRAJECTORY
