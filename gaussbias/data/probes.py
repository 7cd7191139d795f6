"""The probe bank: fixed draws of (clean image, noise) in numbered blocks, and fixed sampling latents.

Every measurement of a run uses the same draws, so that curves move only because the network moved. A block
is a function of (seed, pool, block number) alone: nothing is stored, any rank can make any block, and runs
that share the seed and a pool measure the same points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gaussbias.data.images import mirror, to_unit
from gaussbias.noise import check_sigmas
from gaussbias.seeding import generator

SAMPLE_BLOCK = 128
"""Sampling latents in a block."""


class ProbeBank:
    """Draws for measuring denoisers.

    Args:
        pools: Name of each pool and its images (N, C, H, W).
        draws: Draws per pool, a multiple of `block`; each serves every noise level.
        sigmas: Noise levels (S,).
        block: Draws in a block.
        flip: Mirror half of the draws.
        samples: Number of sampling latents.
        sampler: `heun` or `euler`, for `samples`.
        sampler_sigmas: Descending noise levels of the sampler.
        seed: Of all draws.
    """

    def __init__(
        self,
        pools: dict[str, Tensor],
        draws: int,
        sigmas: Sequence[float],
        block: int = 64,
        flip: bool = False,
        samples: int = 0,
        sampler: str = "heun",
        sampler_sigmas: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        check_sigmas(sigmas)
        if draws < block or draws % block:
            raise ValueError(f"Expected `draws` to be a multiple of block={block} but got {draws}.")
        self.pools = pools
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
    def sample_blocks(self) -> int:
        """Blocks of sampling latents; the last may be shorter."""
        return -(-self.samples // SAMPLE_BLOCK)

    def draw(self, pool: str, number: int) -> tuple[Tensor, Tensor]:
        """Block `number` of a pool: x0 and eps, each (block, C, H, W), float32.

        x0 is drawn with replacement, each with an eps of its own, so that draws are independent.
        """
        images = self.pools[pool]
        random = generator("probe", self.seed, pool, number)
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
        """A hash of all draws of a pool and of the noise levels; made once."""
        if pool in self._hashes:
            return self._hashes[pool]
        digest = hashlib.sha256(repr((self.sigmas, self.block)).encode())
        for number in range(self.blocks):
            for part in self.draw(pool, number):
                digest.update(part.contiguous().numpy().data)
        return self._hashes.setdefault(pool, digest.hexdigest())

    def loaders(self, rank: int = 0, world_size: int = 1) -> list[DataLoader[dict[str, Any]]]:
        """One loader per pool, and one for the latents; block b goes to rank b mod world_size."""
        blocks: list[_Blocks] = [_Blocks(self, pool, rank, world_size) for pool in self.pools]
        if self.samples:
            blocks.append(_Blocks(self, "samples", rank, world_size))
        return [DataLoader(part, batch_size=None) for part in blocks]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All batches of the pools, without the latents, for measuring outside a Trainer."""
        for pool in self.pools:
            blocks = _Blocks(self, pool, 0, 1)
            yield from (blocks[i] for i in range(len(blocks)))


class _Blocks(Dataset[dict[str, Any]]):
    def __init__(self, bank: ProbeBank, pool: str, rank: int, world_size: int) -> None:
        self.bank, self.pool = bank, pool
        count = bank.sample_blocks if pool == "samples" else bank.blocks
        self.numbers = range(rank, count, world_size)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, position: int) -> dict[str, Any]:
        number = self.numbers[position]  # raises IndexError at the end, which ends iteration
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
        return batch | {"x0": x0, "eps": eps, "sigma": torch.tensor(self.bank.sigmas, dtype=torch.float64)}
