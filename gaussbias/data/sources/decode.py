"""From image files to pixels."""

from __future__ import annotations

import re
import struct
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from gaussbias.system.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""By their contents, whatever a file is called; others have Pillow start programmes (EPS)."""
LARGEST_FILE = 2**28
"""Bytes of an image file, at most."""
LARGEST_IMAGE = 2**26
"""Pixels of an image, at most: 8,192 x 8,192. A small file can unpack to anything."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What puts an image of each orientation upright (Exif 2.32, tag 0x0112)."""
ORIENTATION, SHORT = 0x0112, 3


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours."""
    return image.mode in ("L", "LA", "1")


def orientation(image: Image.Image) -> int:
    """The orientation (1 to 8) of an image that was opened and not loaded: that before its pixels.

    It is in Exif data (JPEG, WebP, PNG's eXIf or the text that ImageMagick writes) or else in XMP. One that is no
    short, as the standard has it, or not in 1..8 is none. Pillow turns TIFFs itself.
    """
    if image.format == "TIFF":
        return 1
    exif = image.info.get("exif")
    if exif is None and isinstance(text := image.info.get("Raw profile type exif"), str):
        digits = "".join(text.split("\n")[3:])  # after a line break, its name and its length
        exif = bytes.fromhex(digits) if re.fullmatch(r"(?:[0-9a-fA-F]{2})*", digits) else None
    turned = _in_exif(exif) if isinstance(exif, bytes) else None
    if turned is None:
        xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp") or ""
        plain = xmp.decode("latin-1") if isinstance(xmp, bytes) else str(xmp)
        match = re.search(r'tiff:Orientation(?:="|>)([0-9])', plain)
        turned = int(match[1]) if match else None
    return turned if turned in TURNS else 1


def _in_exif(data: bytes) -> int | None:
    """The orientation in the first directory of Exif data, which is a small TIFF."""
    data = data.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 8:
        return None
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    if start + 2 > len(data):
        return None
    (count,) = struct.unpack_from(f"{order}H", data, start)
    for place in range(start + 2, min(start + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, number, value = struct.unpack_from(f"{order}HHIH", data, place)
        if tag == ORIENTATION:
            return int(value) if (kind, number) == (SHORT, 1) else None
    return None


def _check_header(image: Image.Image) -> None:
    """Raise `UserError` for an image that is not one picture of 8 bits a channel, or of an absurd size.

    Args:
        image: Opened, not loaded.
    """
    if image.width * image.height > LARGEST_IMAGE:
        raise UserError(f"expected at most {LARGEST_IMAGE:,} pixels, got {image.height:,} x {image.width:,}")
    tiles: list[Any] = getattr(image, "tile", [])
    # a BMP of 16 bits a pixel has 5 or 6 a channel; PNM files say their largest value
    arguments = [tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in tiles if len(tile) > 3]
    deep = image.format != "BMP" and any(";16" in str(part) for parts in arguments for part in parts)
    deep |= image.format == "PPM" and any(isinstance(part, int) and part > 255 for parts in arguments for part in parts)
    if deep or image.mode.startswith(("I", "F")):
        raise UserError("expected 8 bits a channel, got more; convert the images to 8 bits")
    # a JPEG of several (MPO) is a photograph with a preview or a map of its depth
    if image.format != "MPO" and getattr(image, "is_animated", False):
        count = getattr(image, "n_frames", "several")
        raise UserError(
            f"expected one picture, got {count} (frames or pages); save the one that is meant as a file of its own, or "
            "leave it out"
        )


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width as `decode` will give them, from the header alone."""
    return (image.width, image.height) if orientation(image) >= 5 else (image.height, image.width)


def decode(file: BinaryIO, grey: bool | None = None) -> tuple[np.ndarray, bool]:
    """The pixels of an image, upright and on white where it is transparent, (C, H, W) uint8; and whether it was.

    Args:
        file: Its bytes.
        grey: One channel or three; `None`: what the image has.

    Raises:
        UserError: If it is not one picture of 8 bits a channel, or of an absurd size.
    """
    with Image.open(file, formats=FORMATS) as opened:
        _check_header(opened)
        turn = orientation(opened)  # before the pixels: what stands after them does not count
        grey = is_grey(opened) if grey is None else grey
        image, transparent = _on_white(opened)
        image = image.convert("L" if grey else "RGB")
        if turn != 1:
            image = image.transpose(TURNS[turn])
        pixels = np.asarray(image, dtype=np.uint8)
        return (pixels[None] if grey else pixels.transpose(2, 0, 1)), transparent


def _on_white(image: Image.Image) -> tuple[Image.Image, bool]:
    """An image without transparency, and whether it had any: below it there may be any colour."""
    if not image.has_transparency_data:
        return image, False
    full = image.convert("RGBA")
    if full.getchannel("A").getextrema() == (255, 255):
        return image, False
    return Image.alpha_composite(Image.new("RGBA", full.size, "white"), full), True


def reason(error: Exception) -> str:
    """Why an image does not decode, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image"
    return " ".join(str(error).split()) or type(error).__name__
