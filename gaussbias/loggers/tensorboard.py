"""TensorBoard's event files, with the images seen as steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from gaussbias.loggers.base import LocalLogger
from gaussbias.loggers.series import curves
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

log = logging.getLogger("gaussbias")


class TensorBoardRun(LocalLogger):
    """Curves and pictures in TensorBoard's event files; a file that cannot be written is said and ends nothing.

    TensorBoard counts steps in whole numbers, so a step is an image seen. Main values come first, in a section of
    their own (`gaussbias.loggers.series`).

    Args:
        writer: A `torch.utils.tensorboard.SummaryWriter`.
        levels: Whether values of single noise levels are curves too.
    """

    def __init__(self, writer: Any, levels: bool = False) -> None:
        super().__init__()
        self._writer, self._levels = writer, levels
        self._failed = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log a row."""
        images = _images(metrics["kimg"])

        def write() -> None:
            for key, value in curves(metrics, self._levels).items():
                if key != "kimg":
                    self._writer.add_scalar(key, value, images)
            self._writer.flush()

        self._try(write)

    @rank_zero_only
    def log_picture(self, key: str, path: Path, kimg: float) -> None:
        """Log a picture of what was measured at `kimg`."""
        import numpy as np
        from PIL import Image

        def write() -> None:
            with Image.open(path) as picture:
                self._writer.add_image(key, np.asarray(picture.convert("RGB")), _images(kimg), dataformats="HWC")
            self._writer.flush()

        self._try(write)

    def _try(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except Exception as error:  # the disk is full, its thread is gone, ...
            log.warning(
                "TensorBoard takes no more rows (%s); the run goes on, and history.csv has them all", reason(error)
            )
            self._failed = True

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is not written."""
        self._try(self._writer.close)


def begin_tensorboard(folder: Path, from_kimg: float | None, levels: bool = False) -> TensorBoardRun:
    """Event files in a run folder.

    Args:
        folder: The run folder.
        from_kimg: Where the run continues: TensorBoard drops what came later; `None` begins it.
        levels: Whether values of single noise levels are curves too.
    """
    from torch.utils.tensorboard import SummaryWriter

    purge = None if from_kimg is None else _images(from_kimg) + 1
    return TensorBoardRun(SummaryWriter(str(RunFolder(folder).tensorboard), purge_step=purge), levels)


def _images(kimg: float) -> int:
    return round(1000 * kimg)
