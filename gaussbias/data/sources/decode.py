"""From the bytes of an image file to pixels."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from einops import rearrange
from PIL import Image, ImageOps, UnidentifiedImageError

from gaussbias.errors import UserError

BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    SyntaxError,
    ValueError,
    RuntimeError,  # an encrypted member of a zip, or one compressed in another way
)
"""What a damaged image file raises."""


def image_names(names: list[str]) -> list[str]:
    """Those that are images, sorted; hidden files, and those that macOS puts into archives, are left out."""
    endings = Image.registered_extensions()
    visible = (n for n in names if "__MACOSX" not in n and not any(part[0] == "." for part in Path(n).parts))
    return sorted(name for name in visible if Path(name).suffix.lower() in endings)


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours."""
    return image.mode in ("L", "LA", "1")


def decode(file: BinaryIO, grey: bool | None = None) -> np.ndarray:
    """The pixels of an image, upright, (C, H, W) uint8.

    Args:
        file: Its bytes.
        grey: One channel or three; `None`: what the image has.

    Raises:
        UserError: For more than 8 bits a channel.
    """
    with Image.open(file) as opened:
        if opened.mode.startswith(("I", "F")):
            raise UserError(f"expected 8 bits a channel, got mode {opened.mode}")
        image = ImageOps.exif_transpose(opened)
        if is_grey(opened) if grey is None else grey:
            return np.asarray(image.convert("L"), dtype=np.uint8)[None]
        return rearrange(np.asarray(image.convert("RGB"), dtype=np.uint8), "h w c -> c h w")
