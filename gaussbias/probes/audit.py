"""What samples become when noise is added to them and they are sampled back: copies below the surface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias.data.images import to_unit
from gaussbias.denoisers import Evaluate, given
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.generalization import wilson_interval
from gaussbias.metrics.leaks import Leak, ledger
from gaussbias.metrics.neighbours import Neighbours
from gaussbias.noise import karras_sigmas
from gaussbias.numerics.precision import full_precision
from gaussbias.numerics.seeding import generator
from gaussbias.probes.bank import ProbeBank, SampleValues
from gaussbias.probes.base import SampleProbe
from gaussbias.probes.classes import sample_batches, sample_labels
from gaussbias.probes.evaluate import evaluate
from gaussbias.probes.references import References
from gaussbias.sampling import sample

SHOWN = 10
"""Samples in pictures."""
STAGES = (0, 1, 5, 20)
"""Cycles after which samples are shown, and after the last one."""


@dataclass(frozen=True)
class Cycles:
    """What became of samples.

    Attributes:
        sigma: The noise that is added in each cycle, in data units.
        memorized: How many samples are memorised, before the first cycle and after each.
        samples: Of so many.
        stages: Pixels (k, C, H, W) of the first samples, by the number of cycles, and under `nearest` the training
            images nearest to the last of them.
    """

    sigma: float
    memorized: list[int]
    samples: int
    stages: dict[str, Tensor]

    def rows(self) -> list[tuple[int, float, float, float]]:
        """For each cycle its number, the memorised share, and the ends of its 95 % Wilson interval."""
        return [
            (cycle, count / self.samples, *wilson_interval(count, self.samples))
            for cycle, count in enumerate(self.memorized)
        ]


@dataclass(frozen=True)
class Leaks:
    """Which training images samples come closest to.

    Attributes:
        found: The training images, those that leak most surely first.
        pictures: Pixels (k, C, H, W) of the samples closest to the first of them, and of these, by name.
    """

    found: list[Leak]
    pictures: dict[str, Tensor]


class KeepSamples(SampleProbe):
    """Keeps the samples of a measurement by one process, for audits."""

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self._parts: dict[int, Tensor] = {}

    @property
    def all(self) -> Tensor:
        """All samples (n, C, H, W)."""
        return torch.cat([self._parts[block] for block in sorted(self._parts)])

    def reset(self) -> None:
        """Forget the last measurement."""
        super().reset()
        self._parts = {}

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Keep a block."""
        self._parts[batch.block] = batch.samples

    def result(self) -> dict[str, Estimate]:
        """No number."""
        return {}


def samples_of(denoiser: Evaluate, bank: ProbeBank, device: torch.device) -> Tensor:
    """All samples of a denoiser from the latents of a bank, (n, C, H, W), those of classes one after another."""
    with torch.no_grad():
        return torch.cat([evaluate(denoiser, batch).samples for batch in sample_batches(bank, device)])


def run_cycles(
    denoiser: Evaluate,
    references: References,
    samples: Tensor,
    cycles: int,
    sigma: float,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Cycles:
    """Add noise to samples and sample them back, so many times.

    A network that memorises carries samples that are no copies yet to training images (Verma et al. 2026): each cycle
    goes down the sampler's grid of noise levels, as many steps, from `sigma` on.

    Args:
        denoiser: The denoiser.
        references: With the training images and the bank, whose sampler and seed are taken.
        samples: Where to begin, (n, C, H, W), in data units.
        cycles: How many, at least 1.
        sigma: Noise of each cycle, in data units, above the last noise level of the sampler.
        advance: Told how many cycles are done.

    Raises:
        ValueError: For a sigma that the sampler does not begin from.
    """
    bank = references.bank
    denoiser = given(denoiser, sample_labels(bank))
    least = bank.sampler_sigmas[-1]
    if cycles < 1 or not sigma > least:
        raise ValueError(f"Expected at least 1 of `cycles` and a `sigma` above {least:g} but got {cycles} and {sigma}.")
    levels = karras_sigmas(len(bank.sampler_sigmas), least, sigma)
    state, counts, stages = samples, [], {}
    with torch.no_grad(), full_precision(samples.device):
        for cycle in range(cycles + 1):
            if cycle:
                noise = torch.randn(state.shape, generator=generator("cycle", bank.seed, cycle)).to(state)
                state = sample(denoiser, (state + sigma * noise) / sigma, levels, bank.sampler)
                advance(cycle, cycles)
            found = references.nearest(state)
            counts.append(int(_memorized(found).sum()))
            if cycle in STAGES or cycle == cycles:
                stages[str(cycle)] = references.display(state[:SHOWN])
        stages["nearest"] = _images(references, found.index[:SHOWN], state[:SHOWN])
    return Cycles(sigma, counts, len(samples), stages)


def find_leaks(references: References, samples: Tensor) -> Leaks:
    """The training images that samples (n, C, H, W) come closest to."""
    heldout = references.known_heldout
    with full_precision(samples.device):
        near = references.nearest(samples)
        found = ledger(
            near, references.nearest(to_unit(heldout.to(samples.device))), len(references.images), samples[0].numel()
        )
    first = [leak.sample for leak in found[:SHOWN]]
    shown = samples[first]
    images = _images(references, near.index[first], shown)
    return Leaks(found, {"samples": references.display(shown), "training images": images})


def _memorized(found: Neighbours) -> Tensor:
    return found.memorized & found.second.isfinite()


def _images(references: References, index: Tensor, like: Tensor) -> Tensor:
    """Training images as pixels."""
    rows = references.nearest.rows.take(index.clamp(min=0))
    return references.display(rows.view_as(like) if len(like) else like)
