"""The samples beside the Gaussian's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.agreement import SampleAgreement
from gaussbias.metrics.blocks import Estimate
from gaussbias.probes.bank import SAMPLES, SampleValues
from gaussbias.probes.base import SampleProbe
from gaussbias.probes.references import GAUSSIAN, References


class SampleAgreementProbe(SampleProbe):
    """How near samples are to those of D_G from the same latents with the same sampler."""

    entries = (catalogue.SAMPLE_COSINE, catalogue.SAMPLE_RMSE)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        self.metric = SampleAgreement(self.bank.samples, references.mean)

    def metrics(self) -> Iterable[Metric]:
        """That of the samples."""
        return (self.metric,)

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Measure one block of samples."""
        self.metric.update(batch.samples, self.references.samples(GAUSSIAN, batch), batch.start)

    def result(self) -> dict[str, Estimate]:
        """The agreement of all ranks' samples."""
        self.metric.compute()
        return {name: replace(value.at(0), pool=SAMPLES) for name, value in self.metric.estimates.items()}
