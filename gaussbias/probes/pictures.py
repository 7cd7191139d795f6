"""The samples themselves, for pictures of what a denoiser makes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.data.images import to_pixels
from gaussbias.denoisers import Evaluate, at_levels, guided
from gaussbias.history import kimg_name
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.images import SampleImages
from gaussbias.probes.bank import SampleValues
from gaussbias.probes.base import Probe, SampleProbe
from gaussbias.probes.likeness import has_samples
from gaussbias.probes.references import EMPIRICAL, GAUSSIAN, SHOWN, References
from gaussbias.sampling import sample
from gaussbias.system.drawer import Picture
from gaussbias.system.files import complete
from gaussbias.system.run_folder import RunFolder

PATHS = 2
"""Samples of which the way from noise is shown."""


class PicturesProbe(SampleProbe):
    """Keeps samples, their nearest training images, and samples of D_G, D_M and theories from the same latents.

    Also the denoised images along the sampling paths of the first two. At each measurement, in the folder of the run:

    - `samples/<kimg>.safetensors`, from which `python -m gaussbias.figures` draws them, with all samples as well;
    - `figures/samples/<kimg>.png`, which also goes to W&B as `samples/grid`.

    Args:
        references: The probe bank needs sampling latents.
        label: What pictures call the denoiser.
        theories: Whether samples of theories are shown as well.
        guidance: Weights of guidance whose samples are shown as well.
    """

    def __init__(
        self,
        references: References,
        label: str = "network",
        theories: bool = True,
        guidance: Sequence[float] = (),
    ) -> None:
        super().__init__(references)
        self.label, self.theories, self.guidance = label, theories, guidance
        shape = references.mean.shape
        self.pixels = not references.images.is_floating_point()
        self.all = {name: SampleImages(self.bank.samples, shape, self.pixels) for name in ("network", GAUSSIAN)}
        self._shown: dict[str, Tensor] = {}
        self._classes: list[int] = []
        self._sigmas: list[float] = []

    def metrics(self) -> Iterable[Metric]:
        """Those that collect samples."""
        return self.all.values()

    def reset(self) -> None:
        """Forget the last measurement."""
        super().reset()
        self._shown, self._classes = {}, []

    def measure(self, batch: SampleValues, denoiser: Evaluate) -> None:
        """Keep all samples, and look at the first ones; they are all in the first block."""
        for name, made in (("network", batch.samples), (GAUSSIAN, self.references.samples(GAUSSIAN, batch))):
            self.all[name].update(to_pixels(made) if self.pixels else made.float(), batch.start)
        if batch.block > 0:
            return
        self._sigmas = batch.sigmas.tolist()
        count, nearest, show = self.references.in_pictures, self.references.nearest, self.references.display
        samples = batch.samples[:count]
        images = nearest.rows.take(nearest(samples).index.clamp(min=0)).view_as(samples)
        self._shown = {
            "network": show(samples),
            "network_path": self._denoised(denoiser, batch.path),
            "nearest": show(images),
            **self.references.once("pictures of samples", lambda: self._of_references(batch)),
        }
        for weight in self.guidance:
            chosen, name = guided(denoiser, weight), f"w = {weight:g}"
            drawn, path = sample(chosen, batch.latents[:count], self._sigmas, batch.method, path=True)
            self._shown |= {f"by/{name}": show(drawn), f"path_by/{name}": self._denoised(chosen, path)}

    def _of_references(self, batch: SampleValues) -> dict[str, Tensor]:
        """The same of D_G, of D_M and of theories."""
        references, pictures = self.references, dict[str, Tensor]()
        keys = {name: (name, f"{name}_path") for name in (GAUSSIAN, EMPIRICAL)}
        keys |= {
            name: (f"by/{name}", f"path_by/{name}")
            for name in (references.others if self.theories else ())
            if has_samples(references[name], references)
        }
        for name, (samples, along) in keys.items():
            drawn, path = references.shown(name, batch)
            pictures[samples] = references.display(drawn)
            pictures[along] = self._denoised(references[name], path)
        return pictures

    def _denoised(self, denoiser: Evaluate, path: Tensor) -> Tensor:
        """Denoised images (S, p, C, H, W) at the states (S + 1, n, C, H, W) of sampling paths."""
        states = path[:-1, :PATHS].float()
        return self.references.display(at_levels(denoiser, states, torch.tensor(self._sigmas, dtype=torch.float64)))

    def result(self) -> dict[str, Estimate]:
        """No number; collects the samples of all ranks: the one that has the first block has all that is shown."""
        everything = {f"{name}_samples": metric.compute() for name, metric in self.all.items()}
        if self._shown:
            self._shown |= everything
        return {}

    def join(self, others: Sequence[Probe]) -> None:
        """Take the samples of other classes, for pictures of all: they take turns, first the first of each class."""
        every = [self, *(other for other in others if isinstance(other, PicturesProbe))]
        if not others or not all(part._shown for part in every):
            return
        joined = {}
        for name, images in self._shown.items():
            together = [part._shown[name] for part in every]
            if name.endswith("_samples"):
                joined[name] = torch.cat(together)
                continue
            axis = images.ndim - 4  # after the levels, of paths
            turns = torch.stack(together, axis + 1).flatten(axis, axis + 1)
            joined[name] = turns.narrow(axis, 0, min(PATHS if axis else SHOWN, turns.shape[axis]))
        self._shown = joined
        self._classes = [part.bank.label for part in every if part.bank.label is not None]

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Write the samples, and say what shows them."""
        if not self._shown:
            return []
        name = kimg_name(kimg)
        file = RunFolder(folder).samples / f"{name}.safetensors"
        self.write(file, kimg)
        path = RunFolder(folder).sample_figures / f"{name}.png"
        return [Picture(catalogue.SAMPLE_GRID.name, "gaussbias.figures:draw_samples", (file,), path)]

    def write(self, file: Path, kimg: float) -> None:
        """Write the samples of the last measurement, on the rank that has the first block.

        Args:
            file: Where to write (safetensors).
            kimg: When they were made; NaN if that is not known.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "format": "gaussbias.samples/1",
            "kimg": repr(kimg),
            "sigmas": json.dumps(self._sigmas),
            "label": self.label,
            "classes": json.dumps(self._classes),
        }
        with complete(file) as temporary:
            save_file({name: value.cpu().contiguous() for name, value in self._shown.items()}, temporary, metadata)
