"""Randomness as a function of names: no generator has a state that a resumed run would have to restore."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

ALIKE = 2**13
"""Normal numbers that every card draws alike. With more numbers than threads it depends on the number of processors
which thread draws which; 8 processors have so many threads."""


def derive(*key: int | str) -> int:
    """A seed for a key, such as `(run_seed, "noise", step)`; different keys give unrelated seeds.

    The CPU's generator uses 32 bits of it: among 100,000 keys about one pair shares its draws.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that is seeded by a key."""
    return torch.Generator(device).manual_seed(derive(*key))


class Normals:
    """Standard normal numbers as a function of a key and of nothing else: not of the card, nor of the number of ranks.

    A GPU's numbers are not those of a CPU. On the CPU all numbers come from one generator, in the order in which they
    are asked for; on a GPU each part of `ALIKE` numbers has one of its own, so a rank draws no more than its rows. That
    is a kernel for each part: 192 for 512 images of 3 x 32 x 32.

    Args:
        key: What they are a function of.
        device: Where they are drawn.
    """

    def __init__(self, *key: int | str, device: torch.device | str = "cpu") -> None:
        self.key, self.device = key, torch.device(device)
        self._calls = 0
        self._random = generator(*key) if self.device.type == "cpu" else None

    def __call__(self, *shape: int, rows: slice) -> Tensor:
        """Some rows of the next numbers of this shape."""
        if self._random is not None:
            return torch.randn(shape, generator=self._random)[rows]
        self._calls += 1
        first, last, _ = rows.indices(shape[0])
        each = math.prod(shape[1:])
        start, stop = first * each // ALIKE, -(-last * each // ALIKE)
        drawn = torch.empty((stop - start) * ALIKE, device=self.device)
        for number, part in enumerate(drawn.split(ALIKE), start):
            part.normal_(generator=generator(*self.key, self._calls, number, device=self.device))
        return drawn[first * each - start * ALIKE :][: (last - first) * each].view(last - first, *shape[1:])
