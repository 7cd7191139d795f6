"""What a run goes on with, and whether it may."""

from __future__ import annotations

import logging
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from gaussbias.checkpoints import check_archive
from gaussbias.history import (
    begins_again,
    is_number,
    load,
    measurement_files,
    reached_kimg,
    read_measurement,
    read_rows,
    rows_until,
)
from gaussbias.modules import LinearModule
from gaussbias.moments import stored_fingerprint
from gaussbias.probes import ProbeBank
from gaussbias.system.errors import UserError
from gaussbias.system.files import link, reason
from gaussbias.system.run_folder import RunFolder

log = logging.getLogger("gaussbias")

NEEDED = ("global_step", "measured", "state_dict", "callbacks", "optimizer_states", "lr_schedulers", "loops", "rows")
"""What a checkpoint has."""


@dataclass(frozen=True)
class Hardware:
    """What a run computes on.

    Attributes:
        count: Devices.
        kind: Their type.
        card: Name of a GPU; empty for a CPU, and where it is not known.
        precision: Of the training step; empty where it is not known.
    """

    count: int
    kind: str
    card: str = ""
    precision: str = ""

    def __str__(self) -> str:
        more = ", ".join(part for part in (self.card, self.precision if self.card else "") if part)
        return f"{self.count} {self.kind}" + (f" ({more})" if more else "")


@dataclass(frozen=True)
class Restart:
    """Where a run goes on.

    Attributes:
        file: The checkpoint.
        step: Steps that were taken.
        measured: Whether the measurement after them, if one was due, is done.
        hardware: What it computed on.
        damaged: Newer checkpoints that cannot be read, and why.
    """

    file: Path
    step: int
    measured: bool
    hardware: Hardware
    damaged: tuple[tuple[Path, str], ...]


def find_restart(folder: Path, module: pl.LightningModule, batch_size: int) -> Restart | None:
    """The newest checkpoint of a run that is whole, and whose rows are; nothing in the folder is changed.

    Args:
        folder: The run folder.
        module: What the checkpoint has to fit.
        batch_size: Images in a step.

    Returns:
        `None` for a run without a checkpoint.

    Raises:
        UserError: If none is whole, or the newest one does not fit the module.
    """
    places = RunFolder(folder).checkpoints
    numbered = sorted((p for p in places.glob("*.ckpt") if p.stem.isdigit()), reverse=True)
    last = RunFolder(folder).last
    if last.exists() and not (numbered and _is_same(last, numbered[0])):
        numbered.append(last)
    damaged: list[tuple[Path, str]] = []
    lacking = 0
    rows = read_rows(RunFolder(folder).history)[1] if RunFolder(folder).history.exists() else []
    for file in numbered:
        try:
            checkpoint = _read(file)
            hardware = _hardware(checkpoint)
        except Exception as error:  # torch.load has no base class for what a damaged file raises
            known = isinstance(error, (OSError, ValueError, KeyError))
            damaged.append((file, reason(error) if known else "it cannot be read"))
            continue
        _check_module(file, checkpoint, module)
        kimg = checkpoint["global_step"] * batch_size / 1000
        if len(rows_until(rows, kimg, checkpoint["measured"])) < max(checkpoint["rows"], default=0):
            lacking += 1
            log.warning("history.csv lacks rows before %s", file)
            continue
        return Restart(file, checkpoint["global_step"], checkpoint["measured"], hardware, tuple(damaged))
    if lacking:
        raise UserError(
            f"--resume: history.csv in {folder} lacks rows that all checkpoints come after; put the whole one back, or "
            "begin another run.name"
        )
    if damaged:
        raise UserError(
            f"--resume: no checkpoint in {places} is whole ({damaged[0][0].name}: {damaged[0][1]}); put back one that "
            "is, or begin another run.name"
        )
    return None


def _hardware(checkpoint: dict[str, Any]) -> Hardware:
    known = checkpoint["callbacks"]["Checkpoints"]
    count, kind = known["devices"]
    return Hardware(count, kind, known.get("card", ""), known.get("precision", ""))


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except FileNotFoundError:  # the first rank has just put it aside
        return False


def _read(file: Path) -> dict[str, Any]:
    """A checkpoint whose every byte is as it was written: its file is a zip with checksums."""
    check_archive(file)  # before anything is unpacked
    with zipfile.ZipFile(file) as archive:
        broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"the checksum of {broken} is wrong")
    checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return {key: checkpoint[key] for key in NEEDED} | checkpoint


def _check_module(file: Path, checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    try:
        module.load_state_dict(checkpoint["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
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
    before = stored_fingerprint(RunFolder(folder).moments)
    if before not in (None, images):
        raise UserError(
            f"data.path: the run in {folder} was trained on other images than are there now; "
            "put those back, or begin another run.name"
        )


def check_bank(folder: Path, bank: ProbeBank) -> None:
    """A run goes on with the draws that it began with: else its curves would move without the network."""
    for file in reversed(measurement_files(folder)):
        with suppress(UserError):  # it is made again, or was damaged later
            before, now = read_measurement(file, ()).hashes, bank.hashes
            break
    else:
        return
    changed = [pool for pool in before if now.get(pool) != before[pool]]
    if changed:
        raise UserError(
            f"probes: the run in {folder} was measured on other draws of {', '.join(changed)} than there are now "
            "(their hashes differ: other held-out images, or another version of torch); begin another run.name"
        )


def check_history(folder: Path) -> None:
    """Raise `UserError` unless the rows of a run, to which more are added, can be read."""
    if RunFolder(folder).history.exists():
        load(folder)


def check_beginning(folder: Path, first: float) -> None:
    """Raise `UserError` for a run that has no checkpoint although it came to its first one, at so many kimg.

    One that did not come so far begins again, and computes the same.
    """
    if not begins_again(folder, first):
        raise UserError(
            f"--resume: the run in {folder} has rows up to {reached_kimg(folder):g} kimg, but no checkpoint; put one "
            "back into checkpoints/, or begin another run.name"
        )


def check_places(folder: Path) -> None:
    """Raise `UserError` if what is removed when a run goes on would be somewhere else."""
    for place in RunFolder(folder).timed:
        if any(part.is_symlink() for part in (place, place.parent) if part != folder):
            raise UserError(f"--resume: expected a folder at {place}, found a link; put the folder itself there")


def prepare(folder: Path, restart: Restart | None, kimg: float) -> None:
    """Put a run folder back to where the run goes on.

    What was measured after the checkpoint is removed: it is measured again, as the rows of history.csv are. Damaged
    checkpoints are put aside.
    """
    places = RunFolder(folder)
    if restart is not None:
        for file, why in restart.damaged:
            log.warning("%s is damaged (%s); the run goes on from %s", file, why, restart.file.name)
            file.replace(file.with_suffix(".damaged"))
        if restart.file != places.last:
            link(restart.file, places.last)
    for place in (*places.timed, places.checkpoints, places.averages):
        for file in place.glob("*.tmp"):
            file.unlink()
    step = -1 if restart is None else restart.step
    for file in places.averages.glob("*.safetensors"):
        if is_number(file.stem) and float(file.stem) > step:
            file.unlink()
    for place in places.timed:
        for file in place.glob("*.*"):
            if file.suffix in (".safetensors", ".png") and is_number(file.stem) and float(file.stem) > kimg + 1e-6:
                file.unlink()


def hardware_differs(before: Hardware, now: Hardware, dropout: bool) -> str | None:
    """What differs in a run that goes on on other devices, in a line; `None` if they are the same."""
    moved = (before.count, before.kind) != (now.count, now.kind)
    older = before.kind == now.kind == "cuda" and not before.card  # by a version that drew noise as each card does
    card = bool(before.card and now.card and before.card != now.card)
    precision = bool(before.precision and now.precision and before.precision != now.precision)
    if not (moved or card or precision or older):
        return None
    noise = before.kind == now.kind and not older
    stays = "the batches, their order and the noise" if noise else "the batches and their order"
    sums = "sums over devices" if moved and not card else "sums"
    differs = [f"{sums} are taken in another order, which is round-off"] if moved or card else []
    differs += [] if noise else [f"noise is drawn {'in another way' if older else 'by another generator'}"]
    differs += ["steps are taken in another precision"] if precision else []
    differs += ["the masks of dropout are others"] if dropout and (moved or card) else []
    return f"before on {before}, now on {now}: {stays} stay as they were; {', and '.join(differs)}"
