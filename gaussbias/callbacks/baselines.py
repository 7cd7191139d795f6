"""What the measuring callbacks of a run compare with, computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gaussbias.data import ProbeBank
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser, at_levels
from gaussbias.metrics.ladder import gaussian_mse
from gaussbias.metrics.pairs import Pairs
from gaussbias.moments import Eigenmoments, Projection, estimate, project
from gaussbias.sampling import sample_gaussian

CACHE_BYTES = 2**29
"""What does not change while a network trains is kept up to this size."""


class Baselines:
    """D_G and D_M of the training images, their values on the probes, and the exact moments of the pools.

    Draws, latents and baselines stay what they are while a network trains, so their values are kept; but for the
    pool `trajectory`, whose points move with the network.

    Args:
        bank: The probe bank; its pool `train` holds the images that the moments were taken of.
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        moments: Of the training images, with their mirrored copies if the bank flips; estimated if not given.
        keep: Whether to keep values for another measurement.
        device: Where moments are estimated, if not where the images are.
    """

    def __init__(
        self,
        bank: ProbeBank,
        images: Tensor,
        moments: Eigenmoments | None = None,
        keep: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.bank, self.images = bank, images
        self.moments = estimate(images, bank.flip, device) if moments is None else moments
        self.gaussian, self.empirical = GaussianDenoiser(self.moments), EmpiricalDenoiser(images, bank.flip)
        others = {pool: these for pool, these in bank.pools.items() if pool != "train"}
        self._others = {pool: estimate(these, bank.flip, device) for pool, these in others.items()}
        self._expected: dict[str, Tensor] = {}
        self._capacity = CACHE_BYTES if keep else 0
        self._device: torch.device | None = None
        self.to(torch.device("cpu"))

    @property
    def mean(self) -> Tensor:
        """The training images' mean (C, H, W)."""
        return self.gaussian.mean.view(self.gaussian.shape)

    def to(self, device: torch.device) -> None:
        """Move the denoisers and the moments of the pools; what was kept on another device is forgotten."""
        if device == self._device:
            return
        self._device = device
        self.gaussian.to(device)
        self.empirical.to(device)
        train = self.moments.to(device)
        self.pools = {pool: moments.to(device) for pool, moments in self._others.items()}
        if "train" in self.bank.pools:
            self.pools["train"] = train
        if "noise" in self.bank.names:  # covariance sigma^2 I: that of one image, 0, in any basis
            mean, eigenvalues = torch.zeros_like(train.mean), torch.zeros_like(train.eigenvalues)
            self.pools["noise"] = replace(train, count=1, mean=mean, eigenvalues=eigenvalues)
        self._kept: dict[tuple[str, str, int], Any] = {}
        self._last: dict[str, tuple[Any, Any]] = {}
        self._room = self._capacity

    def expected_mse(self, pool: str) -> Tensor:
        """D_G's expected error on a pool of images, over d, at each level of the bank (S,); in closed form."""
        if pool not in self._expected:
            images = self.bank.pools[pool]
            seen = Projection.itself(self.moments) if pool == "train" else project(self.moments, images, self.bank.flip)
            self._expected[pool] = gaussian_mse(self.moments, seen, self.bank.sigmas).cpu()
        return self._expected[pool]

    def at(self, outputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """D_G and D_M at the points of a batch, (S, m, C, H, W) each."""

        def values() -> tuple[Tensor, Tensor]:
            sigmas = outputs["sigma"]
            if outputs["pool"] == "trajectory":
                return at_levels(self.gaussian, outputs["x"], sigmas), at_levels(self.empirical, outputs["x"], sigmas)
            grid = outputs["x0"], outputs["eps"], sigmas.tolist()
            return self.gaussian.forward_grid(*grid), self.empirical.forward_grid(*grid)

        found: tuple[Tensor, Tensor] = self._keep("values", outputs, values)
        return found

    def pairs(self, outputs: dict[str, Any]) -> Pairs | None:
        """The pairs of a batch; `None` where the moments of its points are not known."""
        pool = self.pools.get(outputs["pool"])
        if pool is None:
            return None

        def values() -> Pairs:
            return Pairs(pool, outputs["x0"], outputs["eps"], outputs["sigma"].tolist())

        found: Pairs = self._keep("pairs", outputs, values)
        return found

    def samples(self, outputs: dict[str, Any]) -> Tensor:
        """D_G's samples from the latents of a batch, with its sampler."""

        def values() -> Tensor:
            return sample_gaussian(self.gaussian, outputs["latents"], outputs["sigma"].tolist(), outputs["method"])

        found: Tensor = self._keep("samples", outputs, values)
        return found

    def tensors(self) -> Iterator[Tensor]:
        """All that is held, for counting it."""
        yield from (*self.gaussian.buffers(), *self.empirical.buffers())
        for moments in self.pools.values():
            yield from (moments.mean, moments.eigenvalues, moments.eigenvectors)
        for value in self._kept.values():
            parts = (
                vars(value).values() if isinstance(value, Pairs) else value if isinstance(value, tuple) else (value,)
            )
            yield from (part for part in parts if isinstance(part, Tensor))

    def _keep(self, what: str, outputs: dict[str, Any], make: Callable[[], Any]) -> Any:
        """What was made for this batch before, if it still holds; else make it, and keep it while there is room.

        The last one is always kept, for the other callbacks that measure the same batch.
        """
        key, points = (what, outputs["pool"], outputs["block"]), outputs.get("x", outputs.get("latents"))
        if key in self._kept:
            return self._kept[key]
        if what in self._last and self._last[what][0] is points:
            return self._last[what][1]
        value = make()
        self._last[what] = (points, value)
        size = _bytes(value)
        if outputs["pool"] != "trajectory" and size <= self._room:
            self._kept[key] = value
            self._room -= size
        return value


def _bytes(value: Tensor | Pairs | tuple[Tensor, Tensor]) -> int:
    if isinstance(value, Pairs):
        return value.nbytes
    return value.nbytes if isinstance(value, Tensor) else sum(part.nbytes for part in value)
