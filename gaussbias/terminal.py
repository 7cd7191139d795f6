"""What is said in the terminal, and how commands end. A reader that went away never ends a run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from gaussbias.errors import UserError


class Parser(argparse.ArgumentParser):
    """Whose errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise `UserError`."""
        raise UserError(f"{message}; usage: {self.format_usage().removeprefix('usage: ').strip()}")


def say(text: str, write: Callable[[str], object] = print) -> None:
    """Print, if somebody listens."""
    try:
        write(text)
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # the pipe is closed, the disk full, or there is no output at all
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115


def command(name: str, run: Callable[[], int]) -> int:
    """Run a command; an error of the user's is one line on standard error, and its code is returned."""
    try:
        return run()
    except UserError as error:
        print(f"{name}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return error.code
