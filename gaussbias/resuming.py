"""What a run goes on with, and whether it may."""

from __future__ import annotations

import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from gaussbias.data import ProbeBank
from gaussbias.errors import UserError
from gaussbias.files import link, reason
from gaussbias.history import is_number, load, measurement_files, read_measurement
from gaussbias.modules import LinearModule
from gaussbias.moments import stored_fingerprint

log = logging.getLogger("gaussbias")


@dataclass(frozen=True)
class Restart:
    """Where a run goes on.

    Attributes:
        file: The checkpoint.
        step: Steps that were taken.
        measured: Whether the measurement after them, if one was due, is done.
        devices: How many devices there were, and of which type.
        damaged: Newer checkpoints that cannot be read, and why.
    """

    file: Path
    step: int
    measured: bool
    devices: tuple[int, str]
    damaged: tuple[tuple[Path, str], ...]


def find_restart(folder: Path, module: pl.LightningModule) -> Restart | None:
    """The newest checkpoint of a run that is whole, if it has any; nothing in the folder is changed.

    Raises:
        UserError: If none is whole, or the newest one does not fit the module.
    """
    places = folder / "checkpoints"
    found = sorted((p for p in places.glob("*.ckpt") if p.stem.isdigit()), reverse=True)
    last = places / "last.ckpt"
    if last.exists() and not any(last.samefile(path) for path in found):
        found.append(last)
    damaged: list[tuple[Path, str]] = []
    for file in found:
        try:
            checkpoint = _read(file)
        except Exception as error:  # torch.load has no base class for what a damaged file raises
            damaged.append((file, reason(error) if isinstance(error, (OSError, ValueError)) else "it cannot be read"))
            continue
        _check_module(file, checkpoint, module)
        state = checkpoint["callbacks"]["Checkpoints"]["devices"]
        return Restart(file, checkpoint["global_step"], checkpoint["measured"], (state[0], state[1]), tuple(damaged))
    if damaged:
        raise UserError(
            f"--resume: no checkpoint in {places} is whole ({damaged[0][0].name}: {damaged[0][1]}); put back one that "
            "is, or begin another run.name"
        )
    return None


def _read(file: Path) -> dict[str, Any]:
    """A checkpoint whose every byte is as it was written: its file is a zip with checksums."""
    with zipfile.ZipFile(file) as archive:
        broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"the checksum of {broken} is wrong")
    checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    int(checkpoint["global_step"]), bool(checkpoint["measured"]), checkpoint["state_dict"]
    checkpoint["callbacks"]["Checkpoints"]["devices"]
    return checkpoint


def _check_module(file: Path, checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    try:
        module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        raise UserError(
            f"--resume: {file} is of another network than this configuration's ({reason(error)}); "
            "begin another run.name"
        ) from None
    if isinstance(module, LinearModule) and checkpoint["progress"]["teacher"] != module.teacher_hash:
        raise UserError(
            "linear.teacher: the surrogate was begun with other weights than the teacher has now (it was trained on?); "
            "begin another run.name"
        )


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


def check_history(folder: Path) -> None:
    """Raise `UserError` unless the rows of a run, to which more are added, can be read."""
    if (folder / "history.csv").exists():
        load(folder)


def prepare(folder: Path, restart: Restart, kimg: float) -> None:
    """Put a run folder back to where the run goes on.

    What was measured after the checkpoint is removed: it is measured again, as the rows of history.csv are. Damaged
    checkpoints are put aside.
    """
    for file, why in restart.damaged:
        log.warning("%s is damaged (%s); the run goes on from %s", file, why, restart.file.name)
        file.replace(file.with_suffix(".damaged"))
    if restart.file.name != "last.ckpt":
        link(restart.file, folder / "checkpoints" / "last.ckpt")
    for place in ("probes", "samples", "figures/samples"):
        for file in (folder / place).glob("*.*"):
            if is_number(file.stem) and float(file.stem) > kimg + 1e-6:
                file.unlink()


def devices_differ(before: tuple[int, str], now: tuple[int, str], dropout: bool) -> str | None:
    """What differs in a run that goes on on other devices, in a line; `None` if they are the same."""
    if before == now:
        return None
    stays = "the batches and their order stay as they were"
    differs = "sums over devices are taken in another order, which is round-off"
    if before[1] != now[1]:
        differs += ", and noise is drawn by another generator"
    else:
        stays = "the batches, their order and the noise stay as they were"
    if dropout:
        differs += ", and the masks of dropout are others"
    return f"before on {before[0]} {before[1]}, now on {now[0]} {now[1]}: {stays}; {differs}"
