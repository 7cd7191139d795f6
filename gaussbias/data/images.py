"""What is done to images between a source and the programme: choosing, shrinking, mirroring, hashing."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from gaussbias.numerics.seeding import generator
from gaussbias.system.errors import UserError

LARGEST_MATRIX = 32_766
"""Rows of the largest matrix whose eigenvectors LAPACK finds: it counts the 1 + 6 n + 2 n^2 numbers of its workspace in
32 bits."""


HASHED = 4096
"""Images that are compared at a time."""


def largest_resolution(channels: int) -> int:
    """Pixels a side of the largest square images that have no more numbers than such a matrix has rows."""
    return math.isqrt(LARGEST_MATRIX // channels)


def to_unit(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images in data units: uint8 pixels become `pixel/127.5 - 1`, floating point stays as it is."""
    if images.dtype == torch.uint8:
        return images.to(dtype) / 127.5 - 1
    return images.to(dtype)


def to_pixels(images: Tensor) -> Tensor:
    """Images in data units as uint8; what is not a number is grey."""
    return ((images.float() + 1) * 127.5).nan_to_num(127.5).round().clamp(0, 255).to(torch.uint8)


def mirror(images: Tensor) -> Tensor:
    """Each image flipped left to right."""
    return images.flip(-1)


def downsample(images: Tensor, resolution: int | None) -> Tensor:
    """Average the centre square over areas down to `resolution` pixels a side; uint8 is rounded back to uint8.

    Raises:
        UserError: If the images are smaller than that.
    """
    height, width = images.shape[-2:]
    if resolution is None or (height, width) == (resolution, resolution):
        return images
    if resolution > min(height, width):
        raise UserError(
            f"data.resolution: expected at most {min(height, width)}, the size of the images "
            f"({height} x {width}), got {resolution}"
        )
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    images = images[..., top : top + side, left : left + side]
    weights = _overlaps(side, resolution)
    small = [weights @ chunk.to(torch.float32) @ weights.T for chunk in images.split(4096)]
    result = torch.cat(small)
    return result.round().to(torch.uint8) if images.dtype == torch.uint8 else result


def _overlaps(side: int, resolution: int) -> Tensor:
    """The share that each of `side` pixels has in each of `resolution` larger ones, (resolution, side)."""
    edges = torch.arange(resolution + 1, dtype=torch.float64) * side / resolution
    pixels = torch.arange(side, dtype=torch.float64)
    shared = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    return (shared.clamp(min=0) * resolution / side).float()


def heldout_order(count: int) -> Tensor:
    """The order in which `count` images are held out: fixed, whatever the seeds of a run."""
    return torch.randperm(count, generator=generator("held-out images"))


def default_heldout(count: int) -> int:
    """How many of `count` images are held out if nobody says it: 1,000, and never most of a small set."""
    return max(2, min(1000, count // 5))


def split(
    count: int,
    n_heldout: int,
    n_train: int | None,
    subset_seed: int = 0,
    half: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Positions of the training and of the held-out images among `count`.

    Held-out images are chosen first, by a fixed seed of their own, so that runs with any `n_train`,
    `subset_seed` and `half` share them. The rest is shuffled by `subset_seed`, cut into the halves S1 and
    S2 where one is asked for, and `n_train` images are taken from its front: smaller sets lie inside larger.

    Returns:
        Training positions (n_train,) and held-out positions (n_heldout,), without overlap.

    Raises:
        UserError: If there are too few images.
    """
    least = 4 if n_heldout else 2
    if count < least:
        why = "2 to train on and 2 to hold out" if n_heldout else "for a covariance"
        raise UserError(f"data.path: expected at least {least} images ({why}), found {count}")
    if n_heldout > count - 2:
        raise UserError(f"data.n_heldout: expected at most {count - 2} of {count} images, got {n_heldout}")
    order = heldout_order(count)
    heldout, rest = order[:n_heldout], order[n_heldout:]
    rest = rest[torch.randperm(len(rest), generator=generator("training images", subset_seed))]
    if half is not None:
        middle = len(rest) // 2
        rest = rest[:middle] if half == "S1" else rest[middle : 2 * middle]
    wanted = len(rest) if n_train is None else n_train
    left = f"{count} images" + (f" less {n_heldout} held out" if n_heldout else "") + (f", half {half}" if half else "")
    if len(rest) < 2:
        raise UserError(f"data.n_heldout: expected to leave 2 images to train on, got {len(rest)} ({left})")
    if wanted > len(rest):
        raise UserError(f"data.n_train: expected at most {len(rest)} ({left}), got {n_train}")
    return rest[:wanted], heldout


def fingerprint(images: Tensor, flip: bool) -> str:
    """A hash of the pixels, their shape and whether mirrored copies count: what the moments depend on."""
    digest = hashlib.sha256(f"{tuple(images.shape)} {images.dtype} {flip}".encode())
    for chunk in images.split(4096):
        digest.update(chunk.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def same_image(images: Tensor, flip: bool) -> Tensor:
    """For each image, the position of the first one that is equal to it (mirrored copies count with `flip`).

    Returns:
        (N,) int64; `result[i] == result[j]` if and only if i and j are the same image.
    """
    names = np.empty(len(images), "V16")  # the memory of hashes alone, not of objects
    for start in range(0, len(images), HASHED):
        part = images[start : start + HASHED].cpu()
        mirrored = mirror(part).contiguous() if flip else None
        for i, image in enumerate(part.contiguous()):
            name = image.numpy().tobytes()
            if mirrored is not None:
                name = min(name, mirrored[i].numpy().tobytes())
            names[start + i] = hashlib.blake2b(name, digest_size=16).digest()
    _, first, group = np.unique(names, return_index=True, return_inverse=True)
    return torch.from_numpy(first[group])
