"""The probe bank: fixed draws of (clean image, noise) in numbered blocks, and fixed sampling latents.

Every measurement of a run uses the same draws, so that curves move only because the network moved. A block
is a function of (seed, pool, block number) alone: nothing is stored, any rank can make any block, and runs
that share the seed and a pool measure the same points.

Two pools hold no images: `noise` is pure noise, and `trajectory` has the points on a network's own deterministic path
from fixed latents, at the same noise levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from gaussbias.catalogue import POINTS
from gaussbias.data.images import mirror, to_unit
from gaussbias.noise import check_sigmas
from gaussbias.numerics.blocks import block_size
from gaussbias.numerics.seeding import generator

SAMPLE_BLOCK = 128
"""Sampling latents in a block."""
SAMPLES = "samples"
"""The pool of sampling latents."""
TRAJECTORY = "trajectory"
"""The pool whose points move with the denoiser."""
Moved = TypeVar("Moved", bound="Placed")


@dataclass(frozen=True)
class Placed:
    """Tensors that are moved together."""

    def to(self: Moved, device: torch.device, non_blocking: bool = False) -> Moved:
        """The same on a device; Lightning moves batches by this method."""
        moved = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class DrawBatch(Placed):
    """A block of draws of a pool.

    Attributes:
        pool: Its pool.
        block: Its number.
        sigmas: Noise levels (S,), float64; each draw serves all of them.
        x0: Clean images (m, C, H, W), in data units; 0 for pools without images.
        eps: Standard normal noise (m, C, H, W); for the pool `trajectory` the latents of its paths.
        steps: Descending noise levels of the path of `trajectory`, float64; `None` for other pools.
        method: Its sampler.
        label: The class of its images; `None` without labels.
    """

    pool: str
    block: int
    sigmas: Tensor
    x0: Tensor
    eps: Tensor
    steps: Tensor | None = None
    method: str = ""
    label: int | None = None


@dataclass(frozen=True, kw_only=True)
class DrawValues(DrawBatch):
    """A block of draws, and a denoiser's values there.

    Attributes:
        x: Noisy images (S, m, C, H, W).
        output: The denoiser's values (S, m, C, H, W).
    """

    x: Tensor
    output: Tensor


@dataclass(frozen=True)
class SampleBatch(Placed):
    """A block of sampling latents.

    Attributes:
        block: Its number.
        start: The number of its first latent.
        sigmas: Descending noise levels of the sampler (S,), float64.
        latents: Standard normal (m, C, H, W).
        method: `heun` or `euler`.
        label: The class to sample; `None` without labels.
    """

    block: int
    start: int
    sigmas: Tensor
    latents: Tensor
    method: str
    pool: str = SAMPLES
    label: int | None = None


@dataclass(frozen=True, kw_only=True)
class SampleValues(SampleBatch):
    """A block of sampling latents, and a denoiser's samples from them.

    Attributes:
        samples: (m, C, H, W).
        path: The states on the way to them (S + 1, m, C, H, W), float64.
    """

    samples: Tensor
    path: Tensor


Batch = DrawBatch | SampleBatch
Values = DrawValues | SampleValues


class ProbeBank:
    """Draws for measuring denoisers.

    Args:
        pools: Name of each pool and its images (N, C, H, W).
        draws: Draws per pool, a multiple of `block`; each serves every noise level.
        sigmas: Noise levels (S,).
        block: Draws in a block; `None` is the largest number that leaves 16 blocks, fewer than which have no errors.
        flip: Mirror half of the draws.
        samples: Number of sampling latents.
        sampler: `heun` or `euler`, for `samples`.
        sampler_sigmas: Descending noise levels of the sampler.
        seed: Of all draws.
        points: Further pools, of `gaussbias.catalogue.POINTS`. The path of `trajectory` takes the sampler's steps, and
            the noise levels that are measured as further ones.
        label: The class of all images; `None` without labels.
        stream: Banks with other numbers have other, independent draws; the latents are the same.
    """

    def __init__(
        self,
        pools: dict[str, Tensor],
        draws: int,
        sigmas: Sequence[float],
        block: int | None = None,
        flip: bool = False,
        samples: int = 0,
        sampler: str = "heun",
        sampler_sigmas: Sequence[float] = (),
        seed: int = 0,
        points: Sequence[str] = (),
        label: int | None = None,
        stream: int = 0,
    ) -> None:
        check_sigmas(sigmas)
        block = block_size(draws) if block is None else block
        if block is None or draws < block or draws % block:
            raise ValueError(
                f"Expected `draws` to be a multiple of `block`, or to have 16 blocks of an even number of draws, "
                f"but got draws={draws} and block={block}."
            )
        if not pools:
            raise ValueError("Expected at least one pool of images but got none.")
        if not set(points) <= set(POINTS) or set(pools) & {*POINTS, SAMPLES}:
            raise ValueError(
                f"Expected `points` to be of {', '.join(POINTS)}, and other names for `pools`, "
                f"but got {list(points)} and {list(pools)}."
            )
        self.pools = pools
        self.points = tuple(points)
        self.blocks = draws // block
        self.sigmas = [float(sigma) for sigma in sigmas]
        self.block = block
        self.flip = flip
        self.samples = samples
        self.sampler = sampler
        self.sampler_sigmas = [float(sigma) for sigma in sampler_sigmas]
        self.seed = seed
        self.label = label
        self._stream = (stream,) if stream else ()
        self.shape = tuple(next(iter(pools.values())).shape[1:])
        self._hashes: dict[str, str] = {}

    @property
    def parts(self) -> list[ProbeBank]:
        """The banks that are measured one by one: this one; of images with classes those of the classes."""
        return [self]

    @property
    def names(self) -> list[str]:
        """All pools, those of images first."""
        return [*self.pools, *self.points]

    @property
    def path_sigmas(self) -> list[float]:
        """Noise levels of the path of `trajectory`."""
        return sorted({*self.sampler_sigmas, *self.sigmas}, reverse=True)

    @property
    def loaded(self) -> list[str]:
        """All pools, and that of sampling latents if there are any."""
        return [*self.names, *([SAMPLES] if self.samples else [])]

    @property
    def sample_blocks(self) -> int:
        """Blocks of sampling latents; the last may be shorter."""
        return -(-self.samples // SAMPLE_BLOCK)

    def numbers(self, pool: str, rank: int | None = None, world_size: int | None = None) -> range:
        """The blocks of a pool that a process has; block b goes to rank b mod world_size.

        Args:
            pool: A pool, or `samples`.
            rank: The process; if not given, what torch.distributed says, if it has joined several ...
            world_size: ... of so many.
        """
        joined = dist.is_available() and dist.is_initialized()
        rank = rank if rank is not None else dist.get_rank() if joined else 0
        world_size = world_size if world_size is not None else dist.get_world_size() if joined else 1
        return range(rank, self.sample_blocks if pool == SAMPLES else self.blocks, world_size)

    def draw(self, pool: str, number: int) -> tuple[Tensor, Tensor]:
        """Block `number` of a pool: x0 and eps, each (block, C, H, W), float32.

        x0 is drawn with replacement, each with an eps of its own, so that draws are independent. Of pools without
        images x0 is 0, and for `trajectory` eps are the latents.
        """
        if pool in self.points:
            random = generator("probe", self.seed, pool, number, *self._stream)
            eps = torch.randn(self.block, *self.shape, generator=random)
            return torch.zeros_like(eps), eps
        images = self.pools[pool]
        indices, random = self._choose(pool, number)
        mirrored = torch.rand(self.block, generator=random) < 0.5
        eps = torch.randn(self.block, *self.shape, generator=random)
        x0 = images[indices.to(images.device)].cpu()
        if self.flip:
            x0 = torch.where(mirrored[:, None, None, None], mirror(x0), x0)
        return to_unit(x0), eps

    def chosen(self, pool: str, number: int) -> Tensor:
        """Which images of a pool the draws of a block are made of (block,); a mirrored copy counts as its image."""
        return self._choose(pool, number)[0]

    def _choose(self, pool: str, number: int) -> tuple[Tensor, torch.Generator]:
        """Those, and what draws the rest of the block."""
        random = generator("probe", self.seed, pool, number, *self._stream)
        return torch.randint(len(self.pools[pool]), (self.block,), generator=random), random

    def latents(self, number: int) -> Tensor:
        """Block `number` of the standard normal sampling latents, (up to 128, C, H, W), float32."""
        size = min(SAMPLE_BLOCK, self.samples - number * SAMPLE_BLOCK)
        random = generator("latents", self.seed, number)
        return torch.randn(SAMPLE_BLOCK, *self.shape, generator=random)[:size]

    def hash(self, pool: str) -> str:
        """A hash of all draws of a pool, or of the latents of `samples`, and of the noise levels; made once."""
        if pool in self._hashes:
            return self._hashes[pool]
        path = (self.sampler, self.path_sigmas) if pool == TRAJECTORY else ()
        about = (self.sampler, self.sampler_sigmas) if pool == SAMPLES else (self.sigmas, self.block, *path)
        digest = hashlib.sha256(repr(about).encode())
        for number in self.numbers(pool, 0, 1):
            for part in (self.latents(number),) if pool == SAMPLES else self.draw(pool, number):
                digest.update(part.contiguous().numpy().data)
        return self._hashes.setdefault(pool, digest.hexdigest())

    @property
    def hashes(self) -> dict[str, str]:
        """The hashes of every pool, and of the sampling latents if there are any."""
        return {pool: self.hash(pool) for pool in self.loaded}

    def loaders(self, rank: int | None = None, world_size: int | None = None) -> list[DataLoader[Batch]]:
        """One loader per pool, and one for the latents; block b goes to rank b mod world_size.

        Args:
            rank: This process; if not given, what torch.distributed says when a loader is iterated over ...
            world_size: ... of so many.
        """
        return [DataLoader(_Blocks(self, pool, rank, world_size), batch_size=None) for pool in self.loaded]

    def batch(self, pool: str, number: int) -> Batch:
        """Block `number` of a pool, or of the latents of `samples`."""
        if pool == SAMPLES:
            levels = torch.tensor(self.sampler_sigmas, dtype=torch.float64)
            start, latents = number * SAMPLE_BLOCK, self.latents(number)
            return SampleBatch(number, start, levels, latents, self.sampler, label=self.label)
        sigmas = torch.tensor(self.sigmas, dtype=torch.float64)
        x0, eps = self.draw(pool, number)
        if pool != TRAJECTORY:
            return DrawBatch(pool, number, sigmas, x0, eps, label=self.label)
        steps = torch.tensor(self.path_sigmas, dtype=torch.float64)
        return DrawBatch(pool, number, sigmas, x0, eps, steps, self.sampler, self.label)


class _Blocks(IterableDataset[Batch]):
    """The blocks of a rank, to iterate over: items that are numbered Lightning would share out a second time."""

    def __init__(self, bank: ProbeBank, pool: str, rank: int | None, world_size: int | None) -> None:
        self.bank, self.pool, self.rank, self.world_size = bank, pool, rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        numbers = self.bank.numbers(self.pool, self.rank, self.world_size)
        return (self.bank.batch(self.pool, number) for number in numbers)
