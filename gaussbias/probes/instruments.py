"""Probes that measure the same draws, of one denoiser or of one with several kinds of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from gaussbias.catalogue import ENTRIES, RAW, Entry
from gaussbias.denoisers import Evaluate, given
from gaussbias.metrics.blocks import Estimate
from gaussbias.numerics.precision import full_precision
from gaussbias.probes.bank import SAMPLES, Batch, Values
from gaussbias.probes.base import Probe
from gaussbias.probes.evaluate import evaluate
from gaussbias.probes.measured import Measured
from gaussbias.probes.references import References
from gaussbias.system.drawer import Picture
from gaussbias.system.errors import safely

EMA, RAW_WEIGHTS = "ema", "raw"
"""Kinds of weights: those that a denoiser is used with, and beside an average those that are trained."""


class Instruments:
    """What measures: probes for each kind of weights, and what they compare with.

        instruments.reset()
        for batch in batches:
            instruments.update(evaluate(denoiser, batch), denoiser)
        measured = instruments.result()

    Args:
        references: What all of the probes compare with.
        probes: For `ema`, or `raw`, or both; values of raw weights have the prefix `raw/`.
    """

    def __init__(self, references: References, probes: Mapping[str, Sequence[Probe]]) -> None:
        if not probes or set(probes) - {EMA, RAW_WEIGHTS}:
            raise ValueError(f"Expected `probes` of the weights ema or raw but got {', '.join(probes) or 'none'}.")
        self.references, self.bank = references, references.bank
        self.probes = {weights: list(part) for weights, part in probes.items()}

    @property
    def entries(self) -> Iterator[Entry]:
        """What is measured."""
        return (entry for probe in self.all() for entry in probe.entries)

    def all(self) -> Iterator[Probe]:
        """The probes of all weights."""
        return (probe for part in self.probes.values() for probe in part)

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        for probe in self.all():
            probe.to(device)

    def reset(self) -> None:
        """Forget the last measurement."""
        self.references.reset()
        for probe in self.all():
            probe.reset()

    def update(self, batch: Values, denoiser: Evaluate, weights: str = EMA) -> None:
        """Measure one batch.

        Args:
            batch: What `evaluate` gives for the denoiser and a batch of the bank.
            denoiser: The denoiser.
            weights: Which weights it has.
        """
        device, denoiser = batch.sigmas.device, given(denoiser, batch.label)
        with torch.no_grad(), full_precision(device):
            for probe in self.probes[weights]:
                probe.update(batch, denoiser)

    def measure(self, denoisers: Mapping[str, Evaluate], device: torch.device, samples: bool = True) -> Iterator[int]:
        """Measure denoisers on the whole bank; gives the number of each block of draws that is done.

        Processes that torch.distributed has joined share out the blocks, and all of them have to come here.

        Args:
            denoisers: By their weights.
            device: Where they are.
            samples: Whether samples are drawn as well.
        """
        self.reset()
        for number in self.bank.numbers(self.bank.names[0]):  # all pools have as many
            for pool in self.bank.names:
                self._evaluate(denoisers, self.bank.batch(pool, number).to(device))
            yield number
        for number in self.bank.numbers(SAMPLES) if samples else ():
            self._evaluate(denoisers, self.bank.batch(SAMPLES, number).to(device))

    def _evaluate(self, denoisers: Mapping[str, Evaluate], batch: Batch) -> None:
        with torch.no_grad():
            for weights, denoiser in denoisers.items():
                self.update(evaluate(denoiser, batch), denoiser, weights)

    def result(self, kimg: float | None = None, draws: int | None = None) -> Measured:
        """What was measured; every rank comes here.

        Args:
            kimg: How long the weights were trained.
            draws: Draws in each pool, if not all of the bank.
        """
        estimates = self.estimates()
        count = self.bank.blocks * self.bank.block if draws is None else draws
        extra = tuple(dict.fromkeys(entry for entry in self.entries if entry.name not in ENTRIES))
        return Measured(kimg, count, estimates, self.bank, extra)

    def estimates(self) -> dict[str, Estimate]:
        """What was measured, by logged name; every rank comes here."""
        found: dict[str, Estimate] = {}
        for weights, part in self.probes.items():
            for probe in part:
                found |= self.named(weights, probe.result())
        return found

    @staticmethod
    def named(weights: str, estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """Estimates by the names that they are logged under for some weights."""
        raw = weights == RAW_WEIGHTS
        return {RAW + name if raw and not each.reference else name: each for name, each in estimates.items()}

    @property
    def missing(self) -> int:
        """Blocks that no rank has measured."""
        return max((probe.missing for probe in self.all()), default=0)

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Write what pictures show, on the first rank, and say which they are; of several weights those of the first.

        What goes wrong with those of a probe is said, and the others are written all the same.

        Args:
            folder: Of the run.
            kimg: When it was measured.
        """
        first = next(iter(self.probes.values()))
        made = (safely(f"pictures of {type(probe).__name__}", probe.pictures, folder, kimg) for probe in first)
        return [picture for pictures in made for picture in pictures or ()]
