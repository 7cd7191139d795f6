"""Fits the linear surrogate of a checkpoint, as a run of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gaussbias.config import Config
from gaussbias.history.claiming import is_finished
from gaussbias.lens.results import REMEDY
from gaussbias.lens.subjects import Subject
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.run_folder import RunFolder
from gaussbias.training import run

MARK = "surrogate.key"


def fit_surrogate(config: Config, subject: Subject, folder: Path, labels: str | None, key: str) -> Path:
    """Distil a checkpoint, as `module.kind=linear` does, or take what was distilled before; its run folder."""
    place, mark = folder / "surrogate", folder / MARK
    try:
        if not place.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write(mark, f"{key}\n")
        if not mark.is_file() or mark.read_text().strip() != key:
            raise UserError(f"--out: {place} is of another checkpoint, images, draws or options; {REMEDY}")
    except OSError as error:
        raise UserError(f"--out: cannot write to {folder}: {reason(error)}") from None
    if is_finished(place):
        return place
    linear = replace(config.linear, teacher=str(subject.path.absolute()), labels=labels)
    own = replace(
        config,
        module=replace(config.module, kind="linear"),
        linear=linear,
        train=replace(config.train, devices=1),
        run=replace(config.run, name="surrogate", root=str(folder), wandb="disabled"),
    )
    run.fit(own, place, resume=RunFolder(place).config.exists())
    return place
