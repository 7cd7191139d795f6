"""Draws pictures in a process of its own, as `Drawer` asks for them: `python -m gaussbias.figures.worker`.

A line on standard input is a picture, and a line on standard output says how it went. What was read for a picture is
kept for the next one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def answers(lines: Iterable[str]) -> Iterator[str]:
    """Draw what each line asks for, and say in a line why it could not be drawn; an empty text if it was."""
    for line in lines:
        request: dict[str, Any] = json.loads(line)
        yield json.dumps(draw(request["function"], [Path(file) for file in request["sources"]], Path(request["path"])))


def draw(function: str, sources: list[Path], path: Path) -> str:
    """Call `package.module:function`, made for pictures; why that failed, or nothing."""
    try:
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(sources, path)
    except Exception as error:  # matplotlib finds no fonts, the disk is full, a function of the user's, ...
        return " ".join(str(error).split()) or type(error).__name__
    return ""


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(5)  # training comes first
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints is no answer
    with suppress(BrokenPipeError, KeyboardInterrupt):
        for answer in answers(sys.stdin):
            print(answer, file=out, flush=True)
