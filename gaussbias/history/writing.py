"""Writes a table of logged rows, one at a time."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussbias.history.rows import read_rows, rows_until
from gaussbias.system.files import complete, sync

KEYS_FIRST = ("kimg", "epoch")


class HistoryFile:
    """Rows in a csv file, one column per key, empty where a row has no value; on the disk at once.

    A new key rewrites the file with a column more.

    Args:
        path: The file.
        from_kimg: Rows of a file that is there are kept up to this time; `None` keeps none.
        measured: Whether the measurement there is done; else its row is dropped too.
    """

    def __init__(self, path: Path, from_kimg: float | None = None, measured: bool = True) -> None:
        self.path, self.from_kimg, self.measured = path, from_kimg, measured
        self.count = 0
        """Rows on the disk."""
        self._keys: list[str] = []

    def append(self, *rows: Mapping[str, float]) -> None:
        """Add rows at the end; raises `OSError` if they cannot be written, and the file is as it was."""
        keys, kept = self._keys or list(KEYS_FIRST), None
        if not self._keys:
            keys, kept = self._begin(keys)
        new = dict.fromkeys(key for row in rows for key in row if key not in keys)
        if new and kept is None:
            _, kept = read_rows(self.path)
        if kept is not None:
            self._write([*keys, *new], [*kept, *rows])
            self._keys, self.count = [*keys, *new], len(kept) + len(rows)
            return
        size = self.path.stat().st_size
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, keys, lineterminator="\n").writerows(rows)
            sync(self.path)
            self.count += len(rows)
        except OSError:
            os.truncate(self.path, size)
            raise

    def _begin(self, keys: list[str]) -> tuple[list[str], list[dict[str, str]]]:
        """The columns and rows to go on with."""
        if self.from_kimg is None or not self.path.exists():
            return keys, []
        stored, rows = read_rows(self.path)
        return stored or keys, rows_until(rows, self.from_kimg, self.measured)

    def _write(self, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        with complete(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, keys, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
