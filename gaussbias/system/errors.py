"""Errors that a user can cause: one line, no traceback."""

from __future__ import annotations


class UserError(Exception):
    """A request that cannot be met; the message says what was expected, what came and what to do.

    The commands print it as one line and exit with `code`.
    """

    code = 2


class TrainingError(UserError):
    """A run that had to stop after it started; what it wrote so far stays. All ranks raise it together."""

    code = 1
