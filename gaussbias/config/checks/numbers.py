"""Numbers and texts of any section."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from gaussbias.config.roles import Role, keys_with
from gaussbias.config.sections import Config
from gaussbias.system.errors import UserError

AT_LEAST_TWO = ("data.n_heldout", "probes.samples")


def check_numbers(config: Config) -> None:
    """Raise `UserError` for numbers that are too small or not finite, and for texts that cannot be stored."""
    for key in sorted(keys_with(Role.ABOVE_ZERO)):
        value = _get(config, key)
        if isinstance(value, (int, float)) and not value > 0:
            raise UserError(f"{key}: expected a number above 0, got {value}")
    for section in fields(config):
        for field in fields(getattr(config, section.name)):
            _check_value(f"{section.name}.{field.name}", _get(config, f"{section.name}.{field.name}"))
    for key in sorted(keys_with(Role.NOT_NEGATIVE)):
        if not _get(config, key) >= 0:
            raise UserError(f"{key}: expected 0 or more, got {_get(config, key)}")
    for key in AT_LEAST_TWO:
        if _get(config, key) is not None and _get(config, key) < 2:
            raise UserError(f"{key}: expected at least 2, got {_get(config, key)}")


def _check_value(key: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}: expected a finite number, got {value}")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not _is_unicode(text):  # a name of a file may be any bytes
            raise UserError(
                f"{key}: expected text in UTF-8, in which it can be stored, got {text!a}; rename the file or folder, "
                "or give a link to it"
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _get(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)
