"""Has pictures drawn beside what goes on, in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

log = logging.getLogger("gaussbias")
WORKER = "gaussbias.figures.worker"


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

    It is at most one measurement behind: pictures of the next one wait for those of the last. A picture that cannot be
    drawn is said once, and ends nothing.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._waiting: list[Drawn] = []
        self._drawn: list[Drawn] = []
        self._complained = False

    def submit(self, pictures: Sequence[Picture], kimg: float) -> None:
        """Have pictures drawn, once those before are."""
        self._take(wait=True)
        for picture in pictures:
            self._waiting.append(Drawn(picture, kimg))
        try:
            for picture in pictures:
                self._ask(picture)
        except OSError as error:  # no process can be started, or it is gone
            self._fail(f"{error.strerror or error}")

    def drawn(self, wait: bool = False) -> list[Drawn]:
        """Pictures that are new since this was last asked; all that were submitted if it shall wait for them."""
        self._take(wait)
        new, self._drawn = self._drawn, []
        return new

    def close(self) -> None:
        """End the process; what is not drawn is left."""
        if self._process is not None:
            process, self._process = self._process, None
            if process.stdin is not None:
                process.stdin.close()
            if self._waiting:
                process.kill()
            process.wait()
            self._waiting = []

    def _ask(self, picture: Picture) -> None:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        sources = [str(source.absolute()) for source in picture.sources]
        request = {"function": picture.function, "sources": sources, "path": str(picture.path.absolute())}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
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
        self._answers = SimpleQueue()
        Thread(target=_read, args=(process, self._answers), daemon=True).start()
        return process

    def _take(self, wait: bool) -> None:
        """Take the answers that are there, or all."""
        while self._waiting:
            try:
                answer = self._answers.get(block=wait)
            except Empty:
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
        self._waiting = []
        self.close()
        self._complain(path, why)

    def _complain(self, path: Path, why: str) -> None:
        if not self._complained:
            log.warning("%s could not be drawn (%s); the run goes on, and says no more of pictures", path, why)
        self._complained = True


def _read(process: subprocess.Popen[str], answers: SimpleQueue[str | None]) -> None:
    """Take down what a process says, until it ends."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            answers.put(json.loads(line))
    answers.put(None)
