"""Errors that a user can cause: one line, no traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("gaussbias")
Made = TypeVar("Made")


class UserError(Exception):
    """A request that cannot be met; the message says what was expected, what came and what to do.

    The commands print it as one line and exit with `code`.
    """

    code = 2


class TrainingError(UserError):
    """A run that had to stop after it started; what it wrote so far stays. All ranks raise it together."""

    code = 1


def safely(what: str, write: Callable[..., Made], *arguments: Any) -> Made | None:
    """Write what a run can do without; what goes wrong is said, and never ends the run."""
    try:
        return write(*arguments)
    except Exception as error:  # the disk is full, matplotlib finds no fonts, W&B is away, ...
        why = " ".join(str(error).split()) or type(error).__name__
        log.warning("%s could not be written (%s); the run goes on", what, why)
        return None
