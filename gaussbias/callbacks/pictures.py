"""Pictures of what a network makes, while it trains."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchmetrics import Metric

from gaussbias import figures
from gaussbias.callbacks.base import ProbeCallback, kimg_name, progress
from gaussbias.callbacks.baselines import Baselines
from gaussbias.data.images import to_pixels, to_unit
from gaussbias.denoisers import Evaluate, at_levels
from gaussbias.metrics.images import SampleImages
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.modules import GaussianModule, LinearModule
from gaussbias.sampling import sample
from gaussbias.system.files import complete

SHOWN = 10
"""Samples in a picture."""
LABELS: dict[type, str] = {LinearModule: "surrogate $D_L$", GaussianModule: "this Gaussian"}
"""What pictures call the denoisers of modules; others are networks."""
PATHS = 2
"""Samples of which the way from noise is shown."""


class PicturesCallback(ProbeCallback):
    """Draws the network's samples above their nearest training images and above D_G's and D_M's samples.

    All start from the same latents; below are the denoised images along the sampling paths of the first two. At each
    measurement, in the trainer's `default_root_dir`:

    - `figures/samples/<kimg>.png`, which also goes to W&B, as `samples/grid` (any logger with a method
      `log_picture(key, path)` gets it);
    - `samples/<kimg>.safetensors`, from which `python -m gaussbias.figures` draws it again, with all samples as well.

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run; the probe bank needs sampling latents.
        nearest: Search among the training images.
        weights: `ema` or `raw`.
    """

    def __init__(self, baselines: Baselines, nearest: NearestImages, weights: str = "ema") -> None:
        super().__init__(baselines, weights)
        self.nearest = nearest
        self.all = {name: SampleImages(self.bank.samples, baselines.mean.shape) for name in ("network", "gaussian")}
        self._baselines: dict[str, Tensor] = {}
        self._pictures: dict[str, Tensor] = {}
        self._sigmas: list[float] = []

    def every_metric(self) -> Iterable[Metric]:
        """Those that collect samples."""
        return self.all.values()

    def reset(self) -> None:
        """Forget the last measurement."""
        super().reset()
        self._pictures = {}

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Keep all samples, and look at the first ones; they are all in the first block."""
        if outputs["pool"] != "samples":
            return
        self.all["network"].update(to_pixels(outputs["samples"]), outputs["start"])
        self.all["gaussian"].update(to_pixels(self.baselines.samples(outputs)), outputs["start"])
        if outputs["block"] > 0:
            return
        self._sigmas, method = outputs["sigma"].tolist(), outputs["method"]
        latents, samples = outputs["latents"][:SHOWN], outputs["samples"][:SHOWN]
        if not self._baselines:  # they and the latents stay what they are
            pair = {"gaussian": self.baselines.gaussian, "empirical": self.baselines.empirical}
            for name, baseline in pair.items():
                drawn, path = sample(baseline, latents, self._sigmas, method, path=True)
                self._baselines[name] = to_pixels(drawn)
                self._baselines[f"{name}_path"] = self._denoised(baseline, path)
        nearest = self.nearest.rows.take(self.nearest(samples).index.clamp(min=0)).view_as(samples)
        self._pictures = {
            "network": to_pixels(samples),
            "network_path": self._denoised(denoiser, outputs["path"]),
            "nearest": to_pixels(to_unit(nearest)),
            **self._baselines,
        }

    def _denoised(self, denoiser: Evaluate, path: Tensor) -> Tensor:
        """Denoised images (S, p, C, H, W) at the states (S + 1, n, C, H, W) of sampling paths."""
        states = path[:-1, :PATHS].float()
        return to_pixels(at_levels(denoiser, states, torch.tensor(self._sigmas, dtype=torch.float64)))

    def summarize(self) -> None:
        """Collect the samples of all ranks; the rank that has the first block has all that is shown."""
        found = {f"{name}_samples": metric.compute() for name, metric in self.all.items()}
        if self._pictures:
            self._pictures |= found

    def publish(self, trainer: pl.Trainer) -> None:
        """Write the samples, draw them, and give the picture to the loggers."""
        if not self._pictures:
            return
        root, kimg = Path(trainer.default_root_dir), progress(trainer)["kimg"]
        file = root / "samples" / f"{kimg_name(kimg)}.safetensors"
        self.write(file, kimg, LABELS.get(type(trainer.lightning_module), "network"))
        picture = root / "figures" / "samples" / f"{kimg_name(kimg)}.png"
        figures.draw_samples([file], picture)
        for logger in trainer.loggers:
            if hasattr(logger, "log_picture"):
                logger.log_picture("samples/grid", picture)

    def write(self, file: Path, kimg: float, label: str = "network") -> None:
        """Write the samples of the last measurement, on the rank that has the first block.

        Args:
            file: Where to write (safetensors).
            kimg: When they were made; NaN if that is not known.
            label: What pictures call the denoiser.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {
            "format": "gaussbias.samples/1",
            "kimg": repr(kimg),
            "sigmas": json.dumps(self._sigmas),
            "label": label,
        }
        with complete(file) as temporary:
            save_file({name: value.cpu().contiguous() for name, value in self._pictures.items()}, temporary, metadata)
