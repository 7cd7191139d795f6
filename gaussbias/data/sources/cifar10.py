"""CIFAR-10, as EDM's zip, as it is published, or fetched from where it is published."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussbias.data.sources.base import Source, TensorSource, check_file
from gaussbias.data.sources.download import download
from gaussbias.data.sources.edm_zip import EDMZip
from gaussbias.errors import UserError

SHAPE = (3, 32, 32)
NAME = "cifar-10-python.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{NAME}"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
TRAINING = [f"data_batch_{i}" for i in range(1, 6)]
TEST = ["test_batch"]
LARGEST = 2**26
"""Bytes of a batch, at most; the published ones have 31 million."""


def cifar10(path: Path | None, key: str = "data.path", test: bool = False) -> Source:
    """CIFAR-10's 50,000 training images, in their published order, or its 10,000 test images.

    Args:
        path: A zip in EDM's layout, whose images are taken whatever `test` says, or `cifar-10-python.tar.gz`.
            `None` downloads the latter, once.
        key: Configuration key to name in messages.
        test: The test images.

    Raises:
        UserError: If there is no such file and none can be fetched, or it is damaged or another one.
    """
    if path is None:
        path = _fetch(key)
    check_file(path, key)
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return EDMZip(path, SHAPE, key)
    return _from_tar(path, key, TEST if test else TRAINING)


def _fetch(key: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gaussbias"
    try:
        return download(URL, folder / NAME, SHA256)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{key}: CIFAR-10 cannot be downloaded ({' '.join(str(error).split())}); give {key}=FILE, either "
            f"cifar10-32x32.zip in EDM's layout or {NAME} from {URL}, or put the latter into {folder}"
        ) from None


def _from_tar(path: Path, key: str, wanted: list[str]) -> TensorSource:
    batches: dict[str, np.ndarray] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in wanted and member.isfile() and member.size <= LARGEST:
                    file = archive.extractfile(member)
                    assert file is not None
                    batches[name] = _pixels(file.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error, pickle.UnpicklingError, ValueError) as error:
        raise UserError(
            f"{key}: expected {NAME} or a zip in EDM's layout, but {path} is something else or damaged "
            f"({' '.join(str(error).split())}); copy or download it again"
        ) from None
    missing = [name for name in wanted if name not in batches]
    if missing:
        raise UserError(f"{key}: expected {', '.join(missing)} inside {path}, found none; is it {NAME}?")
    return TensorSource(torch.from_numpy(np.concatenate([batches[name] for name in wanted])))


def _pixels(batch: bytes) -> np.ndarray:
    """The images of a batch, which is a pickle of Python 2."""
    try:
        content = _Arrays(io.BytesIO(batch), encoding="bytes").load()
        data = content[b"data"]
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"a batch cannot be read: {type(error).__name__} {error}") from None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise ValueError("a batch does not hold rows of 3,072 pixels")
    return data.reshape(-1, *SHAPE)


class _Arrays(pickle.Unpickler):
    """Reads plain values and arrays of numbers; a pickle that names anything else is refused before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no list of images needs; nothing was run")
