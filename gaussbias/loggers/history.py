"""The local table of all logged values."""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from gaussbias.history import read_rows, rows_until
from gaussbias.loggers.base import LocalLogger
from gaussbias.system.files import complete, reason, sync

log = logging.getLogger("gaussbias")

KEYS_FIRST = ("kimg", "epoch")


class HistoryLogger(LocalLogger):
    """Rows in `history.csv`, one column per key, empty where a row has no value; on the disk at once.

    A new key rewrites the file with a column more. A run that continues drops the rows after its checkpoint: they are
    computed again. Rows that cannot be written are kept, and tried again with the next one.

    Args:
        path: The file.
        from_kimg: Where the run continues; `None` starts anew.
        measured: Whether the measurement there is done; else its row is dropped too.
    """

    def __init__(self, path: Path, from_kimg: float | None = None, measured: bool = True) -> None:
        super().__init__()
        self.path, self.from_kimg, self.measured = path, from_kimg, measured
        self.count = 0
        """Rows on the disk."""
        self._failure: str | None = None
        self._keys: list[str] = []
        self._unwritten: list[dict[str, float]] = []

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        self._unwritten.append(dict(metrics))
        self.rewrite()

    def rewrite(self) -> str | None:
        """Write what is not written; why that failed, if it did."""
        if not self._unwritten:
            return None
        try:
            self._append()
        except OSError as error:
            if self._failure is None:
                log.warning(
                    "%s could not be written (%s); its rows are kept until there is room, and no checkpoint is made "
                    "without them",
                    self.path,
                    reason(error),
                )
            self._failure = reason(error)
            return self._failure
        self._unwritten = []
        if self._failure is not None:
            log.warning("%s is whole again", self.path)
            self._failure = None
        return None

    def _append(self) -> None:
        keys, kept = self._keys or list(KEYS_FIRST), None
        if not self._keys:
            keys, kept = self._begin(keys)
        new = dict.fromkeys(key for row in self._unwritten for key in row if key not in keys)
        if new and kept is None:
            _, kept = read_rows(self.path)
        if kept is not None:
            self._write([*keys, *new], [*kept, *self._unwritten])
            self._keys, self.count = [*keys, *new], len(kept) + len(self._unwritten)
            return
        size = self.path.stat().st_size
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, keys, lineterminator="\n").writerows(self._unwritten)
            sync(self.path)
            self.count += len(self._unwritten)
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
