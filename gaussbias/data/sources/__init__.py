"""Where images come from: each source says how many it has and reads those that are asked for.

Images are channels first, `(N, C, H, W)`: uint8, or float32 in the units of the data for sources without
pixels (then nothing is rescaled).
"""

from __future__ import annotations

from pathlib import Path

from gaussbias.data.sources.arrays import array
from gaussbias.data.sources.base import Source, TensorSource
from gaussbias.data.sources.cifar10 import cifar10
from gaussbias.data.sources.digits import digits
from gaussbias.data.sources.edm_zip import EDMZip
from gaussbias.data.sources.folder import ImageFolder
from gaussbias.data.sources.gaussian import gaussian, gaussian_moments
from gaussbias.data.sources.idx import idx
from gaussbias.data.sources.names import say_once

__all__ = [
    "EDMZip",
    "ImageFolder",
    "Source",
    "TensorSource",
    "array",
    "cifar10",
    "digits",
    "gaussian",
    "gaussian_moments",
    "idx",
    "open_source",
    "say_once",
]


def open_source(kind: str, path: Path | None, resolution: int | None, key: str) -> Source:
    """The source of a kind, `data.source`, that reads `path`, the value of the configuration key `key`.

    Raises:
        UserError: If it cannot be read.
    """
    if kind == "digits":
        return digits()
    if kind == "gaussian":
        return gaussian()
    if kind == "cifar10":
        return cifar10(path, key, test=key == "data.heldout_path")
    assert path is not None
    if kind == "array":
        return array(path, key)
    if kind == "idx":
        return idx(path, key)
    if kind == "folder":
        return ImageFolder(path, resolution, key)
    return EDMZip(path, key=key)
