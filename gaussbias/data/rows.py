"""A set of images as rows of pixels, for searching and summing over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gaussbias.data.images import mirror


class ImageRows:
    """Images, and after them their mirrored copies, as rows, read in chunks on the device of whoever asks.

    Nothing is copied: images stay where they are, and mirrored copies are made when they are read.

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
        for start in range(0, len(self.images), size):
            part = self.images[start : start + size].to(device)
            yield start, part.flatten(1)
            if self.flip:
                yield len(self.images) + start, mirror(part).flatten(1)

    def take(self, places: Tensor) -> Tensor:
        """The rows at `places` (...), as (..., d), on their device."""
        rows = self.images[(places % len(self.images)).to(self.images.device)].to(places.device)
        if self.flip:
            mirrored = places >= len(self.images)
            rows = torch.where(mirrored[..., None, None, None], mirror(rows), rows)
        return rows.flatten(-3)


def largest(scores: Iterable[tuple[int, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """The largest of scores that come in chunks (..., n), each with the position of its first.

    Returns:
        Scores, descending, and their positions, each (..., count), or fewer if there are not so many.
    """
    values = places = None
    for start, chunk in scores:
        best, place = chunk.topk(min(count, chunk.shape[-1]))
        place = place + start
        if values is not None and places is not None:
            best, place = torch.cat([values, best], -1), torch.cat([places, place], -1)
            best, order = best.topk(min(count, best.shape[-1]))
            place = place.gather(-1, order)
        values, places = best, place
    assert values is not None
    assert places is not None
    return values, places


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
        copies[device] = images.to(device) if images.nbytes < free / 4 else images
    result: Tensor = copies[device]
    return result
