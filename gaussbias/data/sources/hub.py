"""Data sets of the Hugging Face hub, through the library `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gaussbias.data.sources.decode import reason
from gaussbias.data.sources.encoded import IMAGES, EncodedImages
from gaussbias.system.errors import UserError

SPLIT = "train"
OLDEST = 4
"""Versions before run scripts of the data sets that they load."""


def hub_name(path: str) -> tuple[str, str]:
    """The name of a data set and its split.

    >>> hub_name("uoft-cs/cifar10"), hub_name("uoft-cs/cifar10:test")
    (('uoft-cs/cifar10', 'train'), ('uoft-cs/cifar10', 'test'))
    """
    name, _, split = path.partition(":")
    return name, split or SPLIT


class HubImages(EncodedImages):
    """A split of a data set with a column `image` or `img`: `uoft-cs/cifar10`, or `uoft-cs/cifar10:test`.

    The library `datasets` fetches it, once, and keeps it in its own cache.

    Args:
        path: The name on the hub, and after a colon the split, else `train`.
        resolution: Pixels a side to which each image is brought.
        key: Configuration key to name in messages.

    Raises:
        UserError: Without the library, and for a data set that cannot be fetched or has no images.
    """

    def __init__(self, path: Path, resolution: int | None = None, key: str = "data.path") -> None:
        try:
            import datasets
        except ImportError:
            raise UserError(
                "data.source: hub needs the library datasets; install it with pip install datasets"
            ) from None
        if int(datasets.__version__.partition(".")[0]) < OLDEST:
            raise UserError(
                f"data.source: hub needs the library datasets from version {OLDEST} on, which runs no foreign code, "
                f"found {datasets.__version__}; pip install -U datasets"
            )
        name, split = hub_name(path.as_posix())
        try:
            rows = datasets.load_dataset(name, split=split)
            for column in set(IMAGES) & set(rows.column_names):
                rows = rows.cast_column(column, datasets.Image(decode=False))
        except Exception as error:  # of the network, of names, of formats
            raise UserError(
                f"{key}: expected the name of a data set of images on the Hugging Face hub, got {path}: {reason(error)}"
            ) from None
        self.rows = rows
        self.identity = f"{path} {getattr(rows, '_fingerprint', '')}"
        super().__init__(str(path), len(rows), list(rows.column_names), resolution, key)

    def cells(self, column: str, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """What a column has in some rows."""
        alone = self.rows.select_columns([column])
        for place, row in enumerate(indices):
            yield place, alone[int(row)][column]
