"""The network's samples beside the Gaussian's, while a network trains."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback, gaussian_samples, root_device
from gaussbias.data import ProbeBank
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.metrics import SampleAgreement


class SamplesCallback(ProbeCallback):
    """Logs how near the network's samples are to those of D_G from the same latents with the same sampler.

    | key | meaning | range | same |
    |---|---|---|---|
    | `samples/gaussian_cosine` | mean cosine of the two, after subtracting the training mean | -1..1 | 1 |
    | `samples/gaussian_rmse` | mean of `sqrt(||x - x_G||^2 / d)` | 0.. | 0 |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        bank: The probe bank, with sampling latents.
        gaussian: D_G of the training data.
    """

    def __init__(self, bank: ProbeBank, gaussian: GaussianDenoiser) -> None:
        super().__init__(bank)
        if not bank.samples:
            raise ValueError("Expected a probe bank with `samples` above 0 but got 0.")
        self.gaussian = gaussian
        self.metric = SampleAgreement(bank.samples, gaussian.mean.view(gaussian.shape))
        self._others: dict[int, Tensor] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move to the device."""
        self.gaussian.to(root_device(trainer))
        self.metric.to(root_device(trainer))

    def reset(self) -> None:
        """Forget the last measurement."""
        self.metric.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] != "samples":
            return
        start = outputs["start"]
        if start not in self._others:  # D_G and the latents stay what they are
            self._others[start] = gaussian_samples(self.gaussian, outputs)
        self.metric.update(outputs["samples"], self._others[start], start)

    def summarize(self) -> None:
        """Average over all ranks' samples."""
        self.values = {name: float(value) for name, value in self.metric.compute().items()}
        assert self.metric.gathered is not None
        self.blocks["samples"] = (self.metric.quantities, self.metric.gathered)
