"""The local table of all logged values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from gaussbias.history import HistoryFile
from gaussbias.loggers.base import LocalLogger
from gaussbias.system.files import reason

log = logging.getLogger("gaussbias")


class HistoryLogger(LocalLogger):
    """Rows in `history.csv` (`gaussbias.history.HistoryFile`).

    A run that continues drops the rows after its checkpoint: they are computed again. Rows that cannot be written are
    kept, and tried again with the next one.

    Args:
        path: The file.
        from_kimg: Where the run continues; `None` starts anew.
        measured: Whether the measurement there is done; else its row is dropped too.
    """

    def __init__(self, path: Path, from_kimg: float | None = None, measured: bool = True) -> None:
        super().__init__()
        self.path, self._file = path, HistoryFile(path, from_kimg, measured)
        self._failure: str | None = None
        self._unwritten: list[dict[str, float]] = []

    @property
    def count(self) -> int:
        """Rows on the disk."""
        return self._file.count

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
            self._file.append(*self._unwritten)
        except OSError as error:
            if self._failure is None:
                log.warning(
                    "%s could not be written (%s); its rows are kept in memory until there is space, and no checkpoint "
                    "is made without them",
                    self.path,
                    reason(error),
                )
            self._failure = reason(error)
            return self._failure
        self._unwritten = []
        if self._failure is not None:
            log.warning("%s has all rows again", self.path)
            self._failure = None
        return None
