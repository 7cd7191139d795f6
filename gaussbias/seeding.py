"""Randomness as a function of names: no generator has a state that a resumed run would have to restore."""

from __future__ import annotations

import hashlib

import torch


def derive(*key: int | str) -> int:
    """A seed for a key, such as `(run_seed, "noise", step)`; different keys give unrelated seeds.

    The CPU's generator uses 32 bits of it: among 100,000 keys about one pair shares its draws.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that is seeded by a key."""
    return torch.Generator(device).manual_seed(derive(*key))
