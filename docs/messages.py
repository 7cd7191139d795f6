"""Prints every error and warning of the package, file by file, to be read as one text: `python docs/messages.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "gaussbias"
SAYS = {"UserError", "TrainingError", "ValueError", "TypeError", "RuntimeError", "warning", "info", "say", "complain"}
SAYS |= {"say_once", "error", "warn"}


def messages(file: Path) -> Iterator[tuple[int, str, str]]:
    """The line, the name of what says it, and the text, with what is filled in in braces, of each message of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        text = _text(node.args[0])
        if name in SAYS and " " in text:
            yield node.lineno, name, text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return "{" + ast.unparse(inner) + "}"


if __name__ == "__main__":
    for path in sorted(PACKAGE.rglob("*.py")):
        found = sorted(messages(path))
        if found:
            print(f"\n{path.relative_to(PACKAGE)}")
        for line, name, text in found:
            print(f"  {line:4} {name:13} {text}")
