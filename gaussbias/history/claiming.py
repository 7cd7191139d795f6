"""Whose a run folder is, and what was begun in it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gaussbias import __version__
from gaussbias.config import Config, to_yaml
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.run_folder import RunFolder


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Let no other process work in a run folder. The operating system lets go of it, however this process ends.

    Raises:
        UserError: If another one does, or the folder cannot be written.
    """
    lock = FileLock(RunFolder(folder).lock)
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
    if not resume and RunFolder(folder).config.exists():
        raise UserError(f"run.name: another run has just begun in {folder}; choose another run.name")
    try:
        attempt = _add_attempt(RunFolder(folder).attempts, about)
        write(RunFolder(folder).config, to_yaml(config))
        return attempt
    except OSError as error:
        raise UserError(f"run.root: cannot write to {folder}: {reason(error)}") from None


def finish(folder: Path, attempt: int, kimg: float) -> None:
    """Note that an attempt came to the end of its run, so that nobody has to guess that."""
    write(RunFolder(folder).done, json.dumps({"attempt": attempt, "kimg": kimg}) + "\n")


def is_finished(folder: Path) -> bool:
    """Whether the newest attempt at a run came to its end."""
    try:
        attempts = RunFolder(folder).attempts.read_text(errors="replace").splitlines()
        return bool(json.loads(RunFolder(folder).done.read_text())["attempt"] == len(attempts))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_busy(folder: Path) -> bool:
    """Whether a process works in a run folder."""
    if not RunFolder(folder).lock.exists():  # it would be made
        return False
    try:
        with FileLock(RunFolder(folder).lock).acquire(timeout=0):
            return False
    except (Timeout, OSError):  # somebody else's, as far as this process can tell
        return True


def _add_attempt(file: Path, about: dict[str, Any]) -> int:
    import torch  # which those who only look do not wait for

    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    versions = {"gaussbias": __version__, "torch": torch.__version__, "python": platform.python_version()}
    lines.append(json.dumps({"attempt": len(lines) + 1, **about, **versions}))
    write(file, "\n".join(lines) + "\n")
    return len(lines)
