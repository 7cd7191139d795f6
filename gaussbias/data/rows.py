"""A set of images as rows of pixels, for searching and summing over all of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gaussbias.data.images import mirror


class ImageRows:
    """Images, and after them their mirrored copies, as rows, read in chunks on the device of whoever asks.

    Images stay where they are, but for one copy on a GPU that has room (`near`); mirrored copies are made when they
    are read.

    Args:
        images: (N, C, H, W), uint8 or floating point.
        flip: Whether the mirrored copies count.
    """

    def __init__(self, images: Tensor, flip: bool = False) -> None:
        self.images, self.flip = images, flip

    def __len__(self) -> int:
        return len(self.images) * (1 + self.flip)

    def chunks(self, size: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """All rows, as the position of the first and the rows (up to `size`, d) of each chunk."""
        images = near(self.images, device)
        for start in range(0, len(images), size):
            part = images[start : start + size].to(device)
            yield start, part.flatten(1)
            if self.flip:
                yield len(images) + start, mirror(part).flatten(1)

    def take(self, places: Tensor) -> Tensor:
        """The rows at `places` (...), as (..., d), on their device."""
        images = near(self.images, places.device)
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


_copies: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def near(images: Tensor, device: torch.device) -> Tensor:
    """The images on a GPU, if they take less than a quarter of its free memory, else where they are.

    All who ask for the same images share one copy.
    """
    if device.type != "cuda":
        return images
    copies = _copies.setdefault(images, {})
    if device not in copies:
        free, _ = torch.cuda.mem_get_info(device)
        copies[device] = images.to(device) if images.nbytes < free / 4 else None  # itself would never be freed
    copy: Tensor | None = copies[device]
    return images if copy is None else copy
