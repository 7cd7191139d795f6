"""How good the samples are, while a network trains."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback, gaussian_samples, root_device
from gaussbias.data import ProbeBank
from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import GaussianDenoiser, full_precision
from gaussbias.errors import UserError
from gaussbias.metrics.frechet import DIRECTIONS, Features, FrechetDistance, frechet_distance
from gaussbias.seeding import derive

BATCH = 256


class FrechetCallback(ProbeCallback):
    """Logs the Frechet distance of samples to the held-out images, beside those of two references.

    | key | meaning | range |
    |---|---|---|
    | `samples/frechet_pca` | in the 64 leading principal directions of the training images | 0.. (0: the same) |
    | `samples/frechet_pca_gaussian` | the same of D_G's samples from the same latents | |
    | `samples/frechet_pca_train` | the same of as many training images: what a perfect generator would have | |
    | `samples/fid`, `samples/fid_gaussian`, `samples/fid_train` | the same by `probes.features` | |

    The GL score says how far samples are from the training set, this how good they are. All three have the bias of
    `probes.samples` images (that of fewer for `_train`, if there are not so many training images), and runs with other
    training images have other directions: compare each value with its references.

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        bank: The probe bank, with sampling latents.
        gaussian: D_G of the training data.
        images: Training images (N, C, H, W).
        heldout: Held-out images (M, C, H, W), at least 2.
        features: A network of your own; `None` takes principal directions.
        name: Of the logged value.
    """

    def __init__(
        self,
        bank: ProbeBank,
        gaussian: GaussianDenoiser,
        images: Tensor,
        heldout: Tensor,
        features: Features | None = None,
        name: str = "samples/frechet_pca",
    ) -> None:
        super().__init__(bank)
        if bank.samples < 2:
            raise ValueError(f"Expected a probe bank with at least 2 `samples` but got {bank.samples}.")
        self.gaussian, self.images, self.heldout, self.name = gaussian, images, heldout, name
        self.features = self._principal if features is None else features
        self.constants: dict[str, float] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move to the device, and measure held-out and training images."""
        device = root_device(trainer)
        self.gaussian.to(device)
        if isinstance(self.features, torch.nn.Module):
            self.features.to(device).eval().requires_grad_(False)
        size = self._evaluate(to_unit(self.heldout[:1]).to(device)).flatten(1).shape[1]
        self.metric, self.reference = (FrechetDistance(self._evaluate, size).to(device) for _ in range(2))
        # what is measured stands for the images and, with flips, as much for their mirrored copies
        both = [self.heldout, mirror(self.heldout)] if self.bank.flip else [self.heldout]
        heldout = self._moments(both, device)  # every rank has all of them: no sums over ranks
        self.metric.reference = self.reference.reference = heldout
        some = self.images[: self.bank.samples]
        halves = [some[::2], mirror(some[1::2])] if self.bank.flip else [some]
        training = self._moments(halves, device)
        self.constants[f"{self.name}_train"] = float(frechet_distance(*training, *heldout))

    def reset(self) -> None:
        """Forget the last measurement."""
        self.metric.reset()
        self.reference.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] != "samples":
            return
        self.metric.update(outputs["samples"])
        if f"{self.name}_gaussian" not in self.constants:
            self.reference.update(gaussian_samples(self.gaussian, outputs))

    def summarize(self) -> None:
        """Compare all ranks' samples."""
        if f"{self.name}_gaussian" not in self.constants:
            self.constants[f"{self.name}_gaussian"] = float(self.reference.compute())
        self.values = {self.name: float(self.metric.compute()), **self.constants}

    def _moments(self, sets: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        for images in sets:
            for part in images.split(BATCH):
                self.metric.update(to_unit(part.to(device)))
        moments = self.metric.moments()
        self.metric.reset()
        return moments

    def _principal(self, x: Tensor) -> Tensor:
        basis = self.gaussian.eigenvectors[:, :DIRECTIONS].double()
        return (x.flatten(1).double() - self.gaussian.mean.double()) @ basis

    @torch.no_grad()
    def _evaluate(self, x: Tensor) -> Tensor:
        with full_precision(x.device):
            return self.features(x)


def load_features(spec: str | None, images: Tensor, seed: int = 0) -> Features | None:
    """The features that `package.module:name` makes.

    Args:
        spec: `name()` has to return a module or a function that takes images (B, C, H, W) in data units, on the device
            of the run, to features (B, F).
        images: At least 2 images to try them on.
        seed: Of what the user's code draws, so that all ranks get the same.

    Raises:
        UserError: If there is no such thing, or it does not work.
    """
    if spec is None:
        return None
    module, _, name = spec.partition(":")
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(derive(seed, "features"))
            features: Features = getattr(importlib.import_module(module), name)()
            tried = features(to_unit(images[:2])) if callable(features) else None
    except Exception as error:  # it is the user's code
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"probes.features: {spec} could not be called ({reason})") from None
    if not isinstance(tried, Tensor) or tried.ndim < 2 or len(tried) != 2:
        shown = tuple(tried.shape) if isinstance(tried, Tensor) else repr(features if tried is None else tried)
        raise UserError(f"probes.features: expected {spec}() to give features (B, F) of images, got {shown}")
    return features
