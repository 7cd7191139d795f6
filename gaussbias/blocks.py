"""How draws are cut into blocks: one is evaluated at once, its draws are paired, and errors are taken over blocks."""

from __future__ import annotations

BLOCKS = 16
"""Fewer blocks give no standard error that deserves the name: with 16 it is itself uncertain by 18 %."""
LARGEST = 256
"""Draws in a block, at most, unless asked for: memory and the cost of pairs grow with them."""


def block_size(draws: int) -> int | None:
    """The largest even number of draws, up to 256, that divides `draws` into 16 blocks or more; `None` if none does.

    For a given number of draws the largest blocks give the error ladder the smallest errors, which fall as
    1 / sqrt(draws * block): more pairs.

    >>> block_size(512), block_size(1000), block_size(16384), block_size(30)
    (32, 50, 256, None)
    """
    sizes = range(min(LARGEST, draws // BLOCKS) // 2 * 2, 1, -2)
    return next((size for size in sizes if draws % size == 0), None)
