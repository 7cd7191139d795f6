"""Zips of images."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gaussbias.data.sources.base import check_file, check_members, check_size, size
from gaussbias.data.sources.decode import LARGEST_FILE, decode, reason
from gaussbias.data.sources.labels import NAMED, NoLabels, in_dataset_json
from gaussbias.data.sources.names import image_names, say_left_out, say_transparent
from gaussbias.system.errors import UserError

LARGEST_RATIO = 256
"""By which an image may shrink further in a zip, at most, if it is large."""


class EDMZip:
    """A zip of images with `dataset.json` beside them, the layout that EDM's and StyleGAN's tools write.

    Images are taken in the order of their names. Grey images have one channel, all others three. What is transparent is
    put on white. How many other files there are is said in a line.

    Args:
        path: The zip file.
        shape: Expected (C, H, W) of each image; `None` takes that of the first.
        key: Configuration key to name in messages.

    Raises:
        UserError: If the file is missing, not a zip, damaged, made to do harm, or holds images of different sizes.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int] | None = None, key: str = "data.path") -> None:
        self.path, self.key = path, key
        check_file(path, key)
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                check_members(archive, path, key)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
            raise UserError(
                f"{key}: expected a zip file, but {path} is not one or was cut short; copy or download it again"
            ) from None
        self.names = image_names(names)
        self.count = len(self.names)
        if not self.names:
            raise UserError(f"{key}: expected images inside {path}, found {len(names)} other files")
        say_left_out(key, path, names, self.count)
        self.shape = shape

    def read(self, indices: Tensor) -> Tensor:
        """Decode the images at `indices`."""
        wanted = indices.tolist()
        images: np.ndarray | None = None
        clear = []
        with zipfile.ZipFile(self.path) as archive:
            for row, index in enumerate(wanted):
                image, transparent = self._decode(archive, self.names[index])
                clear += [self.names[index]] if transparent else []
                if self.shape is None:
                    self.shape = (image.shape[0], image.shape[1], image.shape[2])
                if image.shape != self.shape:
                    raise UserError(
                        f"{self.key}: expected images of shape {size(self.shape)}, but {self.names[index]} in "
                        f"{self.path} has {size(image.shape)}"
                    )
                if images is None:
                    check_size(len(wanted) * image.nbytes, f"{len(wanted):,} images of {size(image.shape)}", self.key)
                    images = np.empty((len(wanted), *self.shape), dtype=np.uint8)
                images[row] = image
        assert images is not None
        say_transparent(self.key, self.path, clear, len(wanted))
        return torch.from_numpy(images)

    def labels(self) -> Tensor:
        """The classes in `dataset.json`, (count,)."""
        with zipfile.ZipFile(self.path) as archive:
            if NAMED not in archive.namelist():
                raise NoLabels(f"{self.key}: expected {NAMED} with labels in {self.path}, for data.labels, found none")
            self._check_unpacked(archive, NAMED)
            try:
                text = archive.read(NAMED)
            except Exception as error:  # what a damaged file raises has no base class
                raise UserError(
                    f"{self.key}: {NAMED} in {self.path} cannot be read ({reason(error)}); replace the file"
                ) from None
            return in_dataset_json(text, self.names, f"{self.key}: {NAMED} in {self.path}")

    def _check_unpacked(self, archive: zipfile.ZipFile, name: str) -> None:
        """Raise `UserError` for a file that unpacks to far more than it is."""
        entry = archive.getinfo(name)
        most = max(2**20, min(LARGEST_FILE, LARGEST_RATIO * entry.compress_size))
        if entry.file_size > most:
            raise UserError(
                f"{self.key}: {name} in {self.path} unpacks to {entry.file_size:,} bytes, expected at most {most:,} of "
                f"{entry.compress_size:,}; it is damaged, or made to do harm"
            )

    def _decode(self, archive: zipfile.ZipFile, name: str) -> tuple[np.ndarray, bool]:
        self._check_unpacked(archive, name)
        try:
            return decode(io.BytesIO(archive.read(name)))
        except UserError as error:
            raise UserError(f"{self.key}: {name} in {self.path}: {error}") from None
        except Exception as error:  # what a damaged image raises has no base class
            raise UserError(
                f"{self.key}: {name} in {self.path} does not decode ({reason(error)}); replace the file"
            ) from None
