"""What is measured of a denoiser. Metrics are pure functions with a torchmetrics Metric around them."""

from gaussbias.metrics.agreement import Agreement, SampleAgreement
from gaussbias.metrics.blocks import BlockMetric, DrawMeans, Estimate, jackknife
from gaussbias.metrics.errors import DenoisingErrors, gaussian_mse
from gaussbias.metrics.frechet import FrechetDistance, frechet_distance
from gaussbias.metrics.generalization import GeneralizationScore
from gaussbias.metrics.ladder import Ladder, ladder
from gaussbias.metrics.linearity import Linearity
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.metrics.pairs import Pairs

__all__ = [
    "Agreement",
    "BlockMetric",
    "DenoisingErrors",
    "DrawMeans",
    "Estimate",
    "FrechetDistance",
    "GeneralizationScore",
    "Ladder",
    "Linearity",
    "NearestImages",
    "Pairs",
    "SampleAgreement",
    "frechet_distance",
    "gaussian_mse",
    "jackknife",
    "ladder",
]
