"""Has pictures drawn beside what goes on, in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

log = logging.getLogger("gaussbias")
WORKER = "gaussbias.figures.worker"
PATIENCE = 120.0
"""Seconds that a picture is waited for, before it is given up."""


@dataclass(frozen=True)
class Picture:
    """A picture that is drawn from files, in another process.

    Attributes:
        key: Its name for loggers.
        function: What draws it, as `package.module:function`, called with a list of `sources` and with `path`.
        sources: The files or folders that it shows.
        path: Where it goes.
    """

    key: str
    function: str
    sources: tuple[Path, ...]
    path: Path


@dataclass(frozen=True)
class Drawn:
    """A picture that was drawn.

    Attributes:
        picture: The picture.
        kimg: The time of what it shows.
    """

    picture: Picture
    kimg: float


class Drawer:
    """Draws the pictures of measurements while training goes on.

    A picture that cannot be drawn is said once, and ends nothing.
    """

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._waiting: list[Drawn] = []
        self._drawn: list[Drawn] = []
        self._complained = False

    def submit(self, pictures: Sequence[Picture], kimg: float) -> None:
        """Have pictures drawn, once those before are: it is at most one measurement behind."""
        self._take(wait=True)
        if self._worker is not None and self._worker.process.poll() is not None:
            self.close()  # it was ended by somebody, and has nothing to do
        self._waiting = [Drawn(picture, kimg) for picture in pictures]
        try:
            self._worker = self._worker or _Worker()
            for picture in pictures:
                self._worker.ask(picture)
        except OSError as error:  # no process can be started, or it is gone
            self._fail(f"{error.strerror or error}")

    def drawn(self, wait: bool = False) -> list[Drawn]:
        """Pictures that are new since this was last asked; all that were submitted if it shall wait for them."""
        self._take(wait)
        new, self._drawn = self._drawn, []
        return new

    def close(self) -> None:
        """End the process; what is not drawn is left."""
        if self._worker is not None:
            self._worker.end()
        self._worker, self._waiting = None, []

    def _take(self, wait: bool) -> None:
        """Take the answers that are there, or all."""
        while self._waiting and self._worker is not None:
            try:
                answer = self._worker.answers.get(block=wait, timeout=PATIENCE)
            except Empty:
                if wait:
                    self._fail(f"it took more than {PATIENCE:g} seconds")
                return
            if answer is None:
                self._fail("the process that draws them has ended")
                return
            asked, self._waiting = self._waiting[0], self._waiting[1:]
            if answer:
                self._complain(asked.picture.path, answer)
            else:
                self._drawn.append(asked)

    def _fail(self, why: str) -> None:
        """Give up what is waited for; the next pictures are tried again."""
        path = self._waiting[0].picture.path
        self.close()
        self._complain(path, why)

    def _complain(self, path: Path, why: str) -> None:
        if not self._complained:
            log.warning(
                "%s could not be drawn (%s); the run goes on without further messages about pictures", path, why
            )
        self._complained = True


class _Worker:
    """The process that draws, and what it has answered; `None` at its end."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[str | None] = SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            start_new_session=True,  # Ctrl-C is for the run, which ends this process
        )
        Thread(target=self._read, daemon=True).start()

    def ask(self, picture: Picture) -> None:
        """Ask for a picture; raises `OSError` if the process is gone."""
        assert self.process.stdin is not None
        sources = [str(source.absolute()) for source in picture.sources]
        request = {"function": picture.function, "sources": sources, "path": str(picture.path.absolute())}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it, by force: processes that were forked meanwhile (of a DataLoader) may hold its input open."""
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait()
        with suppress(OSError):  # what it did not read
            self.process.stdin.close()

    def _read(self) -> None:
        """Take down what it says, until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with suppress(ValueError):  # printed while Python started
                    answer = json.loads(line)
                    if isinstance(answer, str):
                        self.answers.put(answer)
        self.answers.put(None)
