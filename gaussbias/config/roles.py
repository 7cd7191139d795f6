"""What a key of the configuration may be used for: stated once, beside the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from enum import Enum, auto
from functools import cache
from typing import Any


class Role(Enum):
    """A use of a key."""

    FREE = auto()
    """May differ when a run is continued."""
    FORCED = auto()
    """May with --force: curves then have a kink, but every value keeps its meaning."""
    PLACE = auto()
    """Says where a run is and what it computes on, and nothing of what it computes."""
    SAME = auto()
    """A run of another value comes to the same; `PLACE` is so as well."""
    AXIS = auto()
    """Runs of one study may differ in it."""
    METHOD = auto()
    """How a run is measured, on which values depend beyond the draws: runs of one study share it."""
    MEASURE = auto()
    """`gaussbias.measure` takes it."""
    PATH = auto()
    """How the path of the pool `trajectory` is sampled."""
    LENS = auto()
    """`gaussbias.lens` takes it."""
    FITTED = auto()
    """`gaussbias.lens --surrogate` takes it."""
    ABOVE_ZERO = auto()
    """A number above 0."""
    NOT_NEGATIVE = auto()
    """A number of 0 or more."""


def key(default: Any, *roles: Role) -> Any:
    """A key with a default value and its roles; a default of a list is given as a function that makes it."""
    metadata = {"roles": frozenset(roles)}
    if callable(default):
        make: Callable[[], Any] = default
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(make: Callable[[], Any], *kinds: str) -> Any:
    """A section, and the kinds of modules that it means something to; none means all."""
    return field(default_factory=make, metadata={"kinds": frozenset(kinds)})


@cache
def keys_with(*roles: Role) -> frozenset[str]:
    """The dotted names of all keys that have any of some roles."""
    return frozenset(name for name, own in _all_roles().items() if own & set(roles))


def takes(name: str, *roles: Role) -> bool:
    """Whether a key has any of some roles; a misspelt one if another key of its section has."""
    known = keys_with(*roles)
    section = name.partition(".")[0] + "."
    return name in known or (name not in _all_roles() and any(key.startswith(section) for key in known))


@cache
def without_meaning(kind: str) -> tuple[str, ...]:
    """What the names of sections begin with that mean nothing to a kind of module."""
    from gaussbias.config.sections import Config

    return tuple(
        f"{part.name}." for part in fields(Config) if part.metadata["kinds"] and kind not in part.metadata["kinds"]
    )


@cache
def _all_roles() -> dict[str, frozenset[Role]]:
    from gaussbias.config.sections import Config

    return {
        f"{part.name}.{entry.name}": entry.metadata.get("roles", frozenset())
        for part in fields(Config)
        for entry in fields(part.default_factory)  # type: ignore[arg-type]
    }
