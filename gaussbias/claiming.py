"""Whose a run folder is, and what was begun in it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gaussbias import __version__
from gaussbias.config import Config, to_yaml
from gaussbias.errors import UserError
from gaussbias.files import reason, write

LOCK = ".lock"
ATTEMPTS = "attempts.jsonl"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Let no other process work in a run folder. The operating system lets go of it, however this process ends.

    Raises:
        UserError: If another one does, or the folder cannot be written.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"run.name: another process is at work in {folder}; wait until it has ended, or choose another run.name"
        ) from None
    except OSError as error:
        raise UserError(f"run.root: cannot write to {folder}: {reason(error)}") from None
    try:
        yield
    finally:
        lock.release()


def claim(config: Config, folder: Path, resume: bool, about: dict[str, Any]) -> int:
    """Write config.yaml, and a line of what begins here; after all checks, so that a mistake changes nothing.

    Args:
        config: The configuration.
        folder: The run folder, which this process holds.
        resume: Whether a run in it is continued.
        about: What to say of this attempt.

    Returns:
        Which attempt this is, from 1.

    Raises:
        UserError: If there is a run already, or nothing can be written.
    """
    if not resume and (folder / "config.yaml").exists():
        raise UserError(f"run.name: another run has just begun in {folder}; choose another run.name")
    try:
        attempt = _add_attempt(folder / ATTEMPTS, about)
        write(folder / "config.yaml", to_yaml(config))
        return attempt
    except OSError as error:
        raise UserError(f"run.root: cannot write to {folder}: {reason(error)}") from None


def _add_attempt(file: Path, about: dict[str, Any]) -> int:
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    versions = {"gaussbias": __version__, "torch": torch.__version__, "python": platform.python_version()}
    lines.append(json.dumps({"attempt": len(lines) + 1, **about, **versions}))
    write(file, "\n".join(lines) + "\n")
    return len(lines)
