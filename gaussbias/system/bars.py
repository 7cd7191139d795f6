"""How far a measurement is: a bar on a terminal, else a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from gaussbias.system.terminal import complain, duration

EVERY = 60.0
"""Seconds between two lines."""
Advance = Callable[[str, int, int], None]
"""Called with a name, the images that its network has denoised, and those that it will."""


def on_terminal() -> bool:
    """Whether somebody sees standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bars() -> Iterator[Advance]:
    """What shows it on standard error; there is one thing at a time."""
    with _bar() if on_terminal() else _lines() as advance:
        yield advance


@contextmanager
def _bar() -> Iterator[Advance]:
    shown: dict[str, Any] = {}

    def advance(name: str, done: int, total: int) -> None:
        if name not in shown:
            form = "{desc} |{bar}| {percentage:.0f} %, {remaining} left"
            shown[name] = tqdm(desc=name, total=total, bar_format=form, leave=False, dynamic_ncols=True)
        shown[name].update(done - shown[name].n)
        if done >= total:  # a surrogate that is fitted next has a bar of its own
            shown.pop(name).close()

    try:
        yield advance
    finally:
        for bar in shown.values():
            bar.close()


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
