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
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from gaussbias.data.images import mirror, to_unit
from gaussbias.noise import check_sigmas
from gaussbias.numerics.blocks import block_size
from gaussbias.numerics.seeding import generator

SAMPLE_BLOCK = 128
"""Sampling latents in a block."""
WITHOUT_IMAGES = ("trajectory", "noise")
"""Pools that are points of a space rather than noisy images."""


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
        points: Further pools, of `WITHOUT_IMAGES`. The path of `trajectory` takes the sampler's steps, and the noise
            levels that are measured as further ones.
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
        if not set(points) <= set(WITHOUT_IMAGES) or set(pools) & {*WITHOUT_IMAGES, "samples"}:
            raise ValueError(
                f"Expected `points` to be of {', '.join(WITHOUT_IMAGES)}, and other names for `pools`, "
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
        self.shape = tuple(next(iter(pools.values())).shape[1:])
        self._hashes: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """All pools, those of images first."""
        return [*self.pools, *self.points]

    @property
    def path_sigmas(self) -> list[float]:
        """Noise levels of the path of `trajectory`."""
        return sorted({*self.sampler_sigmas, *self.sigmas}, reverse=True)

    @property
    def sample_blocks(self) -> int:
        """Blocks of sampling latents; the last may be shorter."""
        return -(-self.samples // SAMPLE_BLOCK)

    def draw(self, pool: str, number: int) -> tuple[Tensor, Tensor]:
        """Block `number` of a pool: x0 and eps, each (block, C, H, W), float32.

        x0 is drawn with replacement, each with an eps of its own, so that draws are independent. Of pools without
        images x0 is 0, and for `trajectory` eps are the latents.
        """
        random = generator("probe", self.seed, pool, number)
        if pool in self.points:
            eps = torch.randn(self.block, *self.shape, generator=random)
            return torch.zeros_like(eps), eps
        images = self.pools[pool]
        indices = torch.randint(len(images), (self.block,), generator=random)
        mirrored = torch.rand(self.block, generator=random) < 0.5
        eps = torch.randn(self.block, *self.shape, generator=random)
        x0 = images[indices.to(images.device)].cpu()
        if self.flip:
            x0 = torch.where(mirrored[:, None, None, None], mirror(x0), x0)
        return to_unit(x0), eps

    def latents(self, number: int) -> Tensor:
        """Block `number` of the standard normal sampling latents, (up to 128, C, H, W), float32."""
        size = min(SAMPLE_BLOCK, self.samples - number * SAMPLE_BLOCK)
        random = generator("latents", self.seed, number)
        return torch.randn(SAMPLE_BLOCK, *self.shape, generator=random)[:size]

    def hash(self, pool: str) -> str:
        """A hash of all draws of a pool, or of the latents of `samples`, and of the noise levels; made once."""
        if pool in self._hashes:
            return self._hashes[pool]
        path = (self.sampler, self.path_sigmas) if pool == "trajectory" else ()
        about = (self.sampler, self.sampler_sigmas) if pool == "samples" else (self.sigmas, self.block, *path)
        digest = hashlib.sha256(repr(about).encode())
        for number in range(self.sample_blocks if pool == "samples" else self.blocks):
            for part in (self.latents(number),) if pool == "samples" else self.draw(pool, number):
                digest.update(part.contiguous().numpy().data)
        return self._hashes.setdefault(pool, digest.hexdigest())

    @property
    def hashes(self) -> dict[str, str]:
        """Of every pool, and of the sampling latents if there are any."""
        return {pool: self.hash(pool) for pool in [*self.names, *(["samples"] if self.samples else [])]}

    def loaders(self, rank: int | None = None, world_size: int | None = None) -> list[DataLoader[dict[str, Any]]]:
        """One loader per pool, and one for the latents; block b goes to rank b mod world_size.

        Args:
            rank: This process; if not given, what torch.distributed says when a loader is iterated over ...
            world_size: ... of so many.
        """
        blocks: list[_Blocks] = [_Blocks(self, pool, rank, world_size) for pool in self.names]
        if self.samples:
            blocks.append(_Blocks(self, "samples", rank, world_size))
        return [DataLoader(part, batch_size=None) for part in blocks]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All batches of the pools block by block, without the latents, for measuring outside a Trainer."""
        pools = [_Blocks(self, pool, 0, 1) for pool in self.names]
        for number in range(self.blocks):
            yield from (blocks.batch(number) for blocks in pools)


class _Blocks(IterableDataset[dict[str, Any]]):
    """The blocks of a rank, to iterate over: items that are numbered Lightning would share out a second time."""

    def __init__(self, bank: ProbeBank, pool: str, rank: int | None, world_size: int | None) -> None:
        self.bank, self.pool, self.rank, self.world_size = bank, pool, rank, world_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        several = dist.is_available() and dist.is_initialized()
        rank = self.rank if self.rank is not None else dist.get_rank() if several else 0
        world_size = self.world_size if self.world_size is not None else dist.get_world_size() if several else 1
        count = self.bank.sample_blocks if self.pool == "samples" else self.bank.blocks
        return map(self.batch, range(rank, count, world_size))

    def batch(self, number: int) -> dict[str, Any]:
        """What block `number` holds."""
        batch: dict[str, Any] = {"pool": self.pool, "block": number}
        if self.pool == "samples":
            sigmas = torch.tensor(self.bank.sampler_sigmas, dtype=torch.float64)
            return batch | {
                "latents": self.bank.latents(number),
                "start": number * SAMPLE_BLOCK,
                "sigma": sigmas,
                "method": self.bank.sampler,
            }
        x0, eps = self.bank.draw(self.pool, number)
        batch["sigma"] = torch.tensor(self.bank.sigmas, dtype=torch.float64)
        if self.pool == "trajectory":
            steps = torch.tensor(self.bank.path_sigmas, dtype=torch.float64)
            return batch | {"latents": eps, "steps": steps, "method": self.bank.sampler}
        return batch | {"x0": x0, "eps": eps}
