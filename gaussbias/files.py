"""How files are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """A name to write to; what was written appears at `path` when it is whole, in place of what was there."""
    temporary = path.with_suffix(".tmp")
    yield temporary
    temporary.replace(path)
