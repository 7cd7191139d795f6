"""A bar in the terminal that says how far training is."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning.pytorch as pl
from tqdm import tqdm

from gaussbias import catalogue
from gaussbias.callbacks.base import images_per_step, progress
from gaussbias.callbacks.measuring import last_measured
from gaussbias.history import plain

HEADLINES = {
    catalogue.GL_SCORE.name: "GL",
    catalogue.MEMORIZED_FRACTION.name: "mem.",
    catalogue.SAMPLE_COSINE.name: "cos.",
}
"""What stands beside the bar, of the last measurement: GL score, memorised share, cosine with D_G's samples."""


class ProgressBar(pl.Callback):
    """kimg, images a second, the time left (measurements included), and three values of the last measurement.

    It is drawn on standard error, by the first rank, if that is a terminal, and fits into 80 columns.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._images = self._seconds = self._since = 0.0
        self._headlines: list[str] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the empty bar."""
        if not trainer.is_global_zero:
            return
        self._bar = tqdm(
            total=trainer.max_steps * images_per_step(trainer) / 1000,
            initial=progress(trainer)["kimg"],
            disable=sys.stderr is None or not sys.stderr.isatty(),
            bar_format="{n:.1f}/{total:.1f} kimg |{bar}| {remaining} left{postfix}",
            smoothing=0,
            leave=False,
            dynamic_ncols=True,
        )
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move on."""
        if self._bar is None:
            return
        step = progress(trainer)["kimg"] - self._bar.n
        self._images += 1000 * step
        now = time.perf_counter()
        self._seconds, self._since = self._seconds + now - self._since, now
        speed = f"{self._images / self._seconds:,.0f} img/s"
        self._bar.set_postfix_str(", ".join([speed, *self._headlines]), refresh=False)
        self._bar.update(step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say that a measurement is under way."""
        if self._bar is not None:
            self._bar.set_postfix_str("measuring ...")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the values down, and start the clock again: images a second do not count measurements."""
        self._since = time.perf_counter()
        values = plain({name: float(measured[name]) for name, measured in last_measured(trainer).items()})
        self._headlines = [f"{name} {values[key]:.2f}" for key, name in HEADLINES.items() if key in values]

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Take the bar away, before the error is shown."""
        self._close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the bar away."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
