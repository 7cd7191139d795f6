"""GL score and memorised fraction, while a network trains."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.data.images import to_unit
from gaussbias.history import RAW
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.generalization import GeneralizationScore
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.numerics.blocks import BLOCKS
from gaussbias.system.ranks import is_first

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
        baselines: Of the run; the probe bank needs sampling latents.
        nearest: Search among the training images.
        heldout: Held-out images (N, C, H, W); the first 1,000 are scored.
        weights: `ema` or `raw`.
        leads: Whether it warns of near-duplicates among the held-out images; of several weights' one leads.
    """

    def __init__(
        self,
        baselines: Baselines,
        nearest: NearestImages,
        heldout: Tensor,
        weights: str = "ema",
        leads: bool = True,
    ) -> None:
        super().__init__(baselines, weights)
        self.leads = leads
        if not self.bank.samples:
            raise ValueError("Expected a probe bank with `samples` above 0 but got 0.")
        self.nearest, self.heldout = nearest, heldout[:HELDOUT]
        self.metric = GeneralizationScore(nearest, self.bank.samples)
        self.reference = GeneralizationScore(nearest, self.bank.samples)
        self.real: dict[str, float] = {}
        self.gaussian: Estimate | None = None

    def place(self, device: torch.device) -> None:
        """Move to the device, and score the held-out images."""
        super().place(device)
        if self.real:
            return
        distances = self.nearest(to_unit(self.heldout.to(device))).relative
        self.real["generalization/gl_score_heldout"] = float(distances.mean())
        if len(distances) >= BLOCKS:
            self.real["generalization/gl_score_heldout_se"] = float(distances.std() / len(distances) ** 0.5)
        duplicates = int((distances < NEAR_DUPLICATE).sum())
        if duplicates and self.leads and is_first():
            logging.getLogger("gaussbias").warning(
                "%d of %d held-out images are nearly the same as a training image (relative distance below %g); "
                "gl_score_heldout and the heldout pool include them",
                duplicates,
                len(distances),
                NEAR_DUPLICATE,
            )

    def every_metric(self) -> Iterable[Metric]:
        """Those of the samples and of D_G's."""
        return self.metric, self.reference

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] != "samples":
            return
        start = outputs["start"]
        self.metric.update(outputs["samples"], start)
        if self.gaussian is None:
            self.reference.update(self.baselines.samples(outputs), start)

    def summarize(self) -> None:
        """Average over all ranks' samples."""
        if self.gaussian is None:
            self.reference.compute()
            self.gaussian = self.reference.estimates["gl_score"].at(0)
        values = self.metric.compute()
        self.put("samples", {f"generalization/{name}": e.at(0) for name, e in self.metric.estimates.items()})
        self.put("samples", {"generalization/gl_score_gaussian": self.gaussian}, reference=True)
        prefix = RAW if self.weights == "raw" else ""
        for end in ("low", "high"):
            name = f"memorized_fraction_{end}"
            self.values[f"{prefix}generalization/{name}"] = float(values[name])
        self.values |= self.real
