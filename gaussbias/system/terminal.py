"""What is said in the terminal, and how commands end. A reader that went away never ends a run."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gaussbias.system.errors import TrainingError, UserError
from gaussbias.system.ranks import is_first, settle
from gaussbias.system.signals import INTERRUPTED

SHOWN = 1e-6
"""An error that is a smaller share of its value is not shown."""


class Parser(argparse.ArgumentParser):
    """Whose errors are one line, like all others."""

    def parse_overrides(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse options among section.key=value; --section.key=value is an override as well."""
        plain = [item[2:] if item.startswith("--") and "." in item.partition("=")[0] else item for item in arguments]
        return self.parse_intermixed_args(plain)

    def error(self, message: str) -> NoReturn:
        """Raise `UserError`."""
        raise UserError(f"{message}; usage: {self.format_usage().removeprefix('usage: ').strip()}")


def say(text: str, write: Callable[[str], object] = print) -> None:
    """Print, if somebody listens; characters that the terminal does not have as escapes."""
    try:
        try:
            write(text)
        except UnicodeEncodeError:
            write(text.encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # the pipe is closed, the disk full, or there is no output at all
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def complain(text: str) -> None:
    """Print on standard error, if somebody listens."""
    text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)  # names of files can hold anything
    with suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def command(name: str, run: Callable[[], int], alone: bool = True, interrupted: str = "") -> int:
    """Run a command; an error of the user's, or Ctrl-C, is one line on standard error, and its code is returned.

    Args:
        name: Of the command.
        run: Returns its exit code.
        alone: Whether it is one process, whatever launcher's variables are around it.
        interrupted: What Ctrl-C leaves.
    """
    if alone:
        settle()
    for stream in (sys.stdout, sys.stderr):  # one character that the terminal lacks would end all output
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _check_place()
        return run()
    except UserError as error:
        if is_first() or not isinstance(error, TrainingError):  # which all ranks raise together
            complain(f"{name}: {' '.join(str(error).splitlines())}")
        return error.code
    except KeyboardInterrupt:
        complain(f"{name}: interrupted{'; ' if interrupted else ''}{interrupted}")
        return INTERRUPTED
    except PermissionError as error:  # of a folder that may not be entered, wherever it was looked into
        complain(f"{name}: expected permission to use {error.filename}; check who may read and write it")
        return UserError.code
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        complain(
            f"{name}: the memory is full ({' '.join(str(error).split())[:160]}); fewer images at once take less "
            "(train.microbatch), or fewer draws (probes.block)"
        )
        return TrainingError.code


FULL = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""What libraries say of too little memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch found too little memory, on a GPU or on the CPU; without importing it."""
    said = str(error)
    return type(error).__name__ == "OutOfMemoryError" or any(words in said for words in FULL)


def _check_place() -> None:
    """Raise `UserError` if the working directory is gone, to which relative paths lead."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(
            f"expected a working directory, but this one cannot be used ({error.strerror}: it was removed?); cd to "
            "one that is there"
        ) from None


def listed(changed: Mapping[str, tuple[object, object]]) -> str:
    """Keys with their old and new values."""
    return ", ".join(f"{key} ({old} -> {new})" for key, (old, new) in changed.items())


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.2), duration(75), duration(5000), duration(400000)
    ('0 s', '75 s', '83 min', '111 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def with_error(value: float, error: float) -> str:
    """A value with its standard error in units of its last digit.

    >>> with_error(0.03642, 0.00091), with_error(164.2, 4.4), with_error(-2.3e-6, 7e-7), with_error(0.5, 0.0)
    ('0.0364(9)', '164(4)', '-2.3(7)e-6', '0.5')
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > SHOWN * abs(value)):
        return f"{value:.3g}"
    largest = max(abs(value), error)
    power = math.floor(math.log10(largest)) if not 1e-4 <= largest < 1e4 else 0
    value, error = value / 10.0**power, error / 10.0**power
    digits = max(0, -math.floor(math.log10(error)))
    if round(error * 10**digits) == 10:
        digits = max(0, digits - 1)
    return f"{value:.{digits}f}({round(error * 10**digits)})" + (f"e{power}" if power else "")


def add_audits(parser: argparse.ArgumentParser) -> None:
    """The options of an audit of samples, for commands that look at finished networks."""
    parser.add_argument(
        "--cycles",
        type=int,
        default=0,
        metavar="N",
        help="add noise to samples and sample them back N times, and count the memorised ones after each",
    )
    parser.add_argument(
        "--cycle-sigma", type=float, metavar="S", help="the noise of each cycle, in data units; default: 0.5"
    )


def check_audits(options: argparse.Namespace) -> None:
    """Raise `UserError` for audits that cannot be."""
    if options.cycles < 0:
        raise UserError(f"--cycles: expected a number of 0 or more, got {options.cycles}")
    if options.cycle_sigma is not None and not options.cycles:
        raise UserError(f"--cycle-sigma: expected --cycles N as well, got --cycle-sigma {options.cycle_sigma:g} alone")
    if options.cycle_sigma is not None and not 0 < options.cycle_sigma < math.inf:
        raise UserError(f"--cycle-sigma: expected a noise level above 0, got {options.cycle_sigma:g}")
