"""Parquet files in the layout of Hugging Face's data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaussbias.data.sources.base import check_file, check_size
from gaussbias.data.sources.decode import reason
from gaussbias.data.sources.encoded import EncodedImages
from gaussbias.system.errors import UserError

SPLITS = ("train", "test", "validation")
"""How names of files begin that are parts of a split."""


def parquet_files(path: Path) -> list[Path]:
    """The files that a path means: itself, or those in a folder whose names end with `.parquet`, in their order."""
    return sorted(path.rglob("*.parquet")) if path.is_dir() else [path]


def _split_of(file: Path) -> str:
    return file.stem.partition("-")[0]


class ParquetImages(EncodedImages):
    """Images in the column `image` or `img` of a Parquet file, or of all in a folder, in the order of their names.

    A cell is the bytes of an image file, or these under `bytes` beside their `path`. Classes are in the column `label`,
    `labels`, `fine_label`, `class` or `y`. Rows are read group by group, so that the files may be larger than the
    memory.

    Args:
        path: A file, or a folder with files whose names end with `.parquet`, there or below.
        resolution: Pixels a side to which each image is brought.
        key: Configuration key to name in messages.

    Raises:
        UserError: Without PyArrow, and for files that cannot be read, have no images, or have other columns.
    """

    def __init__(self, path: Path, resolution: int | None = None, key: str = "data.path") -> None:
        try:
            import pyarrow.parquet as pq
        except ImportError:
            raise UserError(
                "data.source: parquet needs PyArrow; install it with pip install 'gaussbias[parquet]'"
            ) from None
        files = parquet_files(path)
        if not files:
            raise UserError(f"{key}: expected files whose names end with .parquet in {path}, found none")
        others = sorted({_split_of(file) for file in files} & set(SPLITS))
        if len(others) > 1:
            raise UserError(
                f"{key}: expected the files of one split in {path}, found those of {' and '.join(others)}; give one "
                "file, or a folder with those of one split"
            )
        self.parts = [str(file.relative_to(path)) for file in files] if path.is_dir() else []
        self.files: list[Any] = []
        for file in files:
            check_file(file, key)
            try:
                self.files.append(pq.ParquetFile(file))
            except Exception as error:  # PyArrow's errors have no base class but Exception
                raise UserError(f"{key}: expected a Parquet file at {file}: {reason(error)}") from None
        columns = [list(opened.schema_arrow.names) for opened in self.files]
        other = next((file for file, names in zip(files, columns, strict=True) if set(names) != set(columns[0])), None)
        if other is not None:
            raise UserError(
                f"{key}: expected the columns of {files[0]} in all files of {path}, found others in {other}"
            )
        groups = [
            (opened, number, opened.metadata.row_group(number).num_rows)
            for opened in self.files
            for number in range(opened.num_row_groups)
        ]
        self.groups = [(opened, number) for opened, number, _ in groups]
        self.starts = np.cumsum([0, *(rows for *_, rows in groups)])
        super().__init__(str(path), int(self.starts[-1]), columns[0], resolution, key)

    def cells(self, column: str, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """What a column has in some rows, group by group."""
        rows = np.asarray(indices)
        group_of = np.searchsorted(self.starts, rows, "right") - 1
        for group in np.unique(group_of):
            opened, number = self.groups[group]
            about = opened.metadata.row_group(number)
            check_size(about.total_byte_size, f"a group of {about.num_rows:,} rows of {self.where}", self.key)
            try:
                values = opened.read_row_group(number, columns=[column]).column(0)
            except Exception as error:
                raise UserError(f"{self.key}: cannot read {self.where}: {reason(error)}") from None
            for place in np.flatnonzero(group_of == group):
                yield int(place), values[int(rows[place] - self.starts[group])].as_py()
