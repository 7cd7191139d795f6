"""How theories are written in a configuration: `name`, `name:number`, or `[name=]package.module:function`."""

from __future__ import annotations

import re

_FAMILY = re.compile(r"([a-z_]+):([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?)")


def family(theory: str) -> tuple[str, float] | None:
    """The family and the number of `name:number`; `None` for what is written otherwise.

    >>> family("local:3"), family("mine:white"), family("small=local:3")
    (('local', 3.0), None, ('local', 3.0))
    """
    found = _FAMILY.fullmatch(theory.rpartition("=")[2])
    return None if found is None else (found[1], float(found[2]))


def names_function(theory: str) -> bool:
    """Whether it is code of the user's that makes it.

    >>> names_function("mine:white"), names_function("local:3"), names_function("wiener")
    (True, False, False)
    """
    return ":" in theory.rpartition("=")[2] and family(theory) is None


def theory_name(theory: str) -> str:
    """The name that it has where it is logged: what it is given, that of its function, or of its family and number.

    >>> theory_name("bump=mine.theories:make"), theory_name("mine.theories:make"), theory_name("bootstrap:0.5")
    ('bump', 'make', 'bootstrap-0p5')
    """
    name, equals, spec = theory.rpartition("=")
    if equals:
        return name
    return spec.replace(":", "-").replace(".", "p") if family(theory) else spec.rpartition(":")[2]


def listed(text: str) -> list[str]:
    """Theories that are separated by commas.

    >>> listed("bootstrap, local:3,")
    ['bootstrap', 'local:3']
    """
    return [part.strip() for part in text.split(",") if part.strip()]
