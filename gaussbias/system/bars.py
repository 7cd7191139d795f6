"""How far a measurement is: a bar on a terminal, else a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gaussbias.system.terminal import complain, duration

EVERY = 60.0
"""Seconds between two lines."""
Advance = Callable[[str, int, int], None]
"""Called with a name, the images that its network has denoised, and those that it will."""


@contextmanager
def bars() -> Iterator[Advance]:
    """What shows it on standard error; there is one thing at a time."""
    terminal = Console(stderr=True)
    with _bar(terminal) if terminal.is_terminal else _lines() as advance:
        yield advance


@contextmanager
def _bar(terminal: Console) -> Iterator[Advance]:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=terminal, transient=True)
    tasks: dict[str, TaskID] = {}

    def advance(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total)
            progress.start()
        progress.update(tasks[name], completed=done)
        if done >= total:  # a surrogate that is fitted next has a bar of its own
            progress.stop()
            progress.remove_task(tasks.pop(name))

    try:
        yield advance
    finally:
        progress.stop()


@contextmanager
def _lines() -> Iterator[Advance]:
    begun: dict[str, tuple[float, int]] = {}
    said = time.monotonic()

    def advance(name: str, done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        start, before = begun.setdefault(name, (now, done))  # it is told of the first ones when they are done
        if now - said >= EVERY and before < done < total:
            said = now
            left = (now - start) * (total - done) / (done - before)
            complain(f"{name}: {done / total:.0%} measured, about {duration(left)} left")

    yield advance
