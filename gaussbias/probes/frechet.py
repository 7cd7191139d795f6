"""How good the samples are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gaussbias import catalogue
from gaussbias.data.images import mirror, to_unit
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.frechet import (
    DIRECTIONS,
    Features,
    FrechetDistance,
    NormalFeatures,
    frechet_estimate,
    normal_of_images,
)
from gaussbias.numerics.precision import full_precision
from gaussbias.numerics.seeding import derive
from gaussbias.probes.bank import SAMPLES
from gaussbias.probes.base import ScoreProbe
from gaussbias.probes.references import References
from gaussbias.system.errors import UserError
from gaussbias.system.functions import call, failed

BATCH = 256


class FrechetProbe(ScoreProbe):
    """The Frechet distance of samples to the held-out images, beside those of two references.

    The GL score says how far samples are from the training set, this how good they are. All three have the bias of
    `probes.samples` images (that of fewer for `_train`, if there are not so many training images), and runs with other
    training images have other directions: compare each value with its references.

    Args:
        references: With held-out images, at least 2; the probe bank needs at least 2 sampling latents.
        features: A network of your own; `None` takes principal directions.
    """

    entries = (catalogue.FRECHET, catalogue.FRECHET_GAUSSIAN, catalogue.FRECHET_TRAIN)

    def __init__(self, references: References, features: Features | None = None) -> None:
        super().__init__(references)
        if self.bank.samples < 2:
            raise ValueError(f"Expected a probe bank with at least 2 `samples` but got {self.bank.samples}.")
        if references.heldout is None:
            raise ValueError("Expected `references` with held-out images, to compare with, but got none.")
        self.heldout = references.heldout
        self.features = self._principal if features is None else features
        if features is not None:
            self.entries = (catalogue.FID, catalogue.FID_GAUSSIAN, catalogue.FID_TRAIN)

    def to(self, device: torch.device) -> None:
        """Move to the device, and measure held-out and training images."""
        super().to(device)
        if isinstance(self.features, torch.nn.Module):
            self.features.to(device).eval().requires_grad_(False)
        name = self.entries[0].name
        heldout = self.references.once(f"{name} of held-out images", lambda: self._of_heldout(device))

        def metric() -> FrechetDistance:
            return FrechetDistance(self._evaluate, len(heldout.mean), self.bank.samples, heldout).to(device)

        self.metric, self.fixed = metric(), self.references.constant(f"{name} of D_G on {device}", metric)
        self.training = self.references.once(
            f"{name} of training images", lambda: frechet_estimate(self._of_training(device), heldout)
        )

    def _of_heldout(self, device: torch.device) -> NormalFeatures:
        """Their features; every rank has all of them, and nothing is added up over ranks."""
        # what is measured stands for the images and, with flips, as much for their mirrored copies
        both = [self.heldout, mirror(self.heldout)] if self.bank.flip else [self.heldout]
        return normal_of_images(self._evaluate, _units(both, device))

    def _of_training(self, device: torch.device) -> Tensor:
        """Features (n, F) of as many training images as there are samples."""
        some = self.references.images[: self.bank.samples]
        halves = [some[::2], mirror(some[1::2])] if self.bank.flip else [some]
        return torch.cat([self._evaluate(part).double().flatten(1) for part in _units(halves, device)])

    def result(self) -> dict[str, Estimate]:
        """The distance of all ranks' samples, and those of the references."""
        gaussian = self.fixed.compute()["distance"]
        self.metric.compute()
        own, of_gaussian, of_training = self.entries
        return {
            own.name: replace(self.metric.estimates["distance"], pool=SAMPLES),
            of_gaussian.name: replace(gaussian, pool=SAMPLES, reference=True),
            of_training.name: replace(self.training, pool=SAMPLES, reference=True),
        }

    def _principal(self, x: Tensor) -> Tensor:
        gaussian = self.references.gaussian
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
    key = "probes.features"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(derive(seed, "features"))
        features: Features = call(spec, key)
        try:
            tried = features(to_unit(images[:2])) if callable(features) else None
        except Exception as error:  # it is the user's code
            raise failed(spec, key, error) from None
    if not isinstance(tried, Tensor) or tried.ndim < 2 or len(tried) != 2:
        shown = tuple(tried.shape) if isinstance(tried, Tensor) else repr(features if tried is None else tried)
        raise UserError(f"{key}: expected {spec}() to give features (B, F) of images, got {shown}")
    return features
