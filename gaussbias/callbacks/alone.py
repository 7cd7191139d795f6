"""Callbacks of one probe each, for a Trainer that shall measure one thing."""

from __future__ import annotations

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
    References,
    SampleAgreementProbe,
    SurrogateProbe,
)


class LinearityCallback(ProbeCallback):
    """Measures linearity alone: `gaussbias.probes.LinearityProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [LinearityProbe(references)]})


class GaussianCallback(ProbeCallback):
    """Measures the distances to D_G and D_M alone: `gaussbias.probes.AgreementProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [AgreementProbe(references)]})


class LadderCallback(ProbeCallback):
    """Measures the error ladder alone: `gaussbias.probes.LadderProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [LadderProbe(references)]})


class GeneralizationCallback(ProbeCallback):
    """Measures GL score and memorised fraction alone: `gaussbias.probes.GeneralizationProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [GeneralizationProbe(references)]})


class SamplesCallback(ProbeCallback):
    """Compares samples with the Gaussian's alone: `gaussbias.probes.SampleAgreementProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [SampleAgreementProbe(references)]})


class FrechetCallback(ProbeCallback):
    """Measures the Frechet distance of samples alone: `gaussbias.probes.FrechetProbe`."""

    def __init__(self, references: References, features: Features | None = None, weights: str = "ema") -> None:
        super().__init__(references, {weights: [FrechetProbe(references, features)]})


class PicturesCallback(ProbeCallback):
    """Draws samples alone: `gaussbias.probes.PicturesProbe`."""

    def __init__(self, references: References, weights: str = "ema") -> None:
        super().__init__(references, {weights: [PicturesProbe(references)]})


class LinearCallback(ProbeCallback):
    """Measures the distance to a linear surrogate alone: `gaussbias.probes.SurrogateProbe`."""

    def __init__(self, references: References, surrogate: LinearDenoiser, weights: str = "ema") -> None:
        super().__init__(references, {weights: [SurrogateProbe(references, surrogate)]})
