"""The class of each image, as files of images say it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussbias.data.sources.base import Source
from gaussbias.system.errors import UserError

NAMED = "dataset.json"
"""The file in which EDM's and StyleGAN's tools keep labels."""
MOST = 2**20
"""Classes, at most."""
SHARD = re.compile(r"\d{5}/img\d{8}\.\w+")
"""How EDM's tool names images: its folders are no classes."""


class NoLabels(UserError):
    """Images have no classes, as against classes that cannot be read."""


def labels_of(source: Source, name: str, key: str) -> Tensor:
    """The classes of all images of a source, (N,) int64, from 0.

    Args:
        source: The source.
        name: What `data.source` calls it.
        key: Configuration key of its file.

    Raises:
        UserError: If it has none, or they are no classes.
    """
    if not callable(getattr(source, "labels", None)):
        raise NoLabels(f"data.labels: expected a source with labels, but data.source={name} has none")
    told: Any = source
    return checked(told.labels(), source.count, key)


def checked(labels: Any, count: int, where: str) -> Tensor:
    """Labels of so many images as (N,) int64; raises `UserError` for what is no number of a class for each."""
    try:
        given = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        whole = np.issubdtype(given.dtype, np.integer) or bool((given == np.floor(given)).all())
        values = torch.from_numpy(given.astype(np.float64))
    except (TypeError, ValueError, RuntimeError):  # text, dates, objects
        raise UserError(f"{where}: expected labels that are whole numbers, got others") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise UserError(
            f"{where}: expected labels of shape ({count},), the number of a class for each image, got "
            f"{tuple(values.shape)}; if you have one-hot rows, save their argmax"
        )
    if len(values) != count:
        raise UserError(f"{where}: expected a label for each of {count:,} images, got {len(values):,}")
    if not whole or given.dtype == np.bool_ or not bool(values.isfinite().all()):
        raise UserError(f"{where}: expected labels that are whole numbers, got {given.dtype}")
    low, high = (int(value) for value in torch.aminmax(values))
    if low < 0 or high >= MOST:
        raise UserError(f"{where}: expected labels from 0 to {MOST - 1:,}, got {low if low < 0 else high:,}")
    return values.to(torch.int64)


def in_dataset_json(text: bytes, names: Sequence[str], where: str) -> Tensor:
    """The classes of named images in `{"labels": [[name, class], ...]}`.

    Raises:
        UserError: If it is something else, has no labels, or lacks some.
    """
    try:
        rows = json.loads(text)["labels"]
        assert rows is None or (isinstance(rows, list) and all(isinstance(row, list) and len(row) == 2 for row in rows))
    except Exception:  # nesting too deep, no Unicode, ...
        raise UserError(f'{where}: expected {{"labels": [[name, class], ...]}}, got something else') from None
    if not rows:
        raise NoLabels(f"{where}: expected labels, found none; it was written of images without classes")
    known = {str(PurePosixPath(str(name).replace("\\", "/"))): value for name, value in rows}
    missing = [name for name in names if name not in known or known[name] is None]
    if missing:
        raise UserError(
            f"{where}: expected a label for each of {len(names):,} images, found none for {len(missing):,} of them, "
            f"{missing[0]} among them"
        )
    chosen = [known[name] for name in names]
    strange = next((value for value in chosen if type(value) is not int or abs(value) >= MOST), None)
    if strange is not None:
        raise UserError(f"{where}: expected the number of a class for each image, got {strange!s:.40}")
    return torch.tensor(chosen)


def in_folders(names: Sequence[str], where: Path) -> tuple[Tensor, list[str]]:
    """The classes of images whose paths begin with the folder of their class, and these folders, sorted.

    Raises:
        UserError: If some lie in no folder, or folders are those of EDM's tool.
    """
    outside = [name for name in names if len(PurePosixPath(name).parts) < 2]
    if outside or all(SHARD.fullmatch(name) for name in names):
        why = f"{outside[0]} lies in none" if outside else "these folders are numbered parts of a data set"
        raise NoLabels(
            f"data.labels: expected each image in a folder of its class, or {NAMED} with labels in {where}, but {why}"
        )
    first = [PurePosixPath(name).parts[0] for name in names]
    folders = sorted(set(first))
    places = {folder: place for place, folder in enumerate(folders)}
    return torch.tensor([places[folder] for folder in first]), folders
