"""What an atlas shows while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from gaussbias.atlas.plan import Plan
from gaussbias.atlas.workers import Outcome, Running
from gaussbias.system.bars import on_terminal
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import say

EVERY = 2.0
"""Seconds between looks into the folders of runs."""
TAIL = 65536
"""Bytes from the end of a history in which its last row is."""


class View:
    """A bar for the whole and one for each run in a terminal; elsewhere a line for each run that ends.

    Args:
        plan: The atlas.
        needed: Seconds that each cell is expected to take, by name; 0 for what is finished.
    """

    def __init__(self, plan: Plan, needed: Mapping[str, float]) -> None:
        self.plan, self.needed = plan, needed
        self.total = sum(needed.values())
        self.begun = time.monotonic()
        self._looked = 0.0
        self._said: set[str] = {name for name, seconds in needed.items() if seconds == 0}
        self._started: dict[str, float] = {}
        self.live = on_terminal()
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> View:
        """Begin."""
        if self.live:
            self._bars[""] = _bar("all", self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        for bar in self._bars.values():
            bar.close()

    def show(self, running: Sequence[Running], outcome: Outcome) -> None:
        """Show what runs and what is done."""
        for process in running:
            self._started.setdefault(process.cell.name, process.begun)
        self._say_ends(outcome)
        now = time.monotonic()
        if not self.live or now - self._looked < EVERY:
            return
        self._looked = now
        ended = {*outcome.finished, *outcome.failed, *outcome.stopped, *outcome.busy}
        done = sum(self.needed[name] for name in ended)
        names = {process.cell.name for process in running}
        for name in [name for name in self._bars if name and name not in names]:
            self._bars.pop(name).close()
        for process in running:
            config = process.cell.config
            kimg = reached(process.cell.folder)
            share = min(1.0, kimg / config.train.kimg) if config.module.kind == "edm" else 0.0
            done += share * self.needed[process.cell.name]
            if process.cell.name not in self._bars:
                self._bars[process.cell.name] = _bar(process.cell.name, 1.0)
            note = f"{kimg:g} of {config.train.kimg:g} kimg" if config.module.kind == "edm" else ""
            _set(self._bars[process.cell.name], share, note)
        left = (now - self.begun) * (self.total - done) / done if done > 0.02 * self.total else None
        note = f"{len(outcome.finished)} of {len(self.plan.cells)}" + (
            f", {len(outcome.failed)} failed" if outcome.failed else ""
        )
        note += "" if left is None else f", about {max(1, round(left / 60))} min left"
        _set(self._bars[""], done, note)

    def _say_ends(self, outcome: Outcome) -> None:
        """A line for each run that ended since the last look."""
        ended = [(name, "finished") for name in outcome.finished] + [(name, "failed") for name in outcome.failed]
        for name, how in ended:
            if name in self._said:
                continue
            self._said.add(name)
            took = f" after {time.monotonic() - self._started[name]:.0f} s" if name in self._started else ""
            line = f"{len(outcome.finished)} of {len(self.plan.cells)}: {name} {how}{took}"
            say(line, tqdm.write)  # above the bars, if there are any


def _bar(name: str, total: float) -> Any:
    form = "{desc} |{bar:24}| {postfix}"
    return tqdm(desc=name, total=total, bar_format=form, leave=False, dynamic_ncols=True)


def _set(bar: Any, done: float, note: str) -> None:
    bar.n = done
    bar.set_postfix_str(note)


def reached(folder: Path) -> float:
    """How far a run came, in kimg, from the end of its history."""
    try:
        with RunFolder(folder).history.open("rb") as file:
            place = file.readline().decode().strip().split(",").index("kimg")
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
        return max(float(lines[-1].split(",")[place]), 0.0)
    except (OSError, ValueError, IndexError):
        return 0.0
