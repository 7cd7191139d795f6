"""What all theories together say: the line to beat, and the size of windows."""

from __future__ import annotations

from dataclasses import replace

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate, LocalDenoiser
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.known import BestError
from gaussbias.metrics.least import Least
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import DrawProbe
from gaussbias.probes.references import GAUSSIAN, References


class BestTheoryProbe(DrawProbe):
    """The least error on held-out images of all that is compared with: D_G, D_M and the theories.

    A network that does not beat it has learnt nothing that a formula does not know. A surrogate D_L is none of them,
    since it was fitted to a network. All errors are means over draws less the noise that D_G's error on the same draws
    foretells, as `denoising/mse` is.
    """

    entries = (catalogue.BEST_MSE,)
    needs_pools = ("heldout",)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        formulas = [name for name in references if name != catalogue.LINEAR]
        metric = BestError(self.bank.blocks, references.expected_mse("heldout"), formulas)
        self.pools: dict[str, BestError] = {"heldout": metric}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        metric = self.pools["heldout"]
        errors = {name: self.references.errors(name, batch) for name in metric.names}
        metric.update(errors, self.references.errors(GAUSSIAN, batch), batch.block)

    def result(self) -> dict[str, Estimate]:
        """The least error at each level."""
        self.pools["heldout"].compute()
        estimate = replace(self.pools["heldout"].estimates["least"], reference=True)
        return self.on_pool(catalogue.BEST_MSE.name, "heldout", estimate)


class LocalScaleProbe(DrawProbe):
    """The window of the local score machine that leaves least of the denoiser unexplained, of two or more.

    It jumps from one window to the next, and has no standard error.
    """

    entries = (catalogue.LOCAL_SCALE,)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        machines = {name: references[name] for name in references.others}
        self.windows = {name: float(one.window) for name, one in machines.items() if isinstance(one, LocalDenoiser)}
        if len(self.windows) < 2:
            raise ValueError(f"Expected `references` with two local score machines but got {len(self.windows)}.")
        self.pools = {pool: Least(self.bank.blocks, len(self.bank.sigmas), self.windows) for pool in self.bank.names}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        values = {name: self.references.at(name, batch).double() for name in self.windows}
        squares = {name: (value - batch.output.double()).flatten(2).square().mean(2) for name, value in values.items()}
        self.pools[batch.pool].update(squares, batch.block)

    def measured(self) -> dict[str, Estimate]:
        """Nothing: a mean of windows is none."""
        return {}

    def result(self) -> dict[str, Estimate]:
        """The window at each level of all pools."""
        estimates: dict[str, Estimate] = {}
        for pool, metric in self.pools.items():
            metric.compute()
            estimates |= self.on_pool(catalogue.LOCAL_SCALE.name, pool, metric.estimates["place"])
        return estimates
