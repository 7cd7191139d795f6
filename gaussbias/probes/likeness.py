"""How alike samples are to those that a theory makes from the same latents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.denoisers import Denoiser, Evaluate, theories
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.pairing import Likeness
from gaussbias.probes.bank import SAMPLES, SampleValues
from gaussbias.probes.base import SampleProbe
from gaussbias.probes.references import References

MEANS = ("r", "r2")
"""What is averaged over samples."""


class LikenessProbe(SampleProbe):
    """The first samples beside those of a theory from the same latents, by the same sampler.

    Args:
        references: With a denoiser of that name.
        name: Of the theory.
        count: How many samples, at most all of the bank.
    """

    def __init__(self, references: References, name: str, count: int) -> None:
        super().__init__(references)
        self.name, self.count = name, min(count, self.bank.samples)
        self.entries = catalogue.likeness_entries(name)
        self.metric = Likeness(self.count)

    def metrics(self) -> Iterable[Metric]:
        """That of the pairs."""
        return (self.metric,)

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Measure what is wanted of a block of samples."""
        wanted = self.count - batch.start
        if wanted > 0:
            predicted = self.references.samples(self.name, batch, wanted)
            self.metric.update(batch.samples[:wanted], predicted, batch.start)

    def measured(self) -> dict[str, Estimate]:
        """Means with their errors; a median over classes is none of theirs."""
        means = {entry.name for entry in self.entries[: len(MEANS)]}
        return {name: estimate for name, estimate in self.result().items() if name in means}

    def result(self) -> dict[str, Estimate]:
        """Means with their errors, and the median with the ends of its interval, if it has one."""
        values = self.metric.compute()
        means = [replace(self.metric.estimates[name].at(0), pool=SAMPLES) for name in MEANS]
        names = ("r_median", "r_median_low", "r_median_high")
        rest = [replace(Estimate.exact(values[name].cpu()), reference=False) for name in names]
        named = zip((entry.name for entry in self.entries), [*means, *rest], strict=True)
        return {name: estimate for name, estimate in named if bool(estimate.value.isfinite())}


def has_samples(denoiser: Denoiser, references: References) -> bool:
    """Whether a denoiser has the noise levels of the sampler; a surrogate, or one of the user's, may have others."""
    if type(denoiser).__module__.startswith(theories.__name__):
        return True
    noise = torch.zeros(1, *references.bank.shape, device=references.mean.device)
    try:
        with torch.no_grad():
            for sigma in references.bank.sampler_sigmas:
                denoiser(noise, torch.full((1,), sigma, device=noise.device))
    except (RuntimeError, ValueError):
        return False
    return True
