"""Measures while a network trains: probes, driven by Lightning's validation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import lightning.pytorch as pl
from safetensors import SafetensorError
from torch.func import functional_call

from gaussbias import history
from gaussbias.callbacks.base import RowCallback, callbacks_of, log, log_row, progress, root_device
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.private import is_trial
from gaussbias.catalogue import BLOCK_COUNT, SECONDS, SHARE
from gaussbias.denoisers import Evaluate
from gaussbias.probes import Instruments, Measured, Probe, References, evaluate
from gaussbias.probes.instruments import EMA as AVERAGED
from gaussbias.probes.instruments import RAW_WEIGHTS
from gaussbias.system.drawer import Drawer, Picture
from gaussbias.system.errors import UserError, safely
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.signals import Stopped

_begun: WeakKeyDictionary[pl.Trainer, set[Path]] = WeakKeyDictionary()
"""Files of measurements that callbacks of a trainer have begun, and others of it add to."""


class ProbeCallback(pl.Callback):
    """Measures the module's denoiser at each validation, and logs one row.

    Beside what its probes measure the row has what the measurement cost,
    and what `RowCallback`s of the trainer add. What the blocks contribute to each value is written to
    `probes/<kimg>.safetensors` in the trainer's `default_root_dir` (`gaussbias.history.compare` reads it); several such
    callbacks share the file. Pictures go to its `figures`, drawn beside training, and to every logger that has a method
    `log_picture(key, path, kimg)`.

    The validation loaders are those of the probe bank, and the module's `validation_step` returns
    `gaussbias.probes.evaluate`.

    Args:
        references: What the probes compare with.
        probes: Of the weights that validation runs with; or by weights: `ema`, those, and `raw`, those that are
            trained, where the trainer has an `EMA` that swaps its average in.
        pictures: `live`: drawn beside training, by a process of its own; `end` or `none`: not drawn here.
        instruments: What measures, in place of those of the probes: of images with classes that of each class.
    """

    def __init__(
        self,
        references: References,
        probes: Sequence[Probe] | Mapping[str, Sequence[Probe]],
        pictures: str = "live",
        instruments: Instruments | None = None,
    ) -> None:
        if pictures not in ("live", "end", "none"):
            raise ValueError(f"Expected `pictures` to be one of live, end, none but got {pictures}.")
        named = probes if isinstance(probes, Mapping) else {AVERAGED: probes}
        self.instruments = Instruments(references, named) if instruments is None else instruments
        self.references = references
        self.bank = references.bank
        self.measured: Measured | None = None
        self._drawer = Drawer() if pictures == "live" else None
        self._begun = self._started = time.perf_counter()
        self._spent = 0.0
        self._unwritten: dict[Path, history.Measurement] = {}

    @property
    def values(self) -> dict[str, float]:
        """The row of the last measurement."""
        return {} if self.measured is None else self.measured.row

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move to the device; raise `UserError` for one of Apple's, which have no float64."""
        device = root_device(trainer)
        if device.type == "mps":
            raise UserError(
                "accelerator: expected cpu or cuda for measurements in float64, got mps, which has none; give the "
                "Trainer accelerator='cpu'"
            )
        self.instruments.to(device)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._begun = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of a measurement; raise `UserError` where its time (kimg) cannot be known."""
        self._started = time.perf_counter()
        if not trainer.sanity_checking:
            progress(trainer)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last measurement."""
        self.measured = None
        self.instruments.reset()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Measure one batch; Lightning's sanity check, which sees only some of them, is no measurement."""
        if trainer.sanity_checking:
            return
        for weights in self.instruments.probes:
            if weights == RAW_WEIGHTS:
                raw = raw_denoiser(trainer, pl_module)
                self.instruments.update(evaluate(raw, batch), raw, weights)
            else:
                denoiser: Any = pl_module.denoiser
                self.instruments.update(outputs, denoiser, weights)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Average over all ranks.

        Raises:
            UserError: If blocks are missing: the values would be those of other draws than the bank's.
        """
        if trainer.sanity_checking:
            return
        self.measured = self.instruments.result(progress(trainer)["kimg"])
        missing = self.instruments.missing
        if missing and not is_trial(trainer):
            raise UserError(
                f"expected every block of the probe bank in a measurement, but {missing} did not come; give the "
                "Trainer an ImageDataModule, or the bank's loaders() as they are, and limit_val_batches=1.0"
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured, as one row, and what other callbacks add to it."""
        if self.measured is None:
            return
        values = dict(self.values)
        for callback in callbacks_of(trainer, RowCallback):
            values |= callback.values
        if trainer.is_global_zero:
            self._keep(trainer, replace(self.measured.measurement(), values=dict(values)))
            safely("pictures", self._draw, trainer, self.measured)
        now = time.perf_counter()
        self._spent += now - self._started
        values[SECONDS.name] = now - self._started
        values[SHARE.name] = self._spent / (now - self._begun)
        values[BLOCK_COUNT.name] = float(self.bank.blocks)
        log_row(trainer, values)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give pictures that are drawn to the loggers."""
        self._give(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Wait for the last pictures."""
        self.end_pictures(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Wait for pictures of what was measured; not before a run that was asked to stop has its checkpoint."""
        if not isinstance(exception, Stopped):
            self.end_pictures(trainer, wait=isinstance(exception, Exception))

    def end_pictures(self, trainer: pl.Trainer, wait: bool = True) -> None:
        """End the process that draws, once the last pictures are drawn, or at once."""
        self._give(trainer, wait)
        if self._drawer is not None:
            self._drawer.close()

    def _draw(self, trainer: pl.Trainer, measured: Measured) -> None:
        assert measured.kimg is not None
        pictures = self.instruments.pictures(Path(trainer.default_root_dir), measured.kimg)
        if self._drawer is not None and pictures:
            self._give(trainer, wait=True)  # before their files are drawn again
            self._drawer.submit(pictures, measured.kimg)

    def _give(self, trainer: pl.Trainer, wait: bool = False) -> None:
        if self._drawer is None:
            return
        for drawn in self._drawer.drawn(wait):
            safely(f"{drawn.picture.key} for the loggers", give_picture, trainer, drawn.picture, drawn.kimg)

    def _keep(self, trainer: pl.Trainer, measured: history.Measurement) -> None:
        """Write what the blocks contribute, or keep it until it can be written."""
        file = RunFolder(trainer.default_root_dir).probes / f"{history.kimg_name(measured.kimg)}.safetensors"
        if file not in _begun.setdefault(trainer, set()):  # one that is there is of an earlier training
            with suppress(OSError):
                file.unlink()
        _begun[trainer].add(file)
        self._unwritten[file] = measured
        failure = self.rewrite()
        if failure is not None:
            log.warning(
                "%s could not be written (%s); it is kept in memory until there is space on the disk", file, failure
            )

    def rewrite(self) -> str | None:
        """Write what is not written; why that failed, if it did."""
        try:
            for file, measured in list(self._unwritten.items()):
                history.add_measurement(file, measured)
                del self._unwritten[file]
        except (OSError, SafetensorError) as error:
            return reason(error)
        return None


def give_picture(trainer: pl.Trainer, picture: Picture, kimg: float) -> None:
    """Give a picture to the loggers that take some."""
    for logger in trainer.loggers:
        if hasattr(logger, "log_picture"):
            logger.log_picture(picture.key, picture.path, kimg)


def raw_denoiser(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Evaluate:
    """The module's denoiser with the weights that are trained, while the average stands in for them.

    Raises:
        ValueError: Without an average.
    """
    averages = callbacks_of(trainer, EMA)
    if not averages:
        raise ValueError("Expected an `EMA` callback, for raw weights beside averaged ones, but got none.")
    weights = averages[0].stored("denoiser.")
    module: Any = pl_module.denoiser
    return lambda *given: functional_call(module, weights, given)


def last_measured(trainer: pl.Trainer) -> dict[str, Measured]:
    """What the callbacks of a trainer measured last, by each value's logged name."""
    measurements = [callback.measured for callback in callbacks_of(trainer, ProbeCallback)]
    return {name: measured for measured in measurements if measured is not None for name in measured}
