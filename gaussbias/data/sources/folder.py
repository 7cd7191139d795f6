"""Folders of images."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from gaussbias.data.images import downsample
from gaussbias.data.sources.base import check_file, check_size, size
from gaussbias.data.sources.decode import FORMATS, decode, is_grey, reason, upright_size
from gaussbias.data.sources.labels import NAMED, in_dataset_json, in_folders
from gaussbias.data.sources.names import image_names, say_left_out, say_once, say_transparent, some
from gaussbias.system.errors import UserError


class ImageFolder:
    """All images in a folder and the folders inside it, in the order of their paths.

    If all are grey they have one channel, else three. Without `resolution` they need one size; with it, the centre
    square of each is shrunk by averaging over areas. What is transparent is put on white. How many other files there
    are is said in a line.

    Args:
        path: The folder.
        resolution: Pixels a side.
        key: Configuration key to name in messages.

    Raises:
        UserError: If there are no images, one does not decode, or their sizes differ.
    """

    def __init__(self, path: Path, resolution: int | None = None, key: str = "data.path") -> None:
        self.path, self.resolution, self.key = path, resolution, key
        self.folders: list[str] = []  # of classes, once labels are asked for
        if not path.is_dir():
            hint = "; of a .zip set data.source=edm_zip" if path.suffix == ".zip" and path.exists() else ""
            raise UserError(
                f"{key}: expected a folder of images, found {'a file' if path.exists() else 'none'} at {path}{hint}"
            )
        try:
            names, broken = _files(path)
        except OSError as error:
            raise UserError(f"{key}: cannot read all of {path}: {error.filename}: {error.strerror}") from None
        self.names = image_names(names)
        self.count = len(self.names)
        if not self.names:
            raise UserError(f"{key}: expected images in {path}, found {len(names)} other files")
        say_left_out(key, path, names, self.count, broken)
        self.grey = True
        sizes: dict[tuple[int, ...], str] = {}
        for name in self.names:
            try:
                with Image.open(path / name, formats=FORMATS) as image:  # only the header is read here
                    sizes.setdefault(upright_size(image), name)
                    self.grey &= is_grey(image)
            except Exception as error:  # what a damaged image raises has no base class
                raise self._broken(name, error) from None
        if resolution is None and len(sizes) > 1:
            (first, a), (second, b), *_ = sizes.items()
            raise UserError(
                f"{key}: expected images of one size, or data.resolution=PIXELS to bring them to one, but in {path} "
                f"{a} has {size(first)} and {b} has {size(second)}"
            )
        smallest = min(sizes, key=min)
        self.size = smallest[0], smallest[1]
        if resolution is not None and min(smallest) < resolution:
            raise UserError(
                f"data.resolution: expected at most {min(smallest)}, the size of {sizes[smallest]} in {path} "
                f"({size(smallest)}), got {resolution}"
            )

    def read(self, indices: Tensor) -> Tensor:
        """Decode the images at `indices`."""
        height, width = (self.resolution, self.resolution) if self.resolution else self.size
        wanted = len(indices) * (1 if self.grey else 3) * height * width
        check_size(wanted, f"{len(indices):,} images of {height} x {width} from {self.path}", self.key)
        names = [self.names[index] for index in indices.tolist()]
        images = [self._read(name) for name in names]
        say_transparent(
            self.key, self.path, [name for name, (_, clear) in zip(names, images, strict=True) if clear], len(names)
        )
        return torch.stack([pixels for pixels, _ in images])

    def labels(self) -> Tensor:
        """The classes in `dataset.json`, or else the folder of each image, numbered in order; (count,)."""
        file = self.path / NAMED
        if file.is_file():
            check_file(file, self.key)
            check_size(file.stat().st_size, str(file), self.key)
            return in_dataset_json(file.read_bytes(), self.names, f"{self.key}: {file}")
        labels, folders = in_folders(self.names, self.path)
        self.folders = folders
        shown = [f"{place} is {folder}" for place, folder in enumerate(folders)]
        say_once(f"data.labels: the classes of {self.path} are its folders: {some(shown)}")
        return labels

    def _read(self, name: str) -> tuple[Tensor, bool]:
        """The pixels of an image, and whether it is transparent somewhere."""
        try:
            with (self.path / name).open("rb") as file:
                pixels, transparent = decode(file, self.grey)
        except UserError as error:
            raise UserError(f"{self.key}: {self.path / name}: {error}") from None
        except Exception as error:  # what a damaged image raises has no base class
            raise self._broken(name, error) from None
        return downsample(torch.from_numpy(pixels.copy())[None], self.resolution)[0], transparent

    def _broken(self, name: str, error: Exception) -> UserError:
        return UserError(f"{self.key}: {self.path / name} does not decode ({reason(error)}); replace or remove it")


def _files(path: Path) -> tuple[list[str], list[str]]:
    """Regular files in a folder and below, relative to it, and links to nowhere.

    Links are followed, but no folder is read twice.
    """
    seen: set[str] = set()
    found: list[str] = []
    broken: list[str] = []

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, followlinks=True, onerror=fail):
        seen.add(os.path.realpath(folder))
        folders[:] = sorted(f for f in folders if os.path.realpath(os.path.join(folder, f)) not in seen)  # noqa: PTH118
        for name in names:
            file = os.path.join(folder, name)  # noqa: PTH118, pathlib is slow for many files
            if os.path.isfile(file):  # noqa: PTH113
                found.append(os.path.relpath(file, path))
            elif not os.path.exists(file):  # noqa: PTH110
                broken.append(os.path.relpath(file, path))
    return found, sorted(broken)
