"""Where images come from: each source says how many it has and reads those that are asked for.

Images are channels first, `(N, C, H, W)`: uint8, or float32 in the units of the data for sources without
pixels (then nothing is rescaled).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gaussbias.config.sources import SOURCES, source_kind
from gaussbias.data.sources.arrays import array
from gaussbias.data.sources.base import Chosen, Source, TensorSource
from gaussbias.data.sources.cifar10 import cifar10
from gaussbias.data.sources.digits import digits
from gaussbias.data.sources.edm_zip import EDMZip
from gaussbias.data.sources.folder import ImageFolder
from gaussbias.data.sources.gaussian import gaussian, gaussian_moments
from gaussbias.data.sources.idx import idx
from gaussbias.data.sources.labels import NAMED, NoLabels, labels_of
from gaussbias.data.sources.names import say_once
from gaussbias.system.errors import UserError
from gaussbias.system.functions import call, load_function

__all__ = [
    "NAMED",
    "Chosen",
    "EDMZip",
    "ImageFolder",
    "NoLabels",
    "Source",
    "TensorSource",
    "array",
    "cifar10",
    "digits",
    "gaussian",
    "gaussian_moments",
    "idx",
    "labels_of",
    "open_source",
    "say_once",
]


SOURCE = "data.source"


def open_source(name: str, path: Path | None, resolution: int | None, key: str, layout: str | None = None) -> Source:
    """The source that `data.source` names, which reads `path`, the value of the configuration key `key`.

    Raises:
        UserError: If it cannot be read.
    """
    kind = source_kind(name)
    assert kind is not None
    given = {"path": path, "key": key, "resolution": resolution, "layout": layout}
    own = name not in SOURCES
    arguments = {argument: given[argument] for argument in kind.takes}
    images = call(name, SOURCE, path) if own else load_function(kind.opens, SOURCE)(**arguments)
    labels = None
    if isinstance(images, tuple) and len(images) == 2 and isinstance(images[1], Tensor):
        images, labels = images[0], lambda both=images: both[1]
    if isinstance(images, Tensor) and images.ndim == 4 and (images.dtype == torch.uint8 or images.is_floating_point()):
        return TensorSource(images, labels)
    if isinstance(images, Tensor) or not (hasattr(images, "count") and hasattr(images, "read")):
        got = f"{tuple(images.shape)} of {images.dtype}" if isinstance(images, Tensor) else type(images).__name__
        raise UserError(
            f"{SOURCE}: expected {name}() to give images (N, C, H, W), uint8 or floating point, these and their labels "
            f"(N,), or a Source, got {got}"
        )
    opened: Source = images
    return opened
