"""How draws are cut into blocks: one is evaluated at once, its draws are paired, and errors are taken over blocks."""

from __future__ import annotations

BLOCKS = 16
"""Fewer blocks give no standard error that deserves the name: with 16 it is itself uncertain by 18 %."""
LARGEST = 256
"""Draws in a block, at most, unless asked for: memory and the cost of pairs grow with them."""


def block_size(draws: int) -> int | None:
    """The largest even number of draws, up to 256, that divides `draws` into 16 blocks or more.

    For a given number of draws the largest blocks give the error ladder the smallest errors, which fall as
    1 / sqrt(draws * block): more pairs. `None` if it is not half as large as it might be: other draws do better.

    >>> block_size(512), block_size(1000), block_size(16384), block_size(514)
    (32, 50, 256, None)
    """
    most = min(LARGEST, draws // BLOCKS)
    sizes = range(most // 2 * 2, max(1, most // 2 - 1), -1)
    return next((size for size in sizes if size % 2 == 0 and draws % size == 0), None)


def next_draws(draws: int) -> int:
    """The next number of draws that has such blocks.

    >>> next_draws(0), next_draws(33), next_draws(513)
    (32, 34, 520)
    """
    return next(n for n in range(max(draws, 1), draws + 2 * BLOCKS * LARGEST) if block_size(n) is not None)
