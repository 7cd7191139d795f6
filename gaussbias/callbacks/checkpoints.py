"""Checkpoints that hold the raw weights, the average and the optimiser."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from gaussbias.callbacks.base import callbacks_of, images_per_step, progress, root_device
from gaussbias.callbacks.private import callbacks_in
from gaussbias.callbacks.rules import RuleCallback
from gaussbias.history import begins_again
from gaussbias.system.errors import TrainingError, safely
from gaussbias.system.files import Rewrites, complete, link, reason
from gaussbias.system.signals import Stopped

KEPT = 2

log = logging.getLogger("gaussbias")


class Streamed(TorchCheckpointIO):
    """Writes a checkpoint to its file; Lightning's own way makes it whole in memory first.

    It appears under its name when it is on the disk. Why it could not be written is kept in `failure`, since ranks that
    do not write wait for the one that does.
    """

    failure: str | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write; called on the first rank alone."""
        self.failure = None
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with complete(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch says of a full disk that it could not write its last bytes
            first = error.__context__ if isinstance(error.__context__, OSError) else error
            self.failure = reason(first)


class Checkpoints(Checkpoint):
    """Writes `<step>.ckpt` after the given steps, `last.ckpt` with the newest of them, and keeps the newest ones.

    After a step with a measurement it writes when the measurement is logged, so that a run that continues from
    a checkpoint has all rows up to it. A run that was asked to stop leaves a checkpoint of its last step. What a rule
    chose (`RuleCallback`) stays as `best_<rule>.ckpt`.

    Args:
        folder: Where to write.
        steps: Numbers of steps after which to write.
        measured: Numbers of steps after which there is a measurement.
        insist: Whether a checkpoint that cannot be written ends the run; else it goes on, and says so.
        kept: How many are kept beside those of rules; `None` is all.
    """

    def __init__(
        self, folder: Path, steps: Set[int], measured: Set[int], insist: bool = False, kept: int | None = KEPT
    ) -> None:
        self.folder, self.steps, self.measured, self.insist, self.kept = folder, steps, measured, insist, kept
        self.failure: str | None = None
        """Why the newest one could not be written."""
        self._stepped = False

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on elsewhere is compared with."""
        return {"devices": self._devices, "card": self._card, "precision": self._precision}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take down what the run computes on."""
        device = root_device(trainer)
        self._devices = [trainer.world_size, device.type]
        self._card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._precision = str(trainer.precision)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put right what was kept of a rule's choice, if it was changed, or killed before its file had a name."""
        if trainer.is_global_zero and trainer.global_step:
            for rule in _rules(trainer):
                safely(f"best_{rule.name}.ckpt", self._check_kept, trainer, rule)

    def _check_kept(self, trainer: pl.Trainer, rule: RuleCallback) -> None:
        if rule.chosen is None:
            return
        step = round(rule.chosen / progress(trainer)["kimg"] * trainer.global_step)
        file, numbered = self.folder / f"best_{rule.name}.ckpt", self.folder / f"{step:08d}.ckpt"
        if numbered.exists():
            link(numbered, file)
            return
        if not file.exists():
            log.warning("the weights at %g kimg, which %s chooses, were not kept", rule.chosen, rule.name)
            return
        try:
            kept = torch.load(file, map_location="cpu", weights_only=True, mmap=True)["global_step"]
        except Exception:  # torch.load has no base class for what a damaged file raises
            log.warning("%s cannot be read, and stays as it is; %s chooses %g kimg", file, rule.name, rule.chosen)
            return
        if kept != step:
            file.unlink()
            log.warning("the weights at %g kimg, which %s chooses, were not kept", rule.chosen, rule.name)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write, unless a measurement follows."""
        self._stepped = True
        if trainer.global_step in self.steps - self.measured and not trainer.should_stop:
            self._save(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write after the measurement; Lightning calls this once the raw weights are back in place."""
        chosen = [rule.name for rule in _rules(trainer) if rule.chosen == progress(trainer)["kimg"]]
        # a run may end before it was planned to
        if trainer.global_step in self.steps or trainer.should_stop or chosen:
            self._save(trainer, pl_module, chosen)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Write what a run that was asked to stop goes on from; every rank comes here.

        Before the first step there is nothing new, and not all of the state may be restored.
        """
        if isinstance(exception, Stopped) and self._stepped:
            self._save(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store how many rows there are up to here: a history that lacks some does not belong to this checkpoint."""
        counts = [getattr(logger, "count", None) for logger in trainer.loggers]
        checkpoint["rows"] = [count for count in counts if isinstance(count, int)]

    def _save(self, trainer: pl.Trainer, pl_module: pl.LightningModule, chosen: Sequence[str] = ()) -> None:
        step = trainer.global_step
        if not bool(torch.stack([p.isfinite().all() for p in pl_module.parameters()]).all()):
            raise TrainingError(
                f"a weight is not finite after step {step}; it was not saved. "
                "Try a smaller train.lr, or train.grad_clip=1"
            )
        path = self.folder / f"{step:08d}.ckpt"
        # not before the rows up to here are on the disk: a run that goes on from here does not compute them again
        self.failure = trainer.strategy.broadcast(_unwritten(trainer) if trainer.is_global_zero else None)
        if self.failure is None:
            trainer.save_checkpoint(path)  # by every rank; rank 0 writes
            self.failure = trainer.strategy.broadcast(
                self._publish(trainer, path, chosen) if trainer.is_global_zero else None
            )
        if self.failure is not None:
            self._complain(trainer)

    def _publish(self, trainer: pl.Trainer, path: Path, chosen: Sequence[str]) -> str | None:
        """Make the checkpoint the last one and that of rules that chose it, remove old ones; why that failed."""
        failure: str | None = getattr(trainer.strategy.checkpoint_io, "failure", None)
        if failure is not None:
            return failure
        try:
            for name in ("last", *(f"best_{rule}" for rule in chosen)):
                link(path, self.folder / f"{name}.ckpt")
            numbered = sorted(p for p in self.folder.glob("*.ckpt") if p.stem.isdigit() and p <= path)
            for old in numbered[: -self.kept] if self.kept else ():
                old.unlink()
        except OSError as error:
            return reason(error)
        return None

    def _complain(self, trainer: pl.Trainer) -> None:
        text = f"the checkpoint at {progress(trainer)['kimg']:g} kimg could not be written ({self.failure})"
        if self.insist:
            raise TrainingError(f"{text}; the run stopped, and {self.remedy(trainer)}")
        if trainer.is_global_zero:
            log.warning("%s; %s", text, "the last good one stays" if self.is_any() else "there is none yet")

    def is_any(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any(path.stem.isdigit() for path in self.folder.glob("*.ckpt"))

    def remedy(self, trainer: pl.Trainer) -> str:
        """What a run whose newest checkpoint could not be written can do."""
        if self.is_any():
            return "goes on from the last good one with --resume"
        each = images_per_step(trainer) / 1000
        if begins_again(self.folder.parent, min(self.steps) * each):
            return "begins again with --resume"
        return f"has nothing to go on from, though its rows stay in {self.folder.parent}: begin another run.name"


def _rules(trainer: pl.Trainer) -> list[RuleCallback]:
    return callbacks_of(trainer, RuleCallback)  # type: ignore[type-abstract]


def _unwritten(trainer: pl.Trainer) -> str | None:
    """Why rows or measurements are not on the disk, after another try; on the first rank."""
    everyone = [*trainer.loggers, *callbacks_in(trainer)]
    failures = [writer.rewrite() for writer in everyone if isinstance(writer, Rewrites)]
    return next((failure for failure in failures if failure is not None), None)
