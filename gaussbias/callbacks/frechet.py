"""How good the samples are, while a network trains."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.data.images import mirror, to_unit
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.frechet import DIRECTIONS, Features, FrechetDistance, frechet_estimate, normal_of_images
from gaussbias.numerics.precision import full_precision
from gaussbias.numerics.seeding import derive
from gaussbias.system.errors import UserError

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
        baselines: Of the run; the probe bank needs at least 2 sampling latents.
        heldout: Held-out images (M, C, H, W), at least 2.
        features: A network of your own; `None` takes principal directions.
        name: Of the logged value.
        weights: `ema` or `raw`.
    """

    def __init__(
        self,
        baselines: Baselines,
        heldout: Tensor,
        features: Features | None = None,
        name: str = "samples/frechet_pca",
        weights: str = "ema",
    ) -> None:
        super().__init__(baselines, weights)
        if self.bank.samples < 2:
            raise ValueError(f"Expected a probe bank with at least 2 `samples` but got {self.bank.samples}.")
        self.heldout, self.name = heldout, name
        self.features = self._principal if features is None else features
        self.training: Estimate | None = None
        self.gaussian: Estimate | None = None

    def place(self, device: torch.device) -> None:
        """Move to the device, and measure held-out and training images."""
        self.baselines.to(device)
        if isinstance(self.features, torch.nn.Module):
            self.features.to(device).eval().requires_grad_(False)
        # what is measured stands for the images and, with flips, as much for their mirrored copies
        both = [self.heldout, mirror(self.heldout)] if self.bank.flip else [self.heldout]
        heldout = normal_of_images(self._evaluate, _units(both, device))  # every rank has all: no sums over ranks
        size, samples = len(heldout.mean), self.bank.samples
        self.metric, self.reference = (
            FrechetDistance(self._evaluate, size, samples, heldout).to(device) for _ in range(2)
        )
        some = self.baselines.images[:samples]
        halves = [some[::2], mirror(some[1::2])] if self.bank.flip else [some]
        training = torch.cat([self._evaluate(part).double().flatten(1) for part in _units(halves, device)])
        self.training = frechet_estimate(training, heldout)

    def reset(self) -> None:
        """Empty the metrics."""
        self.metric.reset()
        self.reference.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of samples."""
        if outputs["pool"] != "samples":
            return
        self.metric.update(outputs["samples"], outputs["start"])
        if self.gaussian is None:
            self.reference.update(self.baselines.samples(outputs), outputs["start"])

    def summarize(self) -> None:
        """Compare all ranks' samples."""
        if self.gaussian is None:
            self.reference.compute()
            self.gaussian = self.reference.estimates["distance"]
        assert self.training is not None
        self.metric.compute()
        self.put("samples", {self.name: self.metric.estimates["distance"]})
        references = {f"{self.name}_gaussian": self.gaussian, f"{self.name}_train": self.training}
        self.put("samples", references, reference=True)

    def _principal(self, x: Tensor) -> Tensor:
        gaussian = self.baselines.gaussian
        basis = gaussian.eigenvectors[:, :DIRECTIONS].double()
        return (x.flatten(1).double() - gaussian.mean.double()) @ basis

    @torch.no_grad()
    def _evaluate(self, x: Tensor) -> Tensor:
        with full_precision(x.device):
            return self.features(x)


def _units(sets: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Sets of images in batches, in data units."""
    for images in sets:
        for part in images.split(BATCH):
            yield to_unit(part.to(device))


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
