"""Pages of one file each, for a browser without network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
img { max-width: 100%; height: auto; display: block; margin: 0.8rem 0; }
.scroll { overflow-x: auto; } .scroll img { min-width: 640px; }
table { border-collapse: collapse; font-size: 0.9rem; } td, th { padding: 0.25rem 0.7rem 0.25rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #eee; }
.caption { color: #444; }
"""


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """A page of parts that are HTML already."""
    head = f"<title>{escape(title)}</title><style>{STYLE}{style}</style>"
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{meta}{head}</head>\n<body>\n{body}\n</body></html>\n'


def picture(file: Path, name: str) -> str:
    """A png, with its bytes in the page."""
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<div class="scroll"><img alt="{escape(name)}" src="data:image/png;base64,{data}"></div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return f'<div class="scroll"><table><tr>{titles}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def bullets(texts: Iterable[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
