"""Callbacks of one probe each, for a Trainer that shall measure one thing."""

from __future__ import annotations

from typing import ClassVar

from gaussbias.callbacks.measuring import ProbeCallback
from gaussbias.denoisers import LinearDenoiser
from gaussbias.metrics.frechet import Features
from gaussbias.probes import (
    AgreementProbe,
    FrechetProbe,
    GeneralizationProbe,
    LadderProbe,
    LinearityProbe,
    PicturesProbe,
    Probe,
    References,
    SampleAgreementProbe,
    SurrogateProbe,
)


class AloneCallback(ProbeCallback):
    """Measures with one probe, `probe`, of one kind of weights.

    Args:
        references: What the probe compares with.
        weights: `ema`, those that validation runs with, or `raw`.
    """

    probe: ClassVar[type[Probe]]

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [self.probe(references)]})


class LinearityCallback(AloneCallback):
    """Measures linearity alone: `gaussbias.probes.LinearityProbe`."""

    probe = LinearityProbe


class GaussianCallback(AloneCallback):
    """Measures the distances to D_G and D_M alone: `gaussbias.probes.AgreementProbe`."""

    probe = AgreementProbe


class LadderCallback(AloneCallback):
    """Measures the error ladder alone: `gaussbias.probes.LadderProbe`."""

    probe = LadderProbe


class GeneralizationCallback(AloneCallback):
    """Measures GL score and memorised fraction alone: `gaussbias.probes.GeneralizationProbe`."""

    probe = GeneralizationProbe


class SamplesCallback(AloneCallback):
    """Compares samples with the Gaussian's alone: `gaussbias.probes.SampleAgreementProbe`."""

    probe = SampleAgreementProbe


class PicturesCallback(AloneCallback):
    """Draws samples alone: `gaussbias.probes.PicturesProbe`."""

    probe = PicturesProbe


class FrechetCallback(ProbeCallback):
    """Measures the Frechet distance of samples alone: `gaussbias.probes.FrechetProbe`."""

    def __init__(self, references: References, features: Features | None = None, weights: str = "ema") -> None:
        super().__init__(references, {weights: [FrechetProbe(references, features)]})


class LinearCallback(ProbeCallback):
    """Measures the distance to a linear surrogate alone: `gaussbias.probes.SurrogateProbe`."""

    def __init__(self, references: References, surrogate: LinearDenoiser, weights: str = "ema") -> None:
        super().__init__(references, {weights: [SurrogateProbe(references, surrogate)]})
