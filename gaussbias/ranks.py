"""The processes of a job: which one this is, before anything heavy is imported, and that none outlives the others."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

PARENT = "GAUSSBIAS_PARENT"
LEAD = 5
"""Seconds in which ranks that have nothing left to do end."""


def is_first() -> bool:
    """Whether this process is global rank 0: Lightning, torchrun and SLURM tell it by these variables."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def several() -> bool:
    """Whether a launcher has started other processes beside this one."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in ("SLURM_NTASKS", "WORLD_SIZE"))


def end_with_parent() -> None:
    """Let this process end when the one that Lightning started it from does, however that ended.

    A process that waits for another in a collective would wait on for half an hour.
    """
    parent = os.getppid()
    if os.environ.get(PARENT) == str(parent):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    os.environ[PARENT] = str(os.getpid())


def end_at_once(error: Exception) -> NoReturn:
    """Show an error and end this process: what libraries do at exit may wait for the other ranks."""
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def end_last() -> None:
    """Let the first of the ranks that a launcher started end after the others.

    It has the exit code that counts, and `srun --kill-on-bad-exit` would kill what is left of them, with another code.
    """
    if is_first() and several():
        time.sleep(LEAD)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
