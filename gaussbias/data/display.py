"""How images in data units become pictures, also those that are no grey or coloured images in -1..1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias.data.images import to_pixels, to_unit

COLOURS = (1, 3)
"""Channels that are shown as they are."""
LOOKED_AT = 1024
"""Images that a range and components are taken from."""
OUTER = 0.005
"""Share of the numbers that may lie below black, and above white."""


@dataclass(frozen=True)
class Display:
    """Pictures of images with any number of channels, in any units.

    Images of 1 or 3 channels are shown as they are. Of others the leading principal components of the channels are
    shown, three as colours, or of two channels one as grey.

    Attributes:
        low: The number that is black.
        high: The number that is white.
        mean: Of the channels (C,), float64; `None` shows them as they are.
        components: Directions in the space of the channels (K, C), of length 1, float64.
    """

    low: float = -1.0
    high: float = 1.0
    mean: Tensor | None = None
    components: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Pixels, uint8 (..., 1 or 3, H, W), of images (..., C, H, W) in data units or uint8."""
        if self is PIXELS and images.dtype == torch.uint8:
            return images
        shown = to_unit(images) if self.mean is None else self._project(to_unit(images), self.mean)
        return to_pixels(shown if self is PIXELS else (shown - self.low) * (2 / (self.high - self.low)) - 1)

    def stretched(self, image: Tensor) -> Tensor:
        """Pixels of a difference of images (..., C, H, W): 0 is grey, and its largest number white or black."""
        shown = image if self.components is None else self._project(image, None)
        return to_pixels(shown / shown.abs().max().clamp(min=1e-12))

    def _project(self, images: Tensor, mean: Tensor | None) -> Tensor:
        assert self.components is not None
        values = images.double() if mean is None else images.double() - mean.to(images.device)[:, None, None]
        return torch.einsum("kc,...chw->...khw", self.components.to(images.device), values)


PIXELS = Display()
"""Images in -1..1, grey or coloured."""


def display_of(images: Tensor) -> Display:
    """What shows images like these (N, C, H, W), uint8 or floating point in data units, best.

    Pixels and numbers in -1..1 are shown from -1 to 1, others from the 0.5th to the 99.5th percentile.
    """
    some = to_unit(images[:LOOKED_AT].cpu())
    channels = some.shape[1]
    if channels in COLOURS:
        if images.dtype == torch.uint8 or float(some.abs().max()) <= 1:
            return PIXELS
        return Display(*_range(some))
    pixels = some.movedim(1, -1).reshape(-1, channels).double()
    mean = pixels.mean(0)
    directions = torch.linalg.eigh((pixels - mean).T @ (pixels - mean))[1].T.flip(0)[: 3 if channels > 3 else 1]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()  # an eigenvector has none of its own
    low, high = _range(((pixels - mean) @ directions[0])[None])
    most = max(-low, high)
    return Display(-most, most, mean, directions)


def _range(values: Tensor) -> tuple[float, float]:
    """The percentiles that are black and white."""
    ordered = values.flatten().sort()[0]
    last = len(ordered) - 1
    low, high = float(ordered[round(OUTER * last)]), float(ordered[round((1 - OUTER) * last)])
    return (low, high) if high > low else (low - 1, high + 1)
