"""Decoded images in a file, which all runs and ranks of a machine map into memory instead of decoding them again.

A file has the images of a source at one resolution, in the order of a split: those that are held out, and then those
that are trained on, so that both are slices of it for any number of training images. It is read through the page cache:
processes share it, and it may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from gaussbias.config import DataConfig
from gaussbias.config.sources import SOURCES
from gaussbias.data.images import downsample
from gaussbias.data.sources import Chosen, Source, say_once
from gaussbias.data.sources.base import from_mapped
from gaussbias.system.files import cache_folder, complete, reason

FORMAT = 1
AUTO = "auto"
MANY = 10_000
"""So many images take seconds to decode, ..."""
LARGE = 2**25
"""... and so many bytes are worth sharing."""
ROOM = 2
"""So many times as much room has to be free as a file takes, since others write to the disk as well."""
AT_ONCE = 2**27
"""Bytes of images, before they are made smaller, that are decoded at a time."""


def folder_of(data: DataConfig) -> Path | None:
    """Where decoded images are kept; `None` keeps none."""
    if data.cache is None:
        return None
    if data.cache != AUTO:
        return Path(os.path.expanduser(data.cache))  # noqa: PTH111, pathlib raises where there is no home
    return cache_folder() / "images"


def read_kept(source: Source, data: DataConfig, path: Path | None, places: Tensor, wanted: int) -> Tensor | None:
    """The images of a source at some places, mapped from a file, which is made if that pays.

    Args:
        source: The source.
        data: Its configuration.
        path: Its file or folder.
        places: Of all images of a split (k,), those that are held out first.
        wanted: How many of them are needed, the first ones; if fewer than half of them are, no file is made.

    Returns:
        At least `wanted` of them (k, C, H, W), uint8, not to be written to; `None` where images are decoded as usual:
        few and small ones, others than uint8, and where nothing can be kept.
    """
    if isinstance(source, Chosen):  # two choices may have the same places, of other images
        places = source.places[places]
        source = source.source
    folder = folder_of(data)
    identity = getattr(source, "identity", None)
    if folder is None or path is None or not (identity or path.exists()):
        return None
    if data.source not in SOURCES:  # a function of the user's may change, and no file says so
        return None
    about = _about(source, data, path)
    split = hashlib.sha256(places.numpy().tobytes()).hexdigest()[:16]
    file = folder / f"{about}-{split}.npy"
    images = _mapped(file, len(places))
    if images is None and 2 * wanted < len(places) and (other := _other(file, places[:wanted])) is not None:
        return other[0][other[1][places[:wanted]]]
    if images is not None or 2 * wanted < len(places):
        return images
    first = downsample(some := source.read(places[:1]), data.resolution)
    total = len(places) * first.nbytes
    if first.dtype != torch.uint8 or (len(places) < MANY and total < LARGE):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < ROOM * total:
            raise OSError(f"{total / 1e9:.3g} GB are more than half of what is free")
        with FileLock(file.with_suffix(".lock")):
            images = _mapped(file, len(places))
            if images is None:  # another process may have made it meanwhile
                say_once(
                    f"data.cache: {len(places):,} decoded images are kept in {file} ({total / 1e6:,.0f} MB), for "
                    "runs on the same images; data.cache=null keeps none"
                )
                _write(file, source, data, places, tuple(first.shape[1:]), max(256, AT_ONCE // some.nbytes))
                images = _mapped(file, len(places))
    except OSError as error:
        say_once(f"data.cache: cannot keep decoded images in {folder} ({reason(error)}); each run decodes them")
        return None
    return images


def _about(source: Source, data: DataConfig, path: Path) -> str:
    """What images depend on: the files as they are, and what is made of them."""
    identity = getattr(source, "identity", None)
    names = getattr(source, "parts", None) or getattr(source, "names", [])  # of files in a folder
    names = [] if identity else names if path.is_dir() else [""]
    place = identity or str(path.resolve())
    digest = hashlib.sha256(repr((FORMAT, data.source, data.resolution, data.layout, place)).encode())
    for name in names:
        found = (path / name).stat()
        digest.update(repr((name, found.st_size, found.st_mtime_ns)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def _write(file: Path, source: Source, data: DataConfig, places: Tensor, shape: tuple[int, ...], at_once: int) -> None:
    """Write the images at places, from another file that has them or from the source; and the places beside them."""
    copied = _other(file, places)
    about = {"descr": "|u1", "fortran_order": False, "shape": (len(places), *shape)}
    size, order = math.prod(shape), places.argsort()  # a source is read from its beginning to its end, once
    with complete(file) as temporary, temporary.open("wb") as opened:  # a full disk would kill who writes to a map
        np.lib.format.write_array_header_1_0(opened, about)
        start = opened.tell()
        for rows in order.split(at_once):
            part = places[rows]
            some = downsample(source.read(part), data.resolution) if copied is None else copied[0][copied[1][part]]
            for row, image in zip(rows.tolist(), some.contiguous().numpy(), strict=True):
                opened.seek(start + row * size)
                opened.write(image.data)
    with complete(_places(file)) as temporary, temporary.open("wb") as opened:
        np.save(opened, places.numpy())


def _other(file: Path, places: Tensor) -> tuple[Tensor, Tensor] | None:
    """The images in the file of another split of the same source, and where each place is in it; `None` without one."""
    about = file.name.partition("-")[0]
    for other in sorted(file.parent.glob(f"{about}-*.npy")):
        try:
            with _places(other).open("rb") as opened:
                found = np.lib.format.read_array(opened, allow_pickle=False)
        except Exception:  # what a damaged file raises has no base class
            continue
        whole = (
            isinstance(found, np.ndarray) and found.dtype == np.int64 and found.ndim == 1 and found.min(initial=0) >= 0
        )
        images = _mapped(other, len(found)) if whole else None
        if images is None:
            continue
        there = torch.from_numpy(found)
        row = torch.full((int(max(there.max(), places.max())) + 1,), -1)
        row[there] = torch.arange(len(there))
        if bool((row[places] >= 0).all()):
            return images, row
    return None


def _places(file: Path) -> Path:
    """Beside the images of a file, where they are in the source."""
    return file.with_suffix(".places")


def _mapped(file: Path, count: int) -> Tensor | None:
    """The images in a file, if there is one that is whole."""
    try:
        found = np.lib.format.open_memmap(file, mode="r")
    except Exception:  # what a damaged file raises has no base class
        return None
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 4 or len(found) != count:
        return None
    return from_mapped(found)
