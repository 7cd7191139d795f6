"""What probes compare a denoiser with, computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gaussbias.data.display import Display, display_of
from gaussbias.data.images import to_unit
from gaussbias.denoisers import Denoiser, GaussianDenoiser, at_levels
from gaussbias.denoisers.theories import ALWAYS, THEORIES
from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.metrics.errors import gaussian_mse, squared_errors
from gaussbias.metrics.frechet import FrechetDistance
from gaussbias.metrics.neighbours import NearestImages, Neighbours
from gaussbias.metrics.pairs import Pairs
from gaussbias.moments import Eigenmoments, Projection, estimate, project
from gaussbias.probes.bank import TRAJECTORY, DrawBatch, DrawValues, ProbeBank, SampleBatch, SampleValues
from gaussbias.probes.shelf import Shelf
from gaussbias.sampling import sample, sample_gaussian

CACHE_BYTES = 2**29
"""Values of references on the bank are kept up to this size."""
AHEAD = 256
"""Draws at which a theory is evaluated at once."""
SHOWN = 10
"""Samples in a picture."""
LIKENED = 16
"""Samples that are compared with those of theories: the fewest with a standard error."""
HELDOUT = 1000
"""Held-out images whose distances to the training images are measured, at most."""
SHARED = ("_device", "pools", "_kept", "_last", "_once")
"""What depends on the device."""
Made = TypeVar("Made")
Measure = TypeVar("Measure", bound=BlockMetric | FrechetDistance)
GAUSSIAN, EMPIRICAL = ALWAYS


class References(Mapping[str, Denoiser]):
    """Named denoisers that another one is compared with: D_G, D_M and further ones, with their values on the bank.

    Draws, latents and references stay what they are while a network trains, so what depends on them alone is computed
    once and kept: values, pairs, samples, and measurements of references. The pool `trajectory` is an exception, since
    its points move with the network.

    Args:
        bank: The probe bank; its pool `train` holds the images that the moments were taken of.
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        moments: Of the training images, with their mirrored copies if the bank flips; estimated if not given.
        keep: Whether to keep values for another measurement.
        device: Where moments are estimated, if not where the images are.
        heldout: Held-out images of the same kind; those of the bank's pool `heldout` if not given.
        others: Further denoisers by name.
        folder: Where values of further denoisers are kept in files, beside those in memory; `None` keeps none.
        room: Bytes of values that are kept in memory, at most.
        whole: Of the images of a class, those of the images of all classes.

    Attributes:
        others: Names of the further denoisers.
    """

    def __init__(
        self,
        bank: ProbeBank,
        images: Tensor,
        moments: Eigenmoments | None = None,
        keep: bool = True,
        device: torch.device | None = None,
        heldout: Tensor | None = None,
        others: Mapping[str, Denoiser] | None = None,
        folder: Path | None = None,
        room: int = CACHE_BYTES,
        whole: References | None = None,
    ) -> None:
        taken = set(others or ()) & set(ALWAYS)
        if taken:
            raise ValueError(
                f"Expected other names than {' and '.join(ALWAYS)} for `others` but got {', '.join(taken)}."
            )
        self.bank, self.images, self.whole = bank, images, whole
        self._guidance: float | None = None
        self._origin: References | None = None
        self.heldout = bank.pools.get("heldout") if heldout is None else heldout
        self.moments = estimate(images, bank.flip, device) if moments is None else moments
        self._denoisers = {name: THEORIES[name](images, self.moments, bank.flip) for name in ALWAYS} | dict(
            others or {}
        )
        not_training = {pool: part for pool, part in bank.pools.items() if pool != "train"}
        self._moments = {pool: estimate(part, bank.flip, device) for pool, part in not_training.items()}
        self.others = list(others or {})
        self._expected: dict[str, Tensor] = {}
        self._capacity = room if keep else 0
        self._shelf = None if folder is None else Shelf(folder, bank, self.moments)
        self._device: torch.device | None = None
        self._constants: dict[str, Constant[Any]] = {}
        self.to(torch.device("cpu"))

    def __getitem__(self, name: str) -> Denoiser:
        return self._denoisers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._denoisers)

    def __len__(self) -> int:
        return len(self._denoisers)

    def add(self, name: str, denoiser: Denoiser) -> None:
        """Hold a further denoiser for a probe, unless there is one of that name."""
        if name not in self._denoisers:
            self._denoisers[name] = denoiser.to(self._device)

    def guided(self, weight: float) -> References:
        """The same, whose D_G's samples are those of `D_G(x) + w (D_G(x, c) - D_G(x))`, D_G(x) of all images."""
        if self.whole is None:
            raise ValueError("Expected references of a class, with those of all images, but got others.")
        other = copy(self)
        other._guidance, other._origin = weight, self
        return other

    @property
    def gaussian(self) -> GaussianDenoiser:
        """D_G of the training images."""
        denoiser = self[GAUSSIAN]
        assert isinstance(denoiser, GaussianDenoiser)
        return denoiser

    @property
    def mean(self) -> Tensor:
        """The training images' mean (C, H, W)."""
        return self.gaussian.mean.view(self.gaussian.shape)

    @property
    def display(self) -> Display:
        """What shows images like the training images, of classes those of all."""
        if self.whole is not None:
            return self.whole.display
        return self.once("display", lambda: display_of(self.images))

    @cached_property
    def nearest(self) -> NearestImages:
        """The search among the training images."""
        return NearestImages(self.images, self.bank.flip)

    @cached_property
    def nearest_heldout(self) -> NearestImages:
        """The search among all held-out images; raises `ValueError` without any."""
        return NearestImages(self.known_heldout, self.bank.flip)

    @property
    def real(self) -> Neighbours:
        """Of held-out images, at most 1,000, the nearest training images; found once."""
        images = self.known_heldout[:HELDOUT]
        return self.once("neighbours of held-out images", lambda: self.nearest(to_unit(images.to(self._device))))

    @property
    def known_heldout(self) -> Tensor:
        """The held-out images; raises `ValueError` without any."""
        if self.heldout is None:
            raise ValueError("Expected `references` with held-out images, to compare with, but got none.")
        return self.heldout

    def to(self, device: torch.device) -> None:
        """Move the denoisers and the moments of the pools; what was kept on another device is forgotten."""
        if device == self._device:
            return
        if self._origin is not None:  # with which a guided one shares all
            self._origin.to(device)
            vars(self).update({name: getattr(self._origin, name) for name in SHARED})
            return
        self._device = device
        if self.whole is not None:
            self.whole.to(device)
        for denoiser in self.values():
            denoiser.to(device)
        train = self.moments.to(device)
        self.pools = {pool: moments.to(device) for pool, moments in self._moments.items()}
        if "train" in self.bank.pools:
            self.pools["train"] = train
        if "noise" in self.bank.names:  # covariance sigma^2 I: that of one image, 0, in any basis
            mean, eigenvalues = torch.zeros_like(train.mean), torch.zeros_like(train.eigenvalues)
            self.pools["noise"] = replace(train, count=1, mean=mean, eigenvalues=eigenvalues)
        self._kept: dict[tuple[str, ...], Any] = {}
        self._last: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self._once: dict[str, Any] = {}
        self._room = self._capacity
        for constant in self._constants.values():
            constant.metric.to(device)

    def expected_mse(self, pool: str) -> Tensor:
        """D_G's expected error on a pool of images, over d, at each level of the bank (S,); in closed form."""
        if pool not in self._expected:
            images = self.bank.pools[pool]
            seen = Projection.itself(self.moments) if pool == "train" else project(self.moments, images, self.bank.flip)
            self._expected[pool] = gaussian_mse(self.moments, seen, self.bank.sigmas).cpu()
        return self._expected[pool]

    def at(self, name: str, batch: DrawValues) -> Tensor:
        """A reference's values at the points of a batch (S, m, C, H, W)."""
        denoiser = self[name]

        def make() -> Tensor:
            if batch.pool == TRAJECTORY:
                return at_levels(denoiser, batch.x, batch.sigmas)
            if name in ALWAYS:
                return denoiser.forward_grid(batch.x0, batch.eps, batch.sigmas.tolist())
            return self._of_theory(name, batch)

        return self._keep(f"values of {name}", batch, make)

    def _of_theory(self, name: str, batch: DrawValues) -> Tensor:
        """The values of a theory, from its files if there are any.

        Those of some blocks to come are made with them, since theories take far less time for many draws at once.
        """
        sigmas, denoiser, shelf = batch.sigmas.tolist(), self[name], self._shelf
        if shelf is not None:
            kept = shelf.find(name, batch, lambda: denoiser.forward_grid(batch.x0[:1], batch.eps[:1], sigmas))
            if kept is not None:
                return kept
        batches: list[DrawBatch] = [batch, *self._ahead(name, batch)]
        x0, eps = (torch.cat([getattr(one, part) for one in batches]) for part in ("x0", "eps"))
        made = denoiser.forward_grid(x0, eps, sigmas).split(len(batch.x0), 1)
        for one, values in zip(batches, made, strict=True):
            if shelf is not None:
                shelf.keep(name, one, values)
            if one is not batch:
                self._store(_key(f"values of {name}", one), values.contiguous())
        own: Tensor = made[0].contiguous()
        return own

    def _ahead(self, name: str, batch: DrawValues) -> Iterator[DrawBatch]:
        """Blocks of this process to come, whose values there is room for."""
        size = len(batch.sigmas) * batch.x0.nbytes
        most, room = AHEAD // len(batch.x0) - 1, (self._origin or self)._room
        most = most if self._shelf is not None and not self._shelf.failed else min(most, room // size - 1)
        for number in self.bank.numbers(batch.pool):
            if most <= 0:
                return
            if number <= batch.block:
                continue
            one = self.bank.batch(batch.pool, number)
            assert isinstance(one, DrawBatch)
            there = _key(f"values of {name}", one) in self._kept
            if not there and (self._shelf is None or not self._shelf.has(name, one)):
                most -= 1
                yield one.to(batch.x0.device)

    def errors(self, name: str, batch: DrawValues) -> Tensor:
        """A reference's error `||T - x0||^2 / d` on each draw of a batch (S, m), float64."""
        return self._keep(f"errors of {name}", batch, lambda: squared_errors(self.at(name, batch), batch.x0))

    def pairs(self, batch: DrawValues) -> Pairs | None:
        """The pairs of a batch; `None` where the moments of its points are not known."""
        pool = self.pools.get(batch.pool)
        if pool is None:
            return None
        return self._keep("pairs", batch, lambda: Pairs(pool, batch.x0, batch.eps, batch.sigmas.tolist()))

    def samples(self, name: str, batch: SampleValues, count: int | None = None) -> Tensor:
        """A reference's samples (m, C, H, W) from the latents of a batch, or the first of them, with its sampler."""
        denoiser, latents, sigmas = self[name], batch.latents[:count], batch.sigmas.tolist()
        weight = self._guidance
        if weight is not None and self.whole is not None and name == GAUSSIAN:
            whole = self.whole.gaussian

            def mixed(x: Tensor, sigma: Tensor) -> Tensor:
                return torch.lerp(whole(x, sigma), denoiser(x, sigma), weight)

            what = f"{len(latents)} samples of {name} guided by {weight:g}"
            return self._keep(what, batch, lambda: sample(mixed, latents, sigmas, batch.method))

        def make() -> Tensor:
            if isinstance(denoiser, GaussianDenoiser):
                return sample_gaussian(denoiser, latents, sigmas, batch.method)
            if batch.block > 0:
                return sample(denoiser, latents, sigmas, batch.method)
            shown = self.shown(name, batch)[0][:count]
            rest = latents[len(shown) :]
            return torch.cat([shown, sample(denoiser, rest, sigmas, batch.method)]) if len(rest) else shown

        return self._keep(f"{len(latents)} samples of {name}", batch, make)

    @property
    def in_pictures(self) -> int:
        """How many samples pictures show, of a class its share of them."""
        return SHOWN if self.whole is None else -(-SHOWN // len(self.whole.bank.parts))

    def shown(self, name: str, batch: SampleValues) -> tuple[Tensor, Tensor]:
        """Samples from the latents that pictures show, of the first block, and the way to them, as `sample` has it."""

        def make() -> tuple[Tensor, Tensor]:
            latents, sigmas = batch.latents[: self.in_pictures], batch.sigmas.tolist()
            return sample(self[name], latents, sigmas, batch.method, path=True)

        return self.once(f"shown samples of {name}", make)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made once under a name: for what is small and stays what it is."""
        if name not in self._once:
            self._once[name] = make()
        made: Made = self._once[name]
        return made

    def constant(self, name: str, make: Callable[[], Measure]) -> Constant[Measure]:
        """A measurement of a reference, made once under a name; probes of several weights share it."""
        name = name if self._guidance is None else f"{name}, guided by {self._guidance:g}"
        if name not in self._constants:
            self._constants[name] = Constant(make().to(self._device))
        made: Constant[Measure] = self._constants[name]
        return made

    def reset(self) -> None:
        """Forget the measurements of references that were broken off."""
        for constant in self._constants.values():
            constant.reset()

    def tensors(self) -> Iterator[Tensor]:
        """All that is held, for counting it."""
        for denoiser in self.values():
            yield from (*denoiser.parameters(), *denoiser.buffers(), *getattr(denoiser, "kept", {}).values())
        for moments in self.pools.values():
            yield from (moments.mean, moments.eigenvalues, moments.eigenvectors)
        for value in self._kept.values():
            parts = vars(value).values() if isinstance(value, Pairs) else (value,)
            yield from (part for part in parts if isinstance(part, Tensor))

    def _keep(self, what: str, batch: DrawValues | SampleValues, make: Callable[[], Made]) -> Made:
        """What was made for this batch before, if it still holds; else make it, and keep it while there is room.

        The last one is always kept, for the other probes that measure the same batch.
        """
        key = _key(what, batch)
        moves = isinstance(batch, DrawValues) and batch.pool == TRAJECTORY
        points = (*key, batch.x) if isinstance(batch, DrawValues) and moves else key
        if key in self._kept:
            kept: Made = self._kept[key]
            return kept
        if what in self._last and _same(self._last[what][0], points):
            last: Made = self._last[what][1]
            return last
        value = make()
        self._last[what] = (points, value)
        if not moves:
            self._store(key, value)
        return value

    def _store(self, key: tuple[str, ...], value: Any) -> None:
        """Keep it while there is room."""
        size = value.nbytes if isinstance(value, Tensor | Pairs) else 0
        origin = self._origin or self  # a guided one shares the room as well
        if size <= origin._room:
            self._kept[key] = value
            origin._room -= size


def _key(what: str, batch: DrawBatch | SampleBatch) -> tuple[str, ...]:
    return what, batch.pool, str(batch.block)


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(x is y or (isinstance(x, str) and x == y) for x, y in zip(a, b, strict=True))


class Constant(Generic[Measure]):
    """A measurement of what stays the same while a network trains: made with the first measurement, then kept.

    Args:
        metric: Its metric, empty.
    """

    def __init__(self, metric: Measure) -> None:
        self.metric = metric
        self._estimates: dict[str, Estimate] | None = None
        self._seen: set[int] = set()

    def lacks(self, block: int) -> bool:
        """Whether a block is to be measured: not if it was, for this measurement or before."""
        if self._estimates is not None or block in self._seen:
            return False
        self._seen.add(block)
        return True

    def compute(self) -> dict[str, Estimate]:
        """The estimates by name, kept if no block is missing; until then every rank has to come here."""
        if self._estimates is not None:
            return self._estimates
        self.metric.compute()
        if not self.metric.missing:
            self._estimates = self.metric.estimates
        return self.metric.estimates

    def reset(self) -> None:
        """Forget what is not whole."""
        if self._estimates is None:
            self.metric.reset()
            self._seen = set()
