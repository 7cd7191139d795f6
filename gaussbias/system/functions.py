"""Functions of the user's, named as `package.module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from gaussbias.system.errors import UserError


def check_function(spec: str, key: str) -> None:
    """Raise `UserError` for what is no `package.module:function`; nothing is imported."""
    module, colon, name = spec.partition(":")
    if not (module and colon and name.isidentifier()):
        raise UserError(f"{key}: expected package.module:function, got {spec!r}")


def load_function(spec: str, key: str) -> Callable[..., Any]:
    """The function that `package.module:function` names.

    Raises:
        UserError: If there is none.
    """
    check_function(spec, key)
    module, _, name = spec.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function
    except Exception as error:  # it is the user's code
        raise failed(spec, key, error) from None


def call(spec: str, key: str, *arguments: Any) -> Any:
    """What that function gives for some arguments.

    Raises:
        UserError: If it fails.
    """
    function = load_function(spec, key)
    try:
        return function(*arguments)
    except Exception as error:  # it is the user's code
        raise failed(spec, key, error) from None


def failed(spec: str, key: str, error: Exception) -> UserError:
    """What is said of a function that failed."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(f"{key}: {spec} could not be called ({reason})")
