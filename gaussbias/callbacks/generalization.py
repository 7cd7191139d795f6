"""GL score and memorised fraction, while a network trains."""

from __future__ import annotations

import logging
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback, gaussian_samples, root_device
from gaussbias.data import ProbeBank
from gaussbias.data.images import to_unit
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.metrics.generalization import GeneralizationScore
from gaussbias.metrics.neighbours import NearestImages

HELDOUT = 1000
"""Held-out images that are scored, at most."""
NEAR_DUPLICATE = 0.1
"""A held-out image this near to a training image, relative to its norm, counts as a near-duplicate."""


class GeneralizationCallback(ProbeCallback):
    """Logs how far samples are from the training images (`gaussbias.metrics.generalization`).

    | key | meaning | range |
    |---|---|---|
    | `generalization/gl_score` | mean of `||x - NN(x)|| / ||x||` over samples | 0.. (0: memorised) |
    | `generalization/gl_score_heldout` | the same of real held-out images: a perfect generator's value | |
    | `generalization/gl_score_gaussian` | the same of D_G's samples from the same latents | |
    | `generalization/memorized_fraction` | share of samples with `d1 / d2 < 1/3`: nearest over next | 0..1 |
    | `generalization/memorized_fraction_low` | lower end of its 95 % Wilson interval | 0..1 |
    | `generalization/memorized_fraction_high` | upper end | 0..1 |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        bank: The probe bank, with sampling latents.
        gaussian: D_G of the training data.
        nearest: Search among the training images.
        heldout: Held-out images (N, C, H, W); the first 1,000 are scored.
    """

    def __init__(self, bank: ProbeBank, gaussian: GaussianDenoiser, nearest: NearestImages, heldout: Tensor) -> None:
        super().__init__(bank)
        if not bank.samples:
            raise ValueError("Expected a probe bank with `samples` above 0 but got 0.")
        self.gaussian = gaussian
        self.nearest, self.heldout = nearest, heldout[:HELDOUT]
        self.constants: dict[str, float] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move to the device, and score the held-out images."""
        device = root_device(trainer)
        self.gaussian.to(device)
        self.metric = GeneralizationScore(self.nearest, self.bank.samples).to(device)
        self.reference = GeneralizationScore(self.nearest, self.bank.samples).to(device)
        if self.constants:
            return
        distances = self.nearest(to_unit(self.heldout.to(device))).relative
        self.constants["generalization/gl_score_heldout"] = float(distances.mean())
        duplicates = int((distances < NEAR_DUPLICATE).sum())
        if duplicates and trainer.is_global_zero:
            logging.getLogger("gaussbias").warning(
                "%d of %d held-out images are nearly the same as a training image (relative distance below %g); "
                "gl_score_heldout and the heldout pool include them",
                duplicates,
                len(distances),
                NEAR_DUPLICATE,
            )

    def reset(self) -> None:
        """Forget the last measurement."""
        self.metric.reset()
        self.reference.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] != "samples":
            return
        start = outputs["start"]
        self.metric.update(outputs["samples"], start)
        if "generalization/gl_score_gaussian" not in self.constants:
            self.reference.update(gaussian_samples(self.gaussian, outputs), start)

    def summarize(self) -> None:
        """Average over all ranks' samples."""
        if "generalization/gl_score_gaussian" not in self.constants:
            self.constants["generalization/gl_score_gaussian"] = float(self.reference.compute()["gl_score"])
        values = self.metric.compute()
        self.values = {f"generalization/{name}": float(value) for name, value in values.items()} | self.constants
        assert self.metric.gathered is not None
        self.blocks["generalization"] = (self.metric.quantities, self.metric.gathered)
