"""Whether samples are nearer to the training images than new images would be."""

from __future__ import annotations

from dataclasses import replace

import torch

from gaussbias import catalogue
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.novelty import Novelty
from gaussbias.probes.base import ScoreProbe
from gaussbias.probes.references import References


class NoveltyProbe(ScoreProbe):
    """How near samples are to training images, compared with new images (`gaussbias.metrics.novelty`).

    All training and all held-out images count, each with its mirrored copy where there are flips. The standard error of
    `train_share` is that over random relabellings of the images, that of `nearest_auc` Mann and Whitney's with ties:
    both are those of a network that copies nothing. D_M's samples have a share of 1.
    """

    entries = (
        catalogue.TRAIN_SHARE,
        catalogue.TRAIN_SHARE_NULL,
        catalogue.TRAIN_SHARE_GAUSSIAN,
        catalogue.TRAIN_SHARE_Z,
        catalogue.NEAREST_AUC,
    )

    metric: Novelty

    def __init__(self, references: References) -> None:
        super().__init__(references)
        counts = len(references.images), len(references.nearest_heldout.rows.images)
        self.null = torch.tensor(counts[0] / sum(counts), dtype=torch.float64)

    def to(self, device: torch.device) -> None:
        """Move to the device, and find the held-out images' nearest training images."""
        super().to(device)
        self.metric = self._novelty().to(device)
        self.fixed = self.references.constant(f"novelty of D_G on {device}", self._novelty)

    def _novelty(self) -> Novelty:
        references = self.references
        real = references.real.first.cpu()
        return Novelty(references.nearest, references.nearest_heldout, self.bank.samples, real)

    def result(self) -> dict[str, Estimate]:
        """The share and the probability of all ranks' samples, and those of new images and of D_G."""
        return self.finish(self.measured())

    def measured(self) -> dict[str, Estimate]:
        """The same without the share in its errors."""
        gaussian = self.fixed.compute()["train_share"].at(0)
        self.metric.compute()
        share, auc = (self.metric.estimates[name].at(0) for name in ("train_share", "nearest_auc"))
        return {
            catalogue.TRAIN_SHARE.name: share,
            catalogue.TRAIN_SHARE_NULL.name: Estimate.exact(self.null),
            catalogue.TRAIN_SHARE_GAUSSIAN.name: replace(gaussian, reference=True),
            catalogue.NEAREST_AUC.name: auc,
        }

    def finish(self, estimates: dict[str, Estimate], alike: float = 1.0) -> dict[str, Estimate]:
        """Also how many of its errors the share is above that of new images."""
        share, null = (estimates[entry.name] for entry in (catalogue.TRAIN_SHARE, catalogue.TRAIN_SHARE_NULL))
        z = replace(Estimate.exact((share.value - null.value) / share.se), reference=False)
        return estimates | {catalogue.TRAIN_SHARE_Z.name: z}
