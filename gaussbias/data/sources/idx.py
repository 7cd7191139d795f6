"""The files that MNIST and its successors come in."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch

from gaussbias.data.sources.base import TensorSource, check_file, check_size, size
from gaussbias.data.sources.labels import NoLabels
from gaussbias.system.errors import UserError

UNSIGNED_BYTE = 0x08
CHUNK = 2**24


def idx(path: Path, key: str = "data.path") -> TensorSource:
    """Images of an idx file, as LeCun's MNIST page describes it, gzip or not.

    Two zero bytes, the type of the numbers, the number of dimensions, each dimension as a big-endian 32-bit
    integer, then the numbers. Images are unsigned bytes of shape (N, H, W), or (N, C, H, W) with 1 or 3 channels.

    Raises:
        UserError: If the file is missing, something else, holds no images, or was cut short.
    """
    images = _open(path, key, (3, 4))
    return TensorSource(images, lambda: _open(_beside(path, key), key, (1,)))


def _beside(path: Path, key: str) -> Path:
    """The file of labels that goes with one of images."""
    name = path.name.replace("images", "labels").replace("idx3", "idx1")
    if name == path.name:
        raise NoLabels(
            f"data.labels: expected images in a file that is named like train-images-idx3-ubyte, whose labels are in "
            f"train-labels-idx1-ubyte, got {path.name}"
        )
    plain = path.with_name(name.removesuffix(".gz"))
    for file in (path.with_name(name), plain, Path(f"{plain}.gz")):
        if file.exists():
            return file
    raise NoLabels(f"{key}: expected a file, found none at {plain}, for data.labels")


def _open(path: Path, key: str, dimensions: tuple[int, ...]) -> torch.Tensor:
    """The numbers in a file, gzip or not."""
    check_file(path, key)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
            return _numbers(file, path, key, dimensions)
    except MemoryError:
        raise UserError(f"{key}: {path} holds more than the memory of this machine") from None
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{key}: {path} is damaged or was cut short ({error}); copy or download it again") from None


def _numbers(file: BinaryIO, path: Path, key: str, known: tuple[int, ...]) -> torch.Tensor:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0":
        raise UserError(f"{key}: expected an idx file (train-images-idx3-ubyte.gz), got something else at {path}")
    kind, dimensions = start[2:]
    if kind != UNSIGNED_BYTE or dimensions not in known:
        what = "labels" if dimensions == 1 else f"type {kind:#04x} in {dimensions} dimensions"
        wanted = (
            "labels (unsigned bytes in 1 dimension)" if known == (1,) else "images (unsigned bytes in 3 dimensions)"
        )
        raise UserError(f"{key}: expected {wanted}, but {path} holds {what}")
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise UserError(f"{key}: {path} was cut short in its header; copy or download it again")
    shape = struct.unpack(f">{dimensions}I", header)
    if dimensions == 3:
        shape = (shape[0], 1, *shape[1:])
    if len(shape) > 1 and (0 in shape or shape[1] not in (1, 3)):
        raise UserError(f"{key}: expected images of 1 or 3 channels, but {path} says that it holds {size(shape)}")
    expected = int(np.prod(shape, dtype=object))
    check_size(expected, f"{size(shape)} in {path}", key)
    pixels = bytearray()
    while len(pixels) < expected and (part := file.read(min(CHUNK, expected - len(pixels)))):
        pixels += part  # a damaged file may promise more than memory holds
    if len(pixels) < expected:
        raise UserError(
            f"{key}: {path} was cut short: expected {size(shape)} bytes, found {len(pixels)}; copy or download it again"
        )
    if file.read(1):  # at its end a gzip file checks what it gave
        raise UserError(f"{key}: expected {size(shape)} bytes in {path}, found more; copy or download it again")
    return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(shape))
