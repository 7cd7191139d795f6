"""Checkpoints that hold the raw weights, the average and the optimiser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from gaussbias.errors import TrainingError

KEPT = 2


class Streamed(TorchCheckpointIO):
    """Writes a checkpoint to its file; Lightning's own way makes it whole in memory first."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write, to a name that becomes the checkpoint's when it is whole."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        torch.save(checkpoint, path)


class Checkpoints(Checkpoint):
    """Writes `<step>.ckpt` after the given steps, `last.ckpt` with the newest of them, and keeps two.

    After a step with a measurement it writes when the measurement is logged, so that a run that continues from
    a checkpoint has all rows up to it. Files appear under their names when they are complete.

    Args:
        folder: Where to write.
        steps: Numbers of steps after which to write.
        measured: Numbers of steps after which there is a measurement.
    """

    def __init__(self, folder: Path, steps: Set[int], measured: Set[int]) -> None:
        self.folder, self.steps, self.measured = folder, steps, measured

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write, unless a measurement follows."""
        if trainer.global_step not in self.measured and not trainer.should_stop:
            self._save(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write after the measurement; Lightning calls this once the raw weights are back in place."""
        self._save(trainer, pl_module)

    def _save(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step = trainer.global_step
        if step not in self.steps and not trainer.should_stop:  # a run may end before it was planned to
            return
        if not bool(torch.stack([p.isfinite().all() for p in pl_module.parameters()]).all()):
            raise TrainingError(
                f"a weight is not finite after step {step}; it was not saved. "
                "Try a smaller train.lr, or train.grad_clip=1"
            )
        path = self.folder / f"{step:08d}.ckpt"
        temporary = path.with_suffix(".tmp")
        trainer.save_checkpoint(temporary)  # by every rank; rank 0 writes
        if trainer.is_global_zero:
            temporary.replace(path)
            _link(path, self.folder / "last.ckpt")
            numbered = sorted(p for p in self.folder.glob("*.ckpt") if p.stem.isdigit())
            for old in numbered[:-KEPT]:
                old.unlink()


def _link(path: Path, name: Path) -> None:
    """Let `name` be the file at `path`, at once: as a hard link where the file system has them, else as a copy."""
    temporary = name.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
    temporary.replace(name)
