"""The processes of a job: which one this is, before anything heavy is imported, and that none outlives the others."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Literal, NoReturn

from gaussbias.system.errors import UserError

PARENT = "GAUSSBIAS_PARENT"
NUMBERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
"""Variables by which launchers tell a process its number; they are inherited by whatever is started beside it, too."""
LEAD = 5
"""Seconds in which ranks that have nothing left to do end."""


SHELLS = 0xFFFFFFF0
"""Numbers of SLURM's steps from which on they are shells and scripts, not started by srun."""


def is_first() -> bool:
    """Whether this process is global rank 0, by the variables of whoever started it (`settle` removes stray ones)."""
    return all(os.environ.get(name, "0") == "0" for name in NUMBERS)


def launcher() -> Literal["torchrun", "srun"] | None:
    """What started this process as one of several; `None`: nothing, or Lightning itself."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # an allocation alone sets SLURM_NTASKS as well, for a shell in which nothing was started by srun
    step, shell = os.environ.get("SLURM_STEP_ID", ""), os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    started = step.isdecimal() and int(step) < SHELLS and not shell
    return "srun" if started and "SLURM_NTASKS" in os.environ else None


def several() -> bool:
    """Whether a launcher has started other processes beside this one."""
    name = "SLURM_NTASKS" if launcher() == "srun" else "WORLD_SIZE"
    return os.environ.get(name, "1") not in ("", "0", "1")


def settle(world_size: int = 1, nodes: int = 1) -> None:
    """Remove the variables that number this process although no other works with it.

    They are left by the shell of an allocation, a notebook or a script that a launcher started, and would have this
    process and the libraries that it uses leave the work to another one.

    Args:
        world_size: Processes that work together.
        nodes: Machines that they are on.
    """
    by = launcher()
    real: set[str] = set()
    if world_size > 1 and by == "torchrun":
        real = {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"}
    elif world_size > 1 and by == "srun":
        real = {"SLURM_PROCID"}
    elif world_size > 1:  # Lightning's own processes, or some started by hand, meet at a port that they are told
        real = {"LOCAL_RANK"} if "MASTER_PORT" in os.environ else set()
        real |= {"NODE_RANK", "GROUP_RANK"} if nodes > 1 else set()
    for name in {*NUMBERS, "WORLD_SIZE"} - real - ({"WORLD_SIZE"} if real else set()):
        os.environ.pop(name, None)


def check_numbers() -> None:
    """Raise `UserError` for a variable that should number this process and does not: libraries would end in it."""
    for name in (*NUMBERS, "WORLD_SIZE", "SLURM_NTASKS"):
        value = os.environ.get(name, "0")
        if not (value.isascii() and value.isdigit()):
            raise UserError(f"{name}: expected a whole number, as launchers set it, got {value!r}; unset {name}")


def end_with_parent() -> None:
    """Let this process end when the one that Lightning started it from does, however that ended.

    A process that waits for another in a collective would wait on for half an hour.
    """
    parent = os.getppid()
    if os.environ.get(PARENT) == str(parent):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    os.environ[PARENT] = str(os.getpid())


def end_at_once(error: Exception | None = None) -> NoReturn:
    """Show an error and end this process: what libraries do at exit may wait for the other ranks."""
    if error is not None:
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
