"""A set of images as rows of pixels, for searching and summing over all of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gaussbias.data.images import mirror


class ImageRows:
    """Images, and after them their mirrored copies, as rows, read in chunks on the device of whoever asks.

    Images stay where they are, but for one copy on a GPU that has room (`Near`); mirrored copies are made when they
    are read.

    Args:
        images: (N, C, H, W), uint8 or floating point.
        flip: Whether the mirrored copies count.
    """

    def __init__(self, images: Tensor, flip: bool = False) -> None:
        self.images, self.flip = images, flip
        self._near = Near(images)

    def __len__(self) -> int:
        return len(self.images) * (1 + self.flip)

    def chunks(self, size: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """All rows, as the position of the first and the rows (up to `size`, d) of each chunk."""
        images = self._near.on(device)
        for start in range(0, len(images), size):
            part = images[start : start + size].to(device)
            yield start, part.flatten(1)
            if self.flip:
                yield len(images) + start, mirror(part).flatten(1)

    def take(self, places: Tensor) -> Tensor:
        """The rows at `places` (...), as (..., d), on their device."""
        images = self._near.on(places.device)
        rows = images[(places % len(images)).to(images.device)].to(places.device)
        if self.flip:
            mirrored = places >= len(images)
            rows = torch.where(mirrored[..., None, None, None], mirror(rows), rows)
        return rows.flatten(-3)


def chunk_size(device: torch.device) -> int:
    """Images in a chunk: what stays in the cache of a CPU, or keeps a GPU busy."""
    return 4096 if device.type == "cuda" else 1024


def round_off(dtype: torch.dtype, lengths: Tensor, longest: float) -> Tensor:
    """Bound on the error of `x.y - ||y||^2 / 2` as it is computed from products, for vectors of such lengths.

    1 to 3 times eps ||x|| ||y|| are measured on images after centring; 8 leaves room.
    """
    return 8 * torch.finfo(dtype).eps * (lengths + longest) * longest


class Near:
    """A tensor, and a copy of it on a GPU if it takes less than a quarter of what is free there.

    All that are made of the same tensor share the copy, and it is freed with the last of them.

    Args:
        tensor: On any device.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._held: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The copy on a device, or the tensor itself."""
        if device.type != "cuda":
            return self.tensor
        if ":" not in str(device):  # `cuda` is one of them
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._held:
            self._held[device] = self._find(device)
        return self._held[device]

    def _find(self, device: torch.device) -> Tensor:
        if self.tensor.device == device:
            return self.tensor
        copies: Any = _copies.setdefault(self.tensor, {})
        there: Tensor | None = copies[device]() if device in copies else None
        if there is not None:
            return there
        free, _ = torch.cuda.mem_get_info(device)
        if self.tensor.nbytes >= free / 4:
            return self.tensor
        copy = self.tensor.to(device)
        copies[device] = weakref.ref(copy)
        return copy


_copies: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""The copies of each tensor that are held, by device."""


def copied_bytes() -> int:
    """Bytes of all copies on GPUs."""
    tensors = [reference() for copies in _copies.values() for reference in copies.values()]
    return sum(copy.nbytes for copy in tensors if copy is not None)
