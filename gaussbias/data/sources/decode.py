"""From image files to pixels."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from gaussbias.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""By their contents, whatever a file is called; others have Pillow start programmes (EPS)."""
LARGEST_FILE = 2**28
"""Bytes of an image file, at most ..."""
LARGEST_IMAGE = 2**26
"""... and pixels: 8,192 x 8,192. A small file can unpack to anything."""
ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pbm", ".pnm")


def image_names(names: list[str]) -> list[str]:
    """Those that are images, sorted; hidden files, and those that macOS puts into archives, are left out."""
    chosen = (name for name in set(names) if name.lower().endswith(ENDINGS) and "__MACOSX" not in name)
    return sorted(name for name in chosen if not any(part[:1] == "." and part != "." for part in name.split("/")))


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours."""
    return image.mode in ("L", "LA", "1")


def _is_described(image: Image.Image) -> bool:
    """Whether a JPEG or PNG says anything of how it was taken."""
    return any(key in image.info for key in ("exif", "xmp", "XML:com.adobe.xmp"))


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width as `decode` will give them, from the header alone."""
    lying = _is_described(image) and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (image.width, image.height) if lying else (image.height, image.width)


def decode(file: BinaryIO, grey: bool | None = None) -> np.ndarray:
    """The pixels of an image, upright and without transparency, (C, H, W) uint8.

    Args:
        file: Its bytes.
        grey: One channel or three; `None`: what the image has.

    Raises:
        UserError: For more than 8 bits a channel, or an absurd size.
    """
    with Image.open(file, formats=FORMATS) as opened:
        if opened.width * opened.height > LARGEST_IMAGE:
            raise UserError(f"expected at most {LARGEST_IMAGE:,} pixels, got {opened.height:,} x {opened.width:,}")
        deep = any(";16" in str(tile[3]) for tile in opened.tile if len(tile) > 3)
        if deep or opened.mode.startswith(("I", "F")):
            raise UserError("expected 8 bits a channel, got more; convert the images to 8 bits")
        upright = opened.format in ("JPEG", "PNG") and not _is_described(opened)  # turning takes as long as decoding
        image = opened if upright else ImageOps.exif_transpose(opened)
        if is_grey(opened) if grey is None else grey:
            return np.asarray(image.convert("L"), dtype=np.uint8)[None]
        return np.asarray(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1)


def reason(error: Exception) -> str:
    """Why an image does not decode, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image"
    return " ".join(str(error).split()) or type(error).__name__
