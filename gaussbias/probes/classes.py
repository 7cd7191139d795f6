"""Probe banks of images with classes: one for each class, which are loaded and shared out together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gaussbias.numerics.blocks import block_size
from gaussbias.probes.bank import SAMPLES, Batch, ProbeBank, SampleBatch

FEWEST = 2
"""Images of a class in a pool, and samples of it, which a covariance of its own takes."""


class FewOfClass(ValueError):
    """A class has too few images in a pool, to be measured on its own.

    Args:
        pool: The pool.
        label: The class.
        count: How many it has.
    """

    def __init__(self, pool: str, label: int, count: int) -> None:
        super().__init__(
            f"Expected at least {FEWEST} images of each class in the pool {pool}, for a covariance of its own, but got "
            f"{count} of class {label}."
        )
        self.pool = pool


class ClassBanks(ProbeBank):
    """The draws of each class, from a bank of its own.

    Every block holds as many draws of each class, an even number, so that classes share out the draws of a block. Draws
    of different classes are independent; their sampling latents are the same. With one class the draws are those of a
    bank without classes.

    Args:
        pools: Name of each pool and its images (N, C, H, W).
        labels: The classes of the images (N,) of all pools, and of `train` in any case.
        classes: Which classes are measured.
        draws: Draws per pool of all classes, at least; shared out in even numbers.
        sigmas: Noise levels (S,).
        block: Draws in a block, of all classes.
        samples: Number of sampling latents of all classes, at least.
        others: As a `ProbeBank` takes them.

    Attributes:
        banks: By class.
        shares: The shares of the classes among the training images; values are means with these weights.
    """

    def __init__(
        self,
        pools: Mapping[str, Tensor],
        labels: Mapping[str, Tensor],
        classes: Sequence[int],
        draws: int,
        sigmas: Sequence[float],
        block: int | None = None,
        samples: int = 0,
        **others: Any,
    ) -> None:
        block = block_size(draws) if block is None else block
        if block is None or draws % block:
            raise ValueError(f"Expected `draws` to be a multiple of `block` but got draws={draws} and block={block}.")
        blocks, count = draws // block, len(classes)
        each = 2 * -(-block // (2 * count))
        of_each = max(FEWEST, -(-samples // count)) if samples else 0
        super().__init__(dict(pools), blocks * each * count, sigmas, each * count, samples=of_each * count, **others)
        self.banks = {
            label: ProbeBank(
                {pool: images[labels[pool] == label] for pool, images in pools.items()},
                blocks * each,
                sigmas,
                each,
                samples=of_each,
                label=label,
                stream=place,
                **others,
            )
            for place, label in enumerate(classes)
        }
        sizes = [float((labels["train"] == label).sum()) for label in classes]
        self.shares = {label: size / sum(sizes) for label, size in zip(classes, sizes, strict=True)}

    @property
    def parts(self) -> list[ProbeBank]:
        """Those of the classes."""
        return list(self.banks.values())

    def hash(self, pool: str) -> str:
        """A hash of all draws of a pool, of the classes, and of their shares; made once."""
        if pool not in self._hashes:
            about = [(label, self.shares[label], bank.hash(pool)) for label, bank in self.banks.items()]
            self._hashes[pool] = hashlib.sha256(repr(about).encode()).hexdigest()
        return self._hashes[pool]

    def loaders(self, rank: int | None = None, world_size: int | None = None) -> list[DataLoader[Batch]]:
        """Those of all classes."""
        return [loader for bank in self.parts for loader in bank.loaders(rank, world_size)]


def bank_of(pools: Mapping[str, Tensor], labels: Mapping[str, Tensor] | None = None, **others: Any) -> ProbeBank:
    """The draws of some images, or of their classes.

    Args:
        pools: Name of each pool and its images (N, C, H, W).
        labels: The classes of training and held-out images (N,), by pool, whether they are measured on or not; `None`:
            they have none.
        others: As a `ProbeBank` takes them.

    Raises:
        FewOfClass: If a class of the training images has fewer than two training or held-out images.
    """
    if labels is None:
        return ProbeBank(dict(pools), **others)
    classes: list[int] = labels["train"].unique().tolist()
    for pool, own in labels.items():
        for label in classes:
            count = int((own == label).sum())
            if count < FEWEST:
                raise FewOfClass(pool, label, count)
    return ClassBanks(pools, labels, classes, **others)


def sample_batches(bank: ProbeBank, device: torch.device) -> Iterator[SampleBatch]:
    """All sampling latents of a bank, class after class, whatever the process."""
    for part in bank.parts:
        for number in part.numbers(SAMPLES, 0, 1):
            batch = part.batch(SAMPLES, number)
            assert isinstance(batch, SampleBatch)
            yield batch.to(device)


def sample_labels(bank: ProbeBank) -> Tensor | None:
    """The classes of all samples, in the order of `sample_batches` (n,); `None` without labels."""
    labels = [torch.full((part.samples,), part.label) for part in bank.parts if part.label is not None]
    return torch.cat(labels) if labels else None
