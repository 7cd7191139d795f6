"""The distance of a linear surrogate to its teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.denoisers import Denoiser, Evaluate, at_levels
from gaussbias.metrics.agreement import rmse
from gaussbias.numerics.precision import full_precision
from gaussbias.probes.bank import DrawValues
from gaussbias.probes.base import MeanProbe
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, References
from gaussbias.surrogate import write_description
from gaussbias.system.drawer import Picture
from gaussbias.system.run_folder import RunFolder

SHOWN = 2
"""Latents from which the sampling paths of a surrogate, its teacher and the baselines are drawn."""


class TeacherProbe(MeanProbe):
    """How far the teacher of a surrogate is from it and from the baselines (Fig. 2, left, of arXiv 2410.24060).

    T is the teacher. At each measurement `surrogate.safetensors`, in the folder of the run, gets what the figures of
    the measured denoiser, a `LinearDenoiser`, show.

    Args:
        references: The probe bank needs sampling latents.
        teacher: What the measured denoiser was distilled from.
    """

    entries = (catalogue.TEACHER_LINEAR, catalogue.TEACHER_GAUSSIAN, catalogue.TEACHER_EMPIRICAL)

    def __init__(self, references: References, teacher: Denoiser) -> None:
        super().__init__(references)
        self.teacher = teacher
        self._denoiser: Any = None
        self._device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Move to the device; the teacher is moved by whoever trains with it."""
        super().to(device)
        self._device = device

    def of_draws(self, batch: DrawValues, denoiser: Evaluate) -> dict[str, Tensor]:
        """The distances at each draw."""
        self._denoiser = denoiser
        values = at_levels(self.teacher, batch.x, batch.sigmas)
        others = (batch.output, *(self.references.at(name, batch) for name in (GAUSSIAN, EMPIRICAL)))
        return {entry.name: rmse(values, other) for entry, other in zip(self.entries, others, strict=True)}

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Write what the figures of a surrogate show, which are drawn at the end."""
        denoisers = {"network": self.teacher, **{name: self.references[name] for name in (GAUSSIAN, EMPIRICAL)}}
        with full_precision(self._device):
            write_description(
                RunFolder(folder).surrogate,
                self._denoiser,
                denoisers,
                self.references.moments,
                self.bank.latents(0)[:SHOWN].to(self._device),
                self.bank.sampler,
                self.references.display,
            )
        return []
