"""The samples themselves, of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric


class SampleImages(Metric):
    """Collects samples as pixels, each in its place.

    Args:
        samples: How many; each rank fills in its own.
        shape: (C, H, W).
    """

    full_state_update = False
    pixels: Tensor

    def __init__(self, samples: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.add_state("pixels", torch.zeros(samples, *shape, dtype=torch.uint8), "sum")

    def update(self, pixels: Tensor, start: int = 0) -> None:
        """Add images (B, C, H, W), uint8; the first has number `start`."""
        self.pixels[start : start + len(pixels)] = pixels

    def compute(self) -> Tensor:
        """All of them (samples, C, H, W), uint8."""
        return self.pixels.to(torch.uint8)  # a sum over ranks is int64
