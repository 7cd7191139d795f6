"""Runs the cells of an atlas, some at a time, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gaussbias import config as configuration
from gaussbias.atlas.plan import Cell, Plan
from gaussbias.config.roles import Role, keys_with
from gaussbias.history.claiming import is_busy, is_finished
from gaussbias.system.errors import UserError
from gaussbias.system.ranks import PARENT
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.signals import INTERRUPTED, TRY_AGAIN, StopRequest

PAUSE = 0.1
"""Seconds between looks at the processes."""


class State(Enum):
    """What a cell's folder says."""

    NEW = "new"
    BEGUN = "begun"
    FINISHED = "finished"
    BUSY = "at work elsewhere"


@dataclass
class Outcome:
    """What became of cells, by name."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why they failed, by name."""
    stopped: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


@dataclass
class Running:
    """A process that runs a cell."""

    cell: Cell
    process: subprocess.Popen[bytes]
    slot: int
    begun: float
    asked: bool = False


TAKEN_OVER = ("data.n_heldout", None)
"""A value that means what the run began with."""


def state_of(cell: Cell) -> State:
    """Whether a cell is finished, with the configuration that the plan has for it."""
    folder = cell.folder
    if not RunFolder(folder).config.exists():
        return State.BUSY if is_busy(folder) else State.NEW
    if is_finished(folder):
        try:
            stored = configuration.load(RunFolder(folder).config)
        except UserError:
            return State.BEGUN  # the run itself says what is wrong
        both = configuration.to_container(stored), configuration.to_container(cell.config)
        differences = [key for key, _, new in configuration.differences(*both) if (key, new) != TAKEN_OVER]
        if keys_with(Role.PLACE, Role.SAME).issuperset(differences):  # it would come to the same
            return State.FINISHED
    return State.BUSY if is_busy(folder) else State.BEGUN


def run_cells(
    plan: Plan,
    jobs: int,
    gpus: Sequence[str],
    request: StopRequest,
    changed: Callable[[list[Running], Outcome], None],
) -> Outcome:
    """Run all cells that are not finished, `jobs` at a time.

    One that fails does not stop the others, but those that need it are not begun. When a stop is requested, all
    processes are asked to stop, leave their checkpoints and are waited for.

    Args:
        plan: The atlas; the configurations of its cells are written.
        jobs: How many at a time.
        gpus: Names of GPUs, as in CUDA_VISIBLE_DEVICES, which the jobs share out; none on CPUs.
        request: Notes signals.
        changed: Called now and then with what runs and what is done.
    """
    outcome = Outcome()
    waiting = list(plan.cells)
    running: list[Running] = []
    free = list(range(jobs))
    try:
        while (waiting and request.received is None) or running:
            for process in [process for process in running if process.process.poll() is not None]:
                running.remove(process)
                free.append(process.slot)
                _settle(plan, process, outcome)
            while free and request.received is None:
                cell = _next(waiting, outcome)
                if cell is None:
                    break
                waiting.remove(cell)
                state = state_of(cell)
                if state is State.FINISHED:
                    outcome.finished.append(cell.name)
                elif state is State.BUSY:
                    outcome.busy.append(cell.name)
                else:
                    running.append(_begin(plan, cell, free.pop(0), jobs, gpus))
            if request.received is not None:
                _ask(running)
            changed(running, outcome)
            if not running and waiting and request.received is None and not _next(waiting, outcome):
                for cell in waiting:
                    if cell.needs in outcome.failed:
                        outcome.failed[cell.name] = f"it needs {cell.needs}, which failed"
                    else:
                        outcome.stopped.append(cell.name)
                waiting = []
            if running:
                time.sleep(PAUSE)
    finally:  # a second Ctrl-C, or a mistake of ours: none is left behind
        _ask(running)
        try:
            for process in running:
                process.process.wait()
        except KeyboardInterrupt:
            for process in running:
                process.process.kill()
            raise
    outcome.stopped += [cell.name for cell in waiting]
    return outcome


def environment(slot: int, jobs: int, gpus: Sequence[str]) -> dict[str, str]:
    """What a job sees: its share of the cores and of the GPUs; and that it ends when this process is gone."""
    variables = {**os.environ, PARENT: str(os.getpid())}
    variables.setdefault("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    if gpus:
        each = max(1, len(gpus) // jobs)  # the same for all: one more would be idle, or make its run another one
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[(slot * each + i) % len(gpus)] for i in range(each))
    return variables


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_line(log: Path) -> str:
    """The last line that a run said."""
    try:
        lines = [line for line in re.split(r"[\r\n]+", log.read_text(errors="replace")) if line.strip()]
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def _next(waiting: Sequence[Cell], outcome: Outcome) -> Cell | None:
    """The next cell that can begin."""
    return next((cell for cell in waiting if cell.needs is None or cell.needs in outcome.finished), None)


def _begin(plan: Plan, cell: Cell, slot: int, jobs: int, gpus: Sequence[str]) -> Running:
    log = plan.log_of(cell)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "gaussbias.fit", "--config", str(plan.file_of(cell)), "--resume"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(slot, jobs, gpus),
                start_new_session=True,  # Ctrl-C is for the atlas, which asks them to stop
            )
    except OSError as error:
        raise UserError(f"root: cannot begin {cell.name} in {plan.root}: {error.strerror}") from None
    return Running(cell, process, slot, time.monotonic())


def _settle(plan: Plan, process: Running, outcome: Outcome) -> None:
    """Note how a process ended."""
    name, code = process.cell.name, process.process.returncode
    if code == 0:
        outcome.finished.append(name)
    elif code in (TRY_AGAIN, INTERRUPTED) or (process.asked and code == -signal.SIGTERM):
        outcome.stopped.append(name)
    elif is_busy(process.cell.folder):  # another atlas began it in the same moment
        outcome.busy.append(name)
    else:
        said = last_line(plan.log_of(process.cell))
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        outcome.failed[name] = f"{ended}: {said}" if said else ended


def _ask(running: Sequence[Running]) -> None:
    """Ask processes to stop."""
    for process in running:
        if process.process.poll() is None and not process.asked:  # a second one would not wait for its checkpoint
            process.process.send_signal(signal.SIGTERM)
            process.asked = True
