"""NumPy files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from einops import rearrange

from gaussbias.data.sources.base import TensorSource, check_file, check_names, check_size
from gaussbias.errors import UserError


def array(path: Path, key: str = "data.path") -> TensorSource:
    """Images from a .npy file, or from the only (or the `images`) array of a .npz file; never unpickled.

    Shapes (N, H, W), (N, C, H, W) and (N, H, W, C) with C in {1, 3} are told apart. uint8 is pixels; floating
    point is taken as it is, in data units ([-1, 1] for images).
    """
    check_file(path, key)
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded as archive:
                names = archive.files
                name = "images" if "images" in names else names[0] if len(names) == 1 else None
                if name is None:
                    shown = (", ".join(names[:5]) or "none") + (", ..." if len(names) > 5 else "")
                    raise UserError(f"{key}: expected one array or one named images in {path}, found {shown}")
                assert archive.zip is not None
                check_names(archive.zip, path, key)
                check_size(archive.zip.getinfo(f"{name}.npy").file_size, f"{name} in {path}", key)
                loaded = archive[name]
        if not isinstance(loaded, np.ndarray):
            raise ValueError("it holds something else")
    except UserError:
        raise
    except Exception as error:  # np.load has no base class for what a damaged file raises
        reason = "it is not one" if "allow_pickle" in str(error) else " ".join(str(error).split())
        raise UserError(f"{key}: expected a .npy or .npz file of numbers at {path}: {reason}") from None
    if loaded.ndim == 3:
        loaded = loaded[:, None]
    elif loaded.ndim == 4 and loaded.shape[1] not in (1, 3) and loaded.shape[3] in (1, 3):
        loaded = rearrange(loaded, "n h w c -> n c h w")
    if loaded.ndim == 4 and loaded.shape[3] == 4 and loaded.shape[1] == loaded.shape[2]:
        raise UserError(f"{key}: expected 1 or 3 channels at the end of {loaded.shape} in {path}; leave out the alpha")
    if loaded.ndim != 4 or 0 in loaded.shape:
        raise UserError(f"{key}: expected images (N, C, H, W), got an array of shape {loaded.shape} in {path}")
    if loaded.dtype != np.uint8 and not np.issubdtype(loaded.dtype, np.floating):
        raise UserError(f"{key}: expected uint8 or floating-point images, got {loaded.dtype} in {path}")
    check_size(loaded.size * (1 if loaded.dtype == np.uint8 else 4), f"{loaded.shape} in {path}", key)
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite, below
        images = torch.from_numpy(np.array(loaded, dtype=np.uint8 if loaded.dtype == np.uint8 else np.float32))
    if images.is_floating_point():
        if not images.isfinite().all():
            raise UserError(f"{key}: expected finite numbers in {path}, got NaN or infinity")
        if images.abs().max() > 16:
            raise UserError(
                f"{key}: expected floating-point images in data units (about [-1, 1]), got values up to "
                f"{images.abs().max():g} in {path}; save pixels 0..255 as uint8"
            )
    return TensorSource(images)
