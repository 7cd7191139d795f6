"""Where images come from: each source says how many it has and reads those that are asked for.

Images are channels first, `(N, C, H, W)`: uint8, or float32 in the units of the data for sources without
pixels (then nothing is rescaled).
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from einops import rearrange
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from gaussbias.errors import UserError
from gaussbias.seeding import generator


class Source(Protocol):
    """A set of images of one shape."""

    count: int

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices` (k,), as (k, C, H, W)."""
        ...


class TensorSource:
    """Images that are in memory already.

    Args:
        images: (N, C, H, W), uint8 or floating point.
    """

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.count = len(images)

    def read(self, indices: Tensor) -> Tensor:
        """The images at `indices`."""
        return self.images[indices]


def digits() -> TensorSource:
    """scikit-learn's 1,797 real 8 x 8 digits (Alpaydin and Kaynak, 1998), 0..16 stored as `round(v*255/16)`."""
    from sklearn.datasets import load_digits

    values = load_digits().images
    pixels = np.rint(values * (255 / 16)).astype(np.uint8)
    return TensorSource(torch.from_numpy(pixels)[:, None])


class EDMZip:
    """A zip of images with `dataset.json` beside them, the layout that EDM's and StyleGAN's tools write.

    Images are taken in the order of their names. Grey images have one channel, all others three.

    Args:
        path: The zip file.
        shape: Expected (C, H, W) of each image; `None` takes that of the first.
        key: Configuration key to name in messages.

    Raises:
        UserError: If the file is missing, not a zip, damaged, or holds images of different sizes.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int] | None = None, key: str = "data.path") -> None:
        self.path, self.key = path, key
        check_file(path, key)
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except zipfile.BadZipFile:
            raise UserError(
                f"{key}: expected a zip file, but {path} is not one or was cut short; copy or download it again"
            ) from None
        endings = Image.registered_extensions()
        # macOS puts files of its own beside the images
        visible = (name for name in names if not Path(name).name.startswith(".") and "__MACOSX" not in name)
        self.names = sorted(name for name in visible if Path(name).suffix.lower() in endings)
        self.count = len(self.names)
        if not self.names:
            raise UserError(f"{key}: expected images inside {path}, found {len(names)} other files")
        self.shape = shape

    def read(self, indices: Tensor) -> Tensor:
        """Decode the images at `indices`."""
        wanted = indices.tolist()
        images: np.ndarray | None = None
        with zipfile.ZipFile(self.path) as archive:
            for row, index in enumerate(wanted):
                image = self._decode(archive, self.names[index])
                if self.shape is None:
                    self.shape = (image.shape[0], image.shape[1], image.shape[2])
                if image.shape != self.shape:
                    raise UserError(
                        f"{self.key}: expected images of shape {_size(self.shape)}, but {self.names[index]} in "
                        f"{self.path} has {_size(image.shape)}"
                    )
                if images is None:
                    images = np.empty((len(wanted), *self.shape), dtype=np.uint8)
                images[row] = image
        assert images is not None
        return torch.from_numpy(images)

    def _decode(self, archive: zipfile.ZipFile, name: str) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(archive.read(name))) as image:
                if image.mode.startswith(("I", "F")):
                    raise UserError(f"{self.key}: expected 8-bit images, but {name} in {self.path} is {image.mode}")
                if image.mode in ("L", "LA", "1"):
                    return np.asarray(image.convert("L"), dtype=np.uint8)[None]
                return rearrange(np.asarray(image.convert("RGB"), dtype=np.uint8), "h w c -> c h w")
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            UnidentifiedImageError,
            OSError,
            SyntaxError,
            ValueError,
            RuntimeError,  # an encrypted file, or one compressed in another way
        ) as error:
            raise UserError(
                f"{self.key}: {name} in {self.path} does not decode ({error}); copy or download the file again"
            ) from None


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
                    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                    raise UserError(f"{key}: expected one array or one named images in {path}, found {shown}")
                loaded = archive[name]
        if not isinstance(loaded, np.ndarray):
            raise ValueError("it holds something else")
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{key}: expected a .npy or .npz file of numbers at {path}: {reason}") from None
    if loaded.ndim == 3:
        loaded = loaded[:, None]
    elif loaded.ndim == 4 and loaded.shape[1] not in (1, 3) and loaded.shape[3] in (1, 3):
        loaded = rearrange(loaded, "n h w c -> n c h w")
    if loaded.ndim != 4 or 0 in loaded.shape:
        raise UserError(f"{key}: expected images (N, C, H, W), got an array of shape {loaded.shape} in {path}")
    if loaded.dtype != np.uint8 and not np.issubdtype(loaded.dtype, np.floating):
        raise UserError(f"{key}: expected uint8 or floating-point images, got {loaded.dtype} in {path}")
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


GAUSSIAN_SHAPE = (3, 8, 8)
GAUSSIAN_COUNT = 20_000


def gaussian_moments(shape: tuple[int, int, int] = GAUSSIAN_SHAPE) -> tuple[Tensor, Tensor, Tensor]:
    """The exact moments of the `gaussian` source: mean (d,), eigenvalues (d,) and eigenvectors (d, d), float64.

    The spectrum is a power law that ends five decades down, as for natural images; the basis is random.
    """
    d = shape[0] * shape[1] * shape[2]
    random = generator("gaussian source", *shape)
    mean = 0.2 * torch.randn(d, generator=random, dtype=torch.float64)
    eigenvectors = torch.linalg.qr(torch.randn(d, d, generator=random, dtype=torch.float64)).Q
    eigenvalues = 10.0 * torch.arange(1, d + 1, dtype=torch.float64).pow(-2.2)
    return mean, eigenvalues, eigenvectors


def gaussian(count: int = GAUSSIAN_COUNT, shape: tuple[int, int, int] = GAUSSIAN_SHAPE) -> TensorSource:
    """Draws from a normal distribution whose moments are known (`gaussian_moments`), float32."""
    mean, eigenvalues, eigenvectors = gaussian_moments(shape)
    random = generator("gaussian source draws", *shape)
    normal = torch.randn(count, len(mean), generator=random, dtype=torch.float64)
    images = mean + (normal * eigenvalues.sqrt()) @ eigenvectors.T
    return TensorSource(images.float().unflatten(1, shape))


def check_file(path: Path, key: str) -> None:
    """Raise `UserError` unless `path` is a file that can be read."""
    if not path.exists():
        raise UserError(f"{key}: expected a file, found none at {path}")
    if not path.is_file():
        raise UserError(f"{key}: expected a file, but {path} is a folder")
    if not os.access(path, os.R_OK):
        raise UserError(f"{key}: expected a file that may be read, but {path} may not")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
