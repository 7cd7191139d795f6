"""Images, and the split into training and held-out ones."""

from __future__ import annotations

import importlib
import math
import os
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussbias.config import DataConfig
from gaussbias.data import sources
from gaussbias.data.images import LARGEST_MATRIX, default_heldout, downsample, heldout_order, largest_resolution, split
from gaussbias.data.kept import read_kept
from gaussbias.data.sources.hub import hub_name
from gaussbias.data.sources.parquet import parquet_files
from gaussbias.system.errors import UserError

__all__ = ["Images", "has_labels", "origins", "read", "read_labelled", "shape_of", "training_labels"]

PATH, HELDOUT_PATH = "data.path", "data.heldout_path"
SHOWN = 20
"""Classes that are named, at most."""

MOVED = {"ImageDataModule": "gaussbias.modules", "ProbeBank": "gaussbias.probes"}
"""Where names are that were here."""


def __getattr__(name: str) -> Any:
    """A name that has moved, with a warning."""
    if name in MOVED:
        warnings.warn(f"gaussbias.data.{name} is now {MOVED[name]}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(MOVED[name]), name)
    raise AttributeError(f"module 'gaussbias.data' has no attribute {name!r}")


def shape_of(data: DataConfig) -> tuple[int, int, int]:
    """The shape (C, H, W) of the images of a configuration, from the first of them.

    Raises:
        UserError: If it cannot be read.
    """
    source = _source(data, data.path, PATH)
    channels, height, width = downsample(source.read(torch.tensor([0])), data.resolution).shape[1:]
    return channels, height, width


@dataclass(frozen=True)
class Images:
    """What a configuration trains on and holds out.

    Attributes:
        training: (N, C, H, W), uint8 or float32.
        heldout: Of the same shape.
        labels: The classes of the training images (N,), int64; `None` unless labels are asked for.
        heldout_labels: Those of the held-out ones.
        classes: How many classes the source has, those included that were not chosen; 0 without labels.
    """

    training: Tensor
    heldout: Tensor
    labels: Tensor | None = None
    heldout_labels: Tensor | None = None
    classes: int = 0


def read(data: DataConfig) -> tuple[Tensor, Tensor]:
    """Training and held-out images, (N, C, H, W) each, uint8 or float32.

    Raises:
        UserError: If they cannot be read, or are too few.
    """
    images = read_labelled(data)
    return images.training, images.heldout


def read_labelled(data: DataConfig) -> Images:
    """Training and held-out images, with their labels if `data.labels` asks for them.

    Raises:
        UserError: If they cannot be read, or are too few.
    """
    source = _source(data, data.path, PATH)
    chosen, held = _split(data, source.count)
    if data.heldout_path is None:
        other = source
        images, heldout = _read(source, data, held, len(chosen))
    else:
        if data.path is not None and _same_images(data, data.path, data.heldout_path):
            raise UserError(
                f"data.heldout_path: expected other images than those of data.path, got {data.path} for both"
            )
        other = _source(data, data.heldout_path, HELDOUT_PATH)
        if data.classes is not None:
            _check_folders(source, other)
        if other.count < 2:
            raise UserError(
                f"data.heldout_path: expected at least 2 images, found {other.count} in {data.heldout_path}"
            )
        n_heldout = min(1000, other.count) if data.n_heldout is None else data.n_heldout
        if n_heldout > other.count:
            raise UserError(
                f"data.n_heldout: expected at most {other.count}, the images in {data.heldout_path}, got {n_heldout}"
            )
        held = heldout_order(other.count)[:n_heldout]
        heldout = downsample(other.read(held), data.resolution)
        images, _ = _read(source, data, chosen[:0], len(chosen))
    if images.shape[1:] != heldout.shape[1:]:
        raise UserError(
            f"data.heldout_path: expected images of shape {tuple(images.shape[1:])} like those of data.path, "
            f"got {tuple(heldout.shape[1:])}"
        )
    _check_values(images)
    _check_size(images, "data.n_train", data.flip)
    _check_size(heldout, "data.n_heldout", data.flip)
    if not data.labels:
        return Images(images, heldout)
    labels = [sources.labels_of(part, data.source, key) for part, key in ((source, PATH), (other, HELDOUT_PATH))]
    _check_folders(source, other)
    count = max(_classes(part, own) for part, own in zip((source, other), labels, strict=True))
    return Images(images, heldout, labels[0][chosen], labels[1][held], count)


def origins(data: DataConfig) -> list[str]:
    """What the source calls each training image, in their order: the name of its file, or its number from 0.

    Raises:
        UserError: If the source cannot be opened.
    """
    source = _source(data, data.path, PATH)
    chosen, _ = _split(data, source.count)
    names: Sequence[str] | None = getattr(source, "names", None)
    named = names is not None and len(names) == source.count
    places = source.places[chosen] if isinstance(source, sources.Chosen) else chosen
    return [
        names[one] if names is not None and named else str(place)
        for one, place in zip(chosen.tolist(), places.tolist(), strict=True)
    ]


def _check_folders(source: sources.Source, other: sources.Source) -> None:
    """Raise `UserError` unless folders that are classes are the same: they are numbered in the order of their names."""
    whole = [part.source if isinstance(part, sources.Chosen) else part for part in (source, other)]
    first, second = (getattr(part, "folders", []) for part in whole)
    if first != second:
        strange = min(set(first) ^ set(second))
        raise UserError(
            f"{HELDOUT_PATH}: expected the same folders as in {PATH}, since they are the classes, but {strange} is in "
            f"one of them alone; add it, or give {sources.NAMED} with labels in both"
        )


def has_labels(data: DataConfig) -> bool:
    """Whether the images of a configuration have classes.

    Raises:
        UserError: If what says so is damaged.
    """
    try:
        sources.labels_of(_source(data, data.path, PATH), data.source, PATH)
    except sources.NoLabels:
        return False
    return True


def training_labels(data: DataConfig) -> Tensor:
    """The classes of the training images of a configuration (N,), int64, whether it asks for labels or not.

    Raises:
        UserError: If they have none.
    """
    source = _source(data, data.path, PATH)
    chosen, _ = _split(data, source.count)
    return sources.labels_of(source, data.source, PATH)[chosen]


def _split(data: DataConfig, count: int) -> tuple[Tensor, Tensor]:
    """Positions of training and held-out images among those of `data.path`; none is held out if others are given."""
    n_heldout = default_heldout(count) if data.n_heldout is None else data.n_heldout
    apart = data.heldout_path is not None
    return split(count, 0 if apart else n_heldout, data.n_train, data.subset_seed, data.half)


def _read(source: sources.Source, data: DataConfig, held: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """So many training images, and those at `held`, of one source; mapped from a file where they are kept."""
    every, _ = _split(replace(data, n_train=None), source.count)
    places, wanted = torch.cat([held, every]), len(held) + count
    images = read_kept(source, data, None if data.path is None else _expand(data.path), places, wanted)
    if images is None:
        images = downsample(source.read(places[:wanted]), data.resolution)
    return images[len(held) : wanted], images[: len(held)]


def _check_size(images: Tensor, key: str, flip: bool) -> None:
    """Raise `UserError` for images of whose Gaussian no library finds the eigenvectors."""
    (count, *shape), most = images.shape, LARGEST_MATRIX // (1 + flip)
    sides = " x ".join(map(str, shape)) + (" with data.flip" if flip else "")
    if count <= most or math.prod(shape) <= LARGEST_MATRIX:
        return
    raise UserError(
        f"{key}: expected at most {most:,} images of {sides}, for the eigenvectors of a matrix of {LARGEST_MATRIX:,} "
        f"rows, got {count:,}; set {key}={most}, or "
        f"data.resolution={largest_resolution(shape[0])}, at which there may be more"
    )


def _check_values(images: Tensor) -> None:
    """Raise `UserError` for training images that are all the same, and say it of those that are nearly black."""
    first = images[:1]
    if all(bool((part == first).all()) for part in images.split(4096)):
        raise UserError(
            f"data.path: expected images that differ, but all {len(images):,} training images are the same; they have "
            "no covariance, and nothing to generalise from"
        )
    if images.dtype == torch.uint8 and all(int(part.max()) <= 1 for part in images.split(4096)):
        sources.say_once(
            "data.path: all pixels are 0 or 1 of 255, which are black images; if they are masks, save them multiplied "
            "by 255"
        )


def _source(data: DataConfig, path: str | None, key: str) -> sources.Source:
    """The source at a path, and of it the classes that are asked for."""
    file = None if path is None else _expand(path)
    source = sources.open_source(data.source, file, data.resolution, key, data.layout)
    if data.classes is None:
        return source
    labels = sources.labels_of(source, data.source, key)
    missing = sorted(set(data.classes) - set(labels.unique().tolist()))
    if missing:
        known = labels.unique().tolist()
        shown = f"{', '.join(map(str, known[:SHOWN]))}{', ...' if len(known) > SHOWN else ''}"
        raise UserError(f"data.classes: expected classes of the images, which are {shown}, got {missing[0]}")
    return sources.Chosen(source, torch.isin(labels, torch.tensor(data.classes)).nonzero()[:, 0], labels)


def _classes(source: sources.Source, labels: Tensor) -> int:
    """How many classes a source has, whichever of them were chosen."""
    every = source.all_labels if isinstance(source, sources.Chosen) else labels
    return int(every.max()) + 1


def _expand(path: str) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111, pathlib raises where there is no home


def _same_images(data: DataConfig, path: str, heldout_path: str) -> bool:
    """Whether two paths have images in common, as their names say; CIFAR-10's tar holds training and test images."""
    if data.source == "hub":
        return hub_name(path) == hub_name(heldout_path)
    if data.source == "parquet":
        return bool(set(parquet_files(_expand(path))) & set(parquet_files(_expand(heldout_path))))
    same = os.path.realpath(_expand(path)) == os.path.realpath(_expand(heldout_path))
    return same and (data.source != "cifar10" or zipfile.is_zipfile(_expand(path)))
