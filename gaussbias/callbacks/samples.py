"""The network's samples beside the Gaussian's, while a network trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchmetrics import Metric

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics import SampleAgreement


class SamplesCallback(ProbeCallback):
    """Logs how near the network's samples are to those of D_G from the same latents with the same sampler.

    | key | meaning | range | same |
    |---|---|---|---|
    | `samples/gaussian_cosine` | mean cosine of the two, after subtracting the training mean | -1..1 | 1 |
    | `samples/gaussian_rmse` | mean of `sqrt(||x - x_G||^2 / d)` | 0.. | 0 |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run; the probe bank needs sampling latents.
        weights: `ema` or `raw`.
    """

    def __init__(self, baselines: Baselines, weights: str = "ema") -> None:
        super().__init__(baselines, weights)
        if not self.bank.samples:
            raise ValueError("Expected a probe bank with `samples` above 0 but got 0.")
        self.metric = SampleAgreement(self.bank.samples, baselines.mean)

    def every_metric(self) -> Iterable[Metric]:
        """The one."""
        return (self.metric,)

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] == "samples":
            self.metric.update(outputs["samples"], self.baselines.samples(outputs), outputs["start"])

    def summarize(self) -> None:
        """Average over all ranks' samples."""
        self.metric.compute()
        self.put("samples", {name: estimate.at(0) for name, estimate in self.metric.estimates.items()})
