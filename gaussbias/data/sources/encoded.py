"""Images that are stored as encoded bytes in a column of a table, as Hugging Face's data sets have them."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussbias.data.images import downsample
from gaussbias.data.sources.base import check_size, size
from gaussbias.data.sources.decode import LARGEST_FILE, decode, reason
from gaussbias.data.sources.labels import NoLabels
from gaussbias.data.sources.names import say_transparent
from gaussbias.system.errors import UserError

IMAGES = ("image", "img")
"""What columns of images are called."""
FIRST = 16
"""Images that tell whether all are grey."""
LABELS = ("label", "labels", "fine_label", "class", "y")
"""What columns of classes are called."""


class EncodedImages(ABC):
    """Images in a table. If the first 16 are grey all are, and have one channel; else three.

    What is transparent is put on white.

    Args:
        where: Where the table is, in words.
        count: Its rows.
        columns: Their names.
        resolution: Pixels a side to which each image is brought; `None`: they have one size.
        key: Configuration key to name in messages.

    Raises:
        UserError: If it has no rows, or no column of images.
    """

    def __init__(self, where: str, count: int, columns: Sequence[str], resolution: int | None, key: str) -> None:
        self.where, self.count, self.resolution, self.key = where, count, resolution, key
        if not count:
            raise UserError(f"{key}: expected images in {where}, found no rows")
        self.image = next((name for name in IMAGES if name in columns), None)
        self.label = next((name for name in LABELS if name in columns), None)
        if self.image is None:
            shown = ", ".join(columns[:5]) or "none"
            raise UserError(f"{key}: expected a column {' or '.join(IMAGES)} in {where}, found {shown:.200}")
        self.shape: tuple[int, ...] | None = None

    @cached_property
    def grey(self) -> bool:
        """Whether the images have one channel."""
        assert self.image is not None
        first = range(min(FIRST, self.count))
        return all(len(self._decode(cell, first[place], None)[0]) == 1 for place, cell in self.cells(self.image, first))

    @abstractmethod
    def cells(self, column: str, indices: Sequence[int]) -> Iterable[tuple[int, Any]]:
        """What a column has in some rows: the place of each among `indices`, in any order, and its value."""

    def read(self, indices: Tensor) -> Tensor:
        """Decode the images at `indices`."""
        assert self.image is not None
        wanted, images, clear = indices.tolist(), None, []
        for place, cell in self.cells(self.image, wanted):
            pixels, transparent = self._decode(cell, wanted[place], None if self.grey else False)
            clear += [f"row {wanted[place]}"] if transparent else []
            if self.shape is None:
                self.shape = tuple(pixels.shape)
            if tuple(pixels.shape) != self.shape:
                advice = "data.resolution=PIXELS brings sizes to one"
                if len(pixels) != self.shape[0]:
                    advice = f"the first {FIRST} rows are grey, so that all have to be; save them in colour"
                raise UserError(
                    f"{self.key}: expected images of shape {size(self.shape)}, but row {wanted[place]} of {self.where} "
                    f"has {size(tuple(pixels.shape))}; {advice}"
                )
            if images is None:
                check_size(len(wanted) * pixels.nbytes, f"{len(wanted):,} images of {size(self.shape)}", self.key)
                images = torch.empty(len(wanted), *self.shape, dtype=torch.uint8)
            images[place] = pixels
        assert images is not None
        say_transparent(self.key, self.where, clear, len(wanted))
        return images

    def labels(self) -> np.ndarray:
        """The classes of all images (count,)."""
        if self.label is None:
            raise NoLabels(f"{self.key}: expected a column {' or '.join(LABELS)} in {self.where}, for data.labels")
        found = np.empty(self.count, object)
        for place, cell in self.cells(self.label, range(self.count)):
            found[place] = cell
        strange = next((cell for cell in found if type(cell) is not int), None)
        if strange is not None:
            raise UserError(
                f"{self.key}: expected the number of a class in each row of the column {self.label} of {self.where}, "
                f"got {strange!s:.40}"
            )
        return found.astype(np.int64)

    def _decode(self, cell: Any, row: int, grey: bool | None) -> tuple[Tensor, bool]:
        """The pixels of a cell, with the channels that it has or three, and whether it is transparent somewhere."""
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(data, bytes) and len(data) > LARGEST_FILE:
            raise UserError(
                f"{self.key}: row {row} of {self.where} has {len(data):,} bytes, expected {LARGEST_FILE:,} at most"
            )
        if not isinstance(data, bytes):
            raise UserError(
                f"{self.key}: expected the bytes of an image in row {row} of {self.where}, found "
                f"{'the name of a file' if isinstance(cell, dict) and cell.get('path') else type(data).__name__}"
            )
        try:
            pixels, transparent = decode(io.BytesIO(data), grey)
        except UserError as error:
            raise UserError(f"{self.key}: row {row} of {self.where}: {error}") from None
        except Exception as error:  # what a damaged image raises has no base class
            raise UserError(f"{self.key}: row {row} of {self.where} does not decode ({reason(error)})") from None
        return downsample(torch.from_numpy(pixels.copy())[None], self.resolution)[0], transparent
