"""Tables as text: cells to the right of their columns, titles to the left."""

from __future__ import annotations

from collections.abc import Sequence


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of cells, each at the right end of its column and at least a space from the one before.

    >>> line(["1", "22"], [3, 4])
    '  1  22'
    """
    return "".join(f"{f' {cell}':>{width}}" for cell, width in zip(cells, widths, strict=True))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of cells, in columns that are as wide as what is in them and two spaces apart.

    >>> print(table([["sigma", "error"], ["0.47", "0.1(2)"]]))
    sigma   error
     0.47  0.1(2)
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
