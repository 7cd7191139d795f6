"""What is measured of a denoiser. Each file holds a pure function and a torchmetrics Metric around it."""

from gaussbias.metrics.agreement import Agreement, SampleAgreement
from gaussbias.metrics.generalization import GeneralizationScore
from gaussbias.metrics.linearity import Linearity

__all__ = ["Agreement", "GeneralizationScore", "Linearity", "SampleAgreement"]
