"""`python -m benchmarks.startup`: what a run does until its first step, and how long each part takes.

A run of the embedded default (digits) starts in a process of its own; the marks in it are set from outside.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

MARK = "benchmarks.startup "
PARTS = (
    "Python and the configuration",
    "libraries",
    "images",
    "moments",
    "network",
    "loggers",
    "callbacks",
    "Lightning",
    "first measurement",
    "first step",
)


def seconds(arguments: Sequence[str] = ()) -> dict[str, float]:
    """Seconds of each part of a run with these overrides, in the order of time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.startup",
            f"run.root={folder}/runs",
            "train.kimg=0.256",
            *arguments,
        ]
        start = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    marks = [line.removeprefix(MARK).split() for line in done.stderr.splitlines() if line.startswith(MARK)]
    if done.returncode or len(marks) != len(PARTS):
        raise RuntimeError(f"the run ended with {done.returncode}: {done.stderr[-2000:]}")
    times = [start, *(float(mark[0]) for mark in marks)]
    return dict(zip(PARTS, (after - before for before, after in pairwise(times)), strict=True))


def table(parts: dict[str, float]) -> str:
    """The parts as lines."""
    lines = [f"  {name:30}{value:6.2f} s" for name, value in parts.items()]
    return "\n".join([*lines, f"  {'to the end of the first step':30}{sum(parts.values()):6.2f} s"])


def _mark() -> None:
    sys.stderr.write(f"{MARK}{time.time()}\n")


def _after(owner: Any, name: str, once: bool = False) -> None:
    """Set a mark after each call, or the first."""
    call: Callable[..., Any] = getattr(owner, name)
    done: list[bool] = []

    def marked(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        if not (once and done):
            _mark()
        done.append(True)
        return result

    setattr(owner, name, marked)


def _before(owner: Any, name: str) -> None:
    """Set a mark before each call."""
    call: Callable[..., Any] = getattr(owner, name)

    def marked(*arguments: Any, **keywords: Any) -> Any:
        _mark()
        return call(*arguments, **keywords)

    setattr(owner, name, marked)


def _run(overrides: list[str]) -> int:
    from gaussbias import config, fit

    config.load(None, overrides)
    _mark()
    from gaussbias import callbacks, loggers, modules
    from gaussbias.callbacks.schedule import MeasurementSchedule
    from gaussbias.modules import EDMModule
    from gaussbias.training import run

    _mark()
    _after(run, "build_data")
    _after(run, "read_or_estimate")
    _after(modules, "build")
    _after(loggers, "build")
    _after(callbacks, "build")
    _before(MeasurementSchedule, "on_train_start")
    _after(MeasurementSchedule, "on_train_start")
    _after(EDMModule, "training_step", once=True)
    return fit.main(overrides)


def main() -> None:
    """Show the parts of one start, with the processor's caches warm."""
    if any(argument.startswith("run.root=") for argument in sys.argv[1:]):
        sys.exit(_run(sys.argv[1:]))
    seconds(sys.argv[1:])
    sys.stdout.write(f"start of a run of digits:\n{table(seconds(sys.argv[1:]))}\n")


if __name__ == "__main__":
    main()
