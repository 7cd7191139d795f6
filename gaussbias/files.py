"""How files are written, and where runs are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def run_of(path: Path) -> Path | None:
    """The run folder that a path is, or that a file of a denoiser lies in; `None` if there is none."""
    places = (path, path.parent, path.parent.parent if path.parent.name == "checkpoints" else path)
    return next((place for place in places if (place / "config.yaml").is_file()), None)


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """A name to write to; what was written appears at `path` when it is whole, in place of what was there."""
    temporary = path.with_suffix(".tmp")
    yield temporary
    temporary.replace(path)
