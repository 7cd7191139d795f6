"""What a run goes on with, and whether it may."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch

from gaussbias.data import ProbeBank
from gaussbias.errors import UserError
from gaussbias.history import is_number, measurement_files, read_measurement
from gaussbias.modules import LinearModule
from gaussbias.moments import stored_fingerprint


def last_checkpoint(folder: Path) -> Path | None:
    """The newest of a run, if it has any."""
    path = folder / "checkpoints" / "last.ckpt"
    return path if path.exists() else None


def load_step(file: Path, module: pl.LightningModule) -> int:
    """The step of a checkpoint, whose weights have to fit the module; before anything in the folder changes."""
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        step, weights = int(checkpoint["global_step"]), checkpoint["state_dict"]
    except Exception:  # torch.load has no base class for what a damaged file raises
        raise UserError(
            f"--resume: {file} is damaged or not a checkpoint; copy one of the numbered ones beside it over it"
        ) from None
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--resume: {file} is of another network than this configuration's ({reason}); begin another run.name"
        ) from None
    if isinstance(module, LinearModule) and checkpoint["progress"]["teacher"] != module.teacher_hash:
        raise UserError(
            "linear.teacher: the surrogate was begun with other weights than the teacher has now (it was trained on?); "
            "begin another run.name"
        )
    return step


def check_images(folder: Path, images: str) -> None:
    """Raise `UserError` unless images of this fingerprint are those that the run in a folder began with."""
    before = stored_fingerprint(folder / "moments.safetensors")
    if before not in (None, images):
        raise UserError(
            f"data.path: the run in {folder} was trained on other images than are there now; "
            "put those back, or begin another run.name"
        )


def check_bank(folder: Path, bank: ProbeBank) -> None:
    """A run goes on with the draws that it began with: else its curves would move without the network."""
    files = measurement_files(folder)
    if not files:
        return
    before, now = read_measurement(files[-1], ()).hashes, bank.hashes
    changed = [pool for pool in before if now.get(pool) != before[pool]]
    if changed:
        raise UserError(
            f"probes: the run in {folder} was measured on other draws of {', '.join(changed)} than there are now "
            "(their hashes differ: other held-out images, or another version of torch); begin another run.name"
        )


def forget_after(folder: Path, kimg: float) -> None:
    """Remove what was measured after the checkpoint: it is measured again, as the rows of history.csv are."""
    for place in ("probes", "samples", "figures/samples"):
        for file in (folder / place).glob("*.*"):
            if is_number(file.stem) and float(file.stem) > kimg + 1e-6:
                file.unlink()
