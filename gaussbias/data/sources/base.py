"""What a source of images is."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from torch import Tensor

from gaussbias.errors import UserError


class Source(Protocol):
    """A set of images of one shape."""

    count: int

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices` (k,), as (k, C, H, W), uint8 or float32 in data units."""
        ...


class TensorSource:
    """Images that are in memory already.

    Args:
        images: (N, C, H, W), uint8 or floating point.
    """

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.count = len(images)

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices`."""
        return self.images[indices]


def check_file(path: Path, key: str) -> None:
    """Raise `UserError` unless `path` is a file that can be read."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{key}: expected a file, found none at {path}") from None
    except OSError as error:
        raise UserError(f"{key}: cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{key}: expected a file, but {path} is {'a folder' if stat.S_ISDIR(mode) else 'none'}")
    if not os.access(path, os.R_OK):
        raise UserError(f"{key}: expected a file that may be read, but {path} may not")


def size(shape: tuple[int, ...]) -> str:
    """A shape in words."""
    return " x ".join(map(str, shape))
