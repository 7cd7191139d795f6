"""CIFAR-10, as EDM's zip, as it is published, or fetched from where it is published."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import tarfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from gaussbias.data.sources.base import Source, TensorSource, check_file
from gaussbias.data.sources.download import download
from gaussbias.data.sources.edm_zip import EDMZip
from gaussbias.system.errors import UserError
from gaussbias.system.files import cache_folder

SHAPE = (3, 32, 32)
NAME = "cifar-10-python.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{NAME}"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
ROWS = 10_000
"""Images in each batch."""
TRAINING = [f"data_batch_{i}" for i in range(1, 6)]
TEST = ["test_batch"]
LARGEST = 2**26
"""Bytes of a batch, at most; the published ones have 31 million."""
MOST_TUPLES = 64
"""In the pickle of a batch, which has a few; those inside one another can take forever to read."""
LARGEST_TAR = 2**28
"""Bytes of all that is in the tar, at most; the published one has 186 million."""


def cifar10(path: Path | None, key: str = "data.path", test: bool | None = None) -> Source:
    """CIFAR-10's 50,000 training images, in their published order, or its 10,000 test images.

    Args:
        path: A zip in EDM's layout, whose images are taken whatever `test` says, or `cifar-10-python.tar.gz`.
            `None` downloads the latter, once.
        key: Configuration key to name in messages.
        test: The test images; `None` takes them for `data.heldout_path`.

    Raises:
        UserError: If there is no such file and none can be fetched, or it is damaged or another one.
    """
    test = key == "data.heldout_path" if test is None else test
    if path is None:
        path = _fetch(key)
    check_file(path, key)
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return EDMZip(path, SHAPE, key)
    return _from_tar(path, key, TEST if test else TRAINING)


def _fetch(key: str) -> Path:
    folder = cache_folder()
    try:
        return download(URL, folder / NAME, SHA256)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{key}: CIFAR-10 cannot be downloaded ({' '.join(str(error).split())}); give {key}=FILE, either "
            f"cifar10-32x32.zip in EDM's layout or {NAME} from {URL}, or put the latter into {folder}"
        ) from None


def _from_tar(path: Path, key: str, wanted: list[str]) -> TensorSource:
    batches: dict[str, tuple[np.ndarray, Any]] = {}
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = _Limited(cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw)
            with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|") as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name in wanted and member.isfile() and member.size <= LARGEST:
                        if name in batches:
                            raise ValueError(f"it holds {name} twice")
                        file = archive.extractfile(member)
                        assert file is not None
                        batches[name] = _contents(file.read())
            while stream.read(2**20):  # at its end a gzip file checks what it gave
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error, pickle.UnpicklingError, ValueError) as error:
        raise UserError(
            f"{key}: expected {NAME} or a zip in EDM's layout, but {path} is something else or damaged "
            f"({' '.join(str(error).split())}); copy or download it again"
        ) from None
    missing = [name for name in wanted if name not in batches]
    if missing:
        raise UserError(f"{key}: expected {', '.join(missing)} inside {path}, found none; is it {NAME}?")
    images = torch.from_numpy(np.concatenate([batches[name][0] for name in wanted]))
    return TensorSource(images, lambda: _labels([batches[name][1] for name in wanted], path, key))


def _labels(lists: list[Any], path: Path, key: str) -> list[int]:
    """The classes of the images of batches."""
    if not all(isinstance(part, list) and all(type(label) is int for label in part) for part in lists):
        raise UserError(f"{key}: expected a list of labels in each batch of {path}, for data.labels, found none")
    return [label for part in lists for label in part]


class _Limited:
    """A file of at most `LARGEST_TAR` bytes, or an error: tarfile reads some headers whole, whatever they claim."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.left = file, LARGEST_TAR

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError(f"it unpacks to more than {LARGEST_TAR:,} bytes")
        return data


def _contents(batch: bytes) -> tuple[np.ndarray, Any]:
    """The images of a batch, which is a pickle of Python 2, and what it has for labels."""
    tuples = 0
    try:
        for operation, argument, _ in pickletools.genops(batch):
            tuples += operation.name.startswith("TUPLE")
            if tuples > MOST_TUPLES or (operation.name.endswith("PUT") and int(argument or 0) > len(batch)):
                raise ValueError("a batch is not one of pixels")
    except Exception:
        raise ValueError(f"a batch does not hold {ROWS} rows of 3,072 pixels") from None
    try:
        loaded = _Batch(io.BytesIO(batch), encoding="bytes").load()
        data = loaded[b"data"]
        assert isinstance(data, _Array)
        version, shape, dtype, fortran, content = data.state
        assert (version, fortran, dtype.code) == (1, False, b"u1")
        return np.frombuffer(content, np.uint8).reshape(shape).reshape(ROWS, *SHAPE), loaded.get(b"labels")
    except pickle.UnpicklingError:
        raise
    except Exception:  # a damaged pickle can raise anything
        raise ValueError(f"a batch does not hold {ROWS} rows of 3,072 pixels") from None


class _Array:
    """Stands for an array: keeps what the pickle says of it, and makes nothing."""

    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        """Take no notice of the subclass and the shape to begin with."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Dtype:
    """Stands for the type of an array's numbers."""

    def __init__(self, code: Any, *arguments: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Take no notice of byte order: there is one byte."""


class _Batch(pickle.Unpickler):
    """Reads plain values and stand-ins for arrays; a pickle that names anything else is refused before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy._core.multiarray", "_reconstruct"): _Array,
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): _Dtype,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no list of images needs; nothing was run")
        return known[module, name]
