"""Code that a configuration names is run where the configuration is somebody's own, not where a run is pointed to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gaussbias.config.sections import Config
from gaussbias.config.theories import family
from gaussbias.system.errors import UserError

CODE = ("data.source", "probes.theories", "probes.also")
"""Keys that may name functions, as `package.module:function`."""


def names_code(key: str, value: Any) -> bool:
    """Whether a value of such a key names a function; a theory may have a number instead."""
    texts = [value] if isinstance(value, str) else value or ()
    return any(":" in text and not (key == "probes.theories" and family(text)) for text in texts)


def own_cache(config: Config, repeated: Collection[str]) -> Config:
    """A configuration of a run folder, with images kept where this user keeps them, unless the user says where."""
    if "data.cache" in repeated:
        return config
    return replace(config, data=replace(config.data, cache="auto" if config.data.cache else None))


def check_code(keys: Mapping[str, Any], repeated: Collection[str], where: str) -> None:
    """Raise `UserError` for code that the configuration of a run folder names, unless the user names it as well.

    Args:
        keys: Values by `section.key`, of that configuration.
        repeated: Keys that the user gave.
        where: What the run folder was given as.
    """
    for key in CODE:
        value: Any = keys.get(key)
        if names_code(key, value) and key not in repeated:
            shown = value if isinstance(value, str) else f"[{','.join(value)}]"
            raise UserError(
                f"{where}: its configuration names code to run ({key}={shown}); if you trust that, give {key}=... on "
                "the command line as well"
            )
