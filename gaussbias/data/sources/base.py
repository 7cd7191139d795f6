"""What a source of images is."""

from __future__ import annotations

import os
import stat
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gaussbias.system.errors import UserError

ENCRYPTED = 1
"""Bit of a zip's entry."""
READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


class Source(Protocol):
    """A set of images of one shape.

    One whose images have classes has a method `labels`, which gives them as (count,) whole numbers from 0.
    """

    count: int

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices` (k,), as (k, C, H, W), uint8 or float32 in data units."""
        ...


class TensorSource:
    """Images that are in memory already.

    Args:
        images: (N, C, H, W), uint8 or floating point.
        labels: Gives the classes (N,), and is called when they are asked for; `None`: there are none.
    """

    def __init__(self, images: Tensor, labels: Callable[[], Any] | None = None) -> None:
        self.images = images
        self.count = len(images)
        if labels is not None:
            self.labels = labels

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices`."""
        return self.images[indices]


def from_mapped(array: np.ndarray) -> Tensor:
    """A tensor of an array that is mapped from a file to be read alone; nothing here writes to images."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class Chosen:
    """Some images of a source.

    Args:
        source: The source.
        places: Which of its images (k,).
        labels: The classes of all of them.
    """

    def __init__(self, source: Source, places: Tensor, labels: Tensor) -> None:
        self.source, self.places, self.all_labels = source, places, labels
        self.count = len(places)
        names: Sequence[str] | None = getattr(source, "names", None)
        if names is not None and len(names) == source.count:
            self.names = [names[place] for place in places.tolist()]

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices` among the chosen ones."""
        return self.source.read(self.places[indices])

    def labels(self) -> Tensor:
        """Their classes (k,)."""
        return self.all_labels[self.places]


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


def check_size(wanted: int, what: str, key: str) -> None:
    """Raise `UserError` for more bytes than half of this machine's memory: a file can promise anything."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows does not say
        return
    if wanted > memory / 2:
        raise UserError(
            f"{key}: expected at most {memory / 2e9:.3g} GB, half of this machine's memory, but {what} takes "
            f"{wanted / 1e9:.3g} GB; choose fewer or smaller images, or do not trust the file"
        )


def check_members(archive: zipfile.ZipFile, path: Path, key: str) -> None:
    """Raise `UserError` for a zip that cannot be read, or names files outside of the folder that it is unpacked to.

    Nothing here unpacks it, but no honest zip has such names.
    """
    for entry in archive.infolist():
        if entry.flag_bits & ENCRYPTED:
            raise UserError(f"{key}: {path} is encrypted ({entry.filename!r}); zip its files again without a password")
        if entry.compress_type not in READABLE:
            raise UserError(
                f"{key}: {entry.filename!r} in {path} is compressed by method {entry.compress_type} (9 is deflate64), "
                "which Python cannot read; zip its files again by the usual method, deflate"
            )
    for name in archive.namelist():
        if not (".." in name or ":" in name or name.startswith(("/", "\\"))):
            continue
        parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
        if ".." in parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
            raise UserError(f"{key}: {path} names a file outside of it ({name!r}); it is damaged, or made to do harm")
