"""What a lens shows while it measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gaussbias.lens.looking import Advance


@contextmanager
def bars() -> Iterator[Advance]:
    """A bar for the checkpoint at hand, on a terminal, while it is measured."""
    terminal = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    tasks: dict[str, TaskID] = {}

    def advance(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total)
            progress.start()
        progress.update(tasks[name], completed=done)
        if done == total:  # a surrogate that is fitted next has a bar of its own
            progress.stop()
            progress.remove_task(tasks.pop(name))

    try:
        yield advance
    finally:
        progress.stop()
