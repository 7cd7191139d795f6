"""What is measured of a denoiser. Metrics are pure functions with a torchmetrics Metric around them."""

from gaussbias.metrics.agreement import Agreement, SampleAgreement
from gaussbias.metrics.frechet import FrechetDistance, frechet_distance
from gaussbias.metrics.generalization import GeneralizationScore
from gaussbias.metrics.linearity import Linearity
from gaussbias.metrics.neighbours import NearestImages

__all__ = [
    "Agreement",
    "FrechetDistance",
    "GeneralizationScore",
    "Linearity",
    "NearestImages",
    "SampleAgreement",
    "frechet_distance",
]
