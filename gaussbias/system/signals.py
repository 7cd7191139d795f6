"""How a run is asked to stop, and that it waits for a good moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

TRY_AGAIN = 75
"""Exit code of a run that was asked to stop and goes on with --resume: EX_TEMPFAIL of sysexits.h."""
INTERRUPTED = 130
"""That of one that was stopped from the keyboard, as shells have it."""


class Stopped(BaseException):
    """A run was asked to stop, and does: not an `Exception`, so that nothing that mends errors takes it for one."""

    def __init__(self, request: str, code: int) -> None:
        super().__init__(request)
        self.code = code


class StopRequest:
    """Notes the first SIGTERM, SIGUSR1 (which clusters send before they kill), SIGHUP (a closed terminal) or Ctrl-C.

    While `patient`, it is only noted, for training to end after the step; else `Stopped` is raised at once. A second
    Ctrl-C never waits. What this process was told to ignore (by nohup, or a shell for what runs behind it) it ignores.
    Works in a main thread; in others signals do what they did.

    Args:
        last: Whether the process ends after that: then signals that come on its way out do not change its exit code.
    """

    SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT")

    def __init__(self, last: bool = False) -> None:
        self.patient, self.last = False, last
        self.answer = "stopping at the next good moment, with a checkpoint"
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> StopRequest:
        """Note signals from here on."""
        if threading.current_thread() is threading.main_thread():
            numbers = [getattr(signal, name) for name in self.SIGNALS if hasattr(signal, name)]
            before = {number: signal.getsignal(number) for number in numbers}
            self._before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let signals do what they did."""
        for number, handler in self._before.items():
            if self.last and self.received is not None:
                signal.signal(number, signal.SIG_IGN)
            elif handler is not None:  # else it was not set by Python
                signal.signal(number, handler)
        self._before = {}

    def stopped(self) -> Stopped:
        """What to raise; a rank that got no signal stops because another one did."""
        name = "another rank" if self.received is None else self.received.name
        return Stopped(name, INTERRUPTED if self.received == signal.SIGINT else TRY_AGAIN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        if not again:
            self.received = signal.Signals(number)
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not (self.patient or again):
            raise self.stopped()
        if not again:  # not by print: a signal may come in the middle of one
            text = f"\n{signal.Signals(number).name}: {self.answer}\n"
            with suppress(OSError):  # nobody listens
                os.write(2, text.encode())
