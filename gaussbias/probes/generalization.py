"""GL score and memorised fraction of samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.generalization import GeneralizationScore, wilson_interval
from gaussbias.probes.bank import SAMPLES, SampleValues
from gaussbias.probes.base import ScoreProbe
from gaussbias.probes.references import References
from gaussbias.system.ranks import is_first

NEAR_DUPLICATE = 0.1
"""A held-out image this near to a training image, relative to its norm, counts as a near-duplicate."""


SHARES = {
    catalogue.MEMORIZED_FRACTION: (catalogue.MEMORIZED_LOW, catalogue.MEMORIZED_HIGH),
    catalogue.MEMORIZED_ANY: (catalogue.MEMORIZED_ANY_LOW, catalogue.MEMORIZED_ANY_HIGH),
}
"""Shares of samples, and the ends of their intervals."""


class GeneralizationProbe(ScoreProbe):
    """How far samples are from the training images (`gaussbias.metrics.generalization`).

    Samples of a class are compared with the training images of the class. The next image after the nearest one is
    farther among these than among all, so that more samples are memorised by that rule. To compare with a network
    without labels, their share is also given with the images of all classes.

    Raises:
        ValueError: Without held-out images, whose GL score is the reference.
    """

    entries: Sequence[Entry] = (
        catalogue.GL_SCORE,
        catalogue.GL_SCORE_HELDOUT,
        catalogue.GL_SCORE_GAUSSIAN,
        catalogue.MEMORIZED_FRACTION,
        catalogue.MEMORIZED_LOW,
        catalogue.MEMORIZED_HIGH,
        *catalogue.OF_CLASSES,
    )

    metric: GeneralizationScore

    def __init__(self, references: References) -> None:
        super().__init__(references)
        if references.heldout is None:
            raise ValueError("Expected `references` with held-out images, for their GL score, but got none.")
        self.metric = self._score()
        self.any: GeneralizationScore | None = None
        if references.whole is None:
            self.entries = [entry for entry in self.entries if entry not in catalogue.OF_CLASSES]
        else:
            self.any = GeneralizationScore(references.whole.nearest, self.bank.samples)
        self.fixed = references.constant("generalization of D_G", self._score)

    def _score(self) -> GeneralizationScore:
        return GeneralizationScore(self.references.nearest, self.bank.samples)

    def metrics(self) -> Iterable[Metric]:
        """Those of the samples."""
        return (self.metric,) if self.any is None else (self.metric, self.any)

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Measure one block of samples."""
        super().measure(batch, denoiser)
        if self.any is not None:
            self.any.update(batch.samples, batch.start)

    def to(self, device: torch.device) -> None:
        """Move to the device, and score the held-out images."""
        super().to(device)
        self.real = self.references.once("distances of held-out images", self._distances)

    def _distances(self) -> Tensor:
        """Distances of held-out images to their nearest training images, relative (M,)."""
        distances = self.references.real.relative
        duplicates = int((distances < NEAR_DUPLICATE).sum())
        if duplicates and is_first():
            logging.getLogger("gaussbias").warning(
                "%d of %d held-out images are nearly the same as a training image (relative distance below %g); "
                "gl_score_heldout and the heldout pool include them",
                duplicates,
                len(distances),
                NEAR_DUPLICATE,
            )
        return distances

    def result(self) -> dict[str, Estimate]:
        """The scores of all ranks' samples with the interval of the memorised share, and of the references."""
        return self.finish(self.measured())

    def measured(self) -> dict[str, Estimate]:
        """The scores of all ranks' samples, and of the references."""
        gaussian = self.fixed.compute()["gl_score"].at(0)
        self.metric.compute()
        score, share = (self.metric.estimates[name].at(0) for name in ("gl_score", "memorized_fraction"))
        real = self.real.double().cpu()
        heldout = Estimate(real.mean(), real, torch.tensor(True), reference=True)
        found = {
            catalogue.GL_SCORE.name: replace(score, pool=SAMPLES),
            catalogue.MEMORIZED_FRACTION.name: replace(share, pool=SAMPLES),
            catalogue.GL_SCORE_GAUSSIAN.name: replace(gaussian, pool=SAMPLES, reference=True),
            catalogue.GL_SCORE_HELDOUT.name: heldout,
        }
        if self.any is not None:
            self.any.compute()
            share = self.any.estimates["memorized_fraction"].at(0)
            found[catalogue.MEMORIZED_ANY.name] = replace(share, pool=SAMPLES)
        return found

    def finish(self, estimates: dict[str, Estimate], alike: float = 1.0) -> dict[str, Estimate]:
        """Also the ends of the memorised shares' Wilson intervals, for as many samples as all classes have."""
        found = dict(estimates)
        for entry, names in SHARES.items():
            if entry.name not in estimates:
                continue
            share = estimates[entry.name]
            trials = round(alike * len(share.pseudo))
            ends = wilson_interval(float(torch.round(share.value * trials, decimals=6)), trials)
            for name, end in zip(names, ends, strict=True):
                known = Estimate.exact(torch.tensor(end, dtype=torch.float64))
                found[name.name] = replace(known, reference=False)
        return found
