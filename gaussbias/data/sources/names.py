"""Which files are images, and what is said of the others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from gaussbias.system.ranks import is_first

ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm", ".pnm")
COMPANIONS = ("dataset.json", "thumbs.db", "desktop.ini", ".ds_store")
"""Files that come with images, by themselves or with what EDM writes."""
NAMED, KINDS = 3, 6
"""Files and kinds of files that are named, at most."""


def image_names(names: Sequence[str]) -> list[str]:
    """Those that are images, sorted; hidden files, and those that macOS puts into archives, are left out."""
    return sorted(name for name in set(names) if name.lower().endswith(ENDINGS) and not _is_hidden(name))


def say_left_out(key: str, path: Path, names: Sequence[str], chosen: int, broken: Sequence[str] = ()) -> None:
    """Say in a line how many files are no images, and of which kind.

    Args:
        key: Configuration key to name.
        path: Where they are.
        names: Of all files.
        chosen: How many of them are images.
        broken: Links that lead nowhere.
    """
    kinds: Counter[str] = Counter()
    images = set(image_names(names))
    for name in set(names) - images:  # of which there are many
        last = PurePosixPath(name)
        if last.name.lower() in COMPANIONS or name.endswith("/"):  # a folder in a zip
            continue
        if _is_hidden(name):
            kinds["hidden"] += 1
        else:
            kinds[last.suffix.lower() or "without an ending"] += 1
    left = [f"{count:,} {kind:.20}" for kind, count in kinds.most_common(KINDS)]
    others = sum(kinds.values()) - sum(count for _, count in kinds.most_common(KINDS))
    left += [f"{others:,} others"] if others else []
    if broken:
        left.append(f"{len(broken):,} links to nowhere ({some(broken)})")
    if left:
        total = chosen + sum(kinds.values()) + len(broken)
        say_once(f"{key}: {chosen:,} of {total:,} files in {path} are images; left out: {', '.join(left)}")


def some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


@cache
def say_once(text: str) -> None:
    """Say something of the images; once, however often they are opened.

    Names in it may be from elsewhere: without what a terminal would obey.
    """
    if is_first():
        plain = "".join(c if c.isprintable() else "?" for c in text)
        logging.getLogger("gaussbias").warning("%s", plain)


def say_transparent(key: str, path: Path | str, names: Sequence[str], count: int) -> None:
    """Say that some of `count` images were put on white."""
    if names:
        say_once(
            f"{key}: {len(names):,} of {count:,} images from {path} are transparent somewhere, and were put on white: "
            f"{some(names)}"
        )


def _is_hidden(name: str) -> bool:
    if "__MACOSX" in name:
        return True
    return (name[:1] == "." or "/." in name) and any(part[:1] == "." and part != "." for part in name.split("/"))
