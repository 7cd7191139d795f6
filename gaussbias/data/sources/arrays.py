"""NumPy files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from einops import rearrange

from gaussbias.data.sources.base import TensorSource, check_file, check_members, check_size, from_mapped
from gaussbias.data.sources.labels import NoLabels
from gaussbias.data.sources.names import say_once
from gaussbias.system.errors import UserError

LABELS = ("labels", "y")
"""What arrays of labels are called."""
UNTOLD = "say which axis has the channels by data.layout=NCHW or data.layout=NHWC"
LARGEST = 16
"""Numbers from 0 up to more than this are taken for pixels that were saved as floating point."""


def channels_first(images: np.ndarray, path: Path, key: str, layout: str | None = None) -> np.ndarray:
    """Images (N, H, W), (N, C, H, W) or (N, H, W, C) as (N, C, H, W).

    With a layout, `NCHW` or `NHWC`, C may be any number. Without one C is 1 or 3; if both axes could have the channels
    they come first if the images are square that way alone. Other numbers of channels (not 2 or 4 of pixels, which have
    an alpha) come first, if they are fewer than the pixels of a side and the images are square. All else is refused,
    rather than guessed.
    """
    shape = tuple(images.shape)
    expected = "expected images (N, C, H, W) or (N, H, W, C) with 1 or 3 channels C, or (N, H, W)"
    wrong = f"{key}: {expected}, got {shape} in {path}"
    if 0 in shape or len(shape) not in (3, 4):
        advice = "; one image is no data set: stack several" if len(shape) == 2 else ""
        raise UserError(f"{wrong}{advice}")
    if len(shape) == 3:
        if shape[0] in (1, 3) or shape[2] in (1, 3) or (shape[2] == 4 and shape[0] == shape[1]):
            raise UserError(f"{wrong}, which may be one image; stack several, with a first axis of their number")
        return images[:, None]
    if layout is not None:
        return images if layout == "NCHW" else rearrange(images, "n h w c -> n c h w")
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    square = shape[2] == shape[3], shape[1] == shape[2]  # in either reading
    if first and last and (shape[1:] == (1, 1, 1) or square == (True, False)):
        return images
    if first and last:
        raise UserError(f"{wrong}, which could be either; {UNTOLD}")
    if first:
        return images
    if last:
        return rearrange(images, "n h w c -> n c h w")
    alpha = [axis for axis in (1, 3) if shape[axis] in (2, 4)] if images.dtype == np.uint8 else []
    if alpha:
        raise UserError(
            f"{wrong}; leave out the alpha channel, after you put the images on white, or if it is none, {UNTOLD}"
        )
    if shape[2] == shape[3] and shape[1] < shape[2]:
        return images
    raise UserError(f"{wrong}; {UNTOLD}")


def array(path: Path, key: str = "data.path", layout: str | None = None) -> TensorSource:
    """Images from a .npy file, or from the `images` or the only array but labels of a .npz file; never unpickled.

    Shapes (N, H, W), (N, C, H, W) and (N, H, W, C) with C in {1, 3} are told apart (`channels_first`), others by
    `layout`. uint8 is pixels; floating point is taken as it is, in units of its own ([-1, 1] for images). Labels are an
    array `labels` or `y`.

    Raises:
        UserError: For anything else, and for shapes that could be read in two ways.
    """
    check_file(path, key)
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded as archive:
                assert archive.zip is not None
                check_members(archive.zip, path, key)
                names = [name for name in archive.files if name not in LABELS] or archive.files
                name = "images" if "images" in names else names[0] if len(names) == 1 else None
                if name is None:
                    shown = (", ".join(names[:5]) or "none") + (", ..." if len(names) > 5 else "")
                    raise UserError(f"{key}: expected one array or one named images in {path}, found {shown}")
                check_size(archive.zip.getinfo(f"{name}.npy").file_size, f"{name} in {path}", key)
                loaded = archive[name]
        if not isinstance(loaded, np.ndarray):
            raise ValueError("it holds something else")
    except UserError:
        raise
    except Exception as error:  # np.load has no base class for what a damaged file raises
        reason = "it is not one" if "allow_pickle" in str(error) else " ".join(str(error).split())
        raise UserError(f"{key}: expected a .npy or .npz file of numbers at {path}: {reason}") from None
    if loaded.dtype != np.uint8 and not np.issubdtype(loaded.dtype, np.floating):
        raise UserError(f"{key}: expected uint8 or floating-point images, got {loaded.dtype} in {path}")
    loaded = channels_first(loaded, path, key, layout)
    if loaded.dtype == np.uint8 and isinstance(loaded, np.memmap):
        return TensorSource(from_mapped(loaded), lambda: _labels(path, key))  # what is not needed is not read
    check_size(loaded.size * (1 if loaded.dtype == np.uint8 else 4), f"{loaded.shape} in {path}", key)
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite, below
        images = torch.from_numpy(np.array(loaded, dtype=np.uint8 if loaded.dtype == np.uint8 else np.float32))
    if images.is_floating_point():
        if not images.isfinite().all():
            raise UserError(f"{key}: expected finite numbers in {path}, got NaN or infinity")
        if images.min() >= 0 and images.max() > LARGEST:
            raise UserError(
                f"{key}: expected floating-point images about 0 (pixels in -1..1), got numbers in {images.min():g}.."
                f"{images.max():g} in {path}; save pixels 0..255 as uint8, and subtract the mean of what is none"
            )
        if images.min() >= 0 and images.max() <= 1:
            say_once(
                f"{key}: the numbers in {path} lie in {images.min():g}..{images.max():g} and are taken as they are; if "
                "they are pixels in 0..1, save 2 x - 1, since images lie in -1..1"
            )
    return TensorSource(images, lambda: _labels(path, key))


def _labels(path: Path, key: str) -> np.ndarray:
    """The labels beside the images of a .npz file."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded as archive:
                assert archive.zip is not None
                found = [name for name in LABELS if name in archive.files]
                if len(found) > 1:
                    raise UserError(f"{key}: expected one array of labels in {path}, found {' and '.join(found)}")
                for name in found:
                    check_size(archive.zip.getinfo(f"{name}.npy").file_size, f"{name} in {path}", key)
                    labels: np.ndarray = archive[name]
                    return labels
    except UserError:
        raise
    except Exception as error:  # np.load has no base class for what a damaged file raises
        raise UserError(f"{key}: expected labels that are numbers in {path}: {' '.join(str(error).split())}") from None
    raise NoLabels(f"{key}: expected a .npz file with labels in an array {' or '.join(LABELS)}, found none in {path}")
