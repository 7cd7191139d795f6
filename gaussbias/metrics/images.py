"""The samples themselves, of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric


class SampleImages(Metric):
    """Collects samples, each in its place.

    Args:
        samples: How many; each rank fills in its own.
        shape: (C, H, W).
        pixels: Whether they are uint8; else float32, in data units.
    """

    full_state_update = False
    images: Tensor

    def __init__(self, samples: int, shape: Sequence[int], pixels: bool = True) -> None:
        super().__init__()
        self.kind = torch.uint8 if pixels else torch.float32
        self.add_state("images", torch.zeros(samples, *shape, dtype=self.kind), "sum")

    def update(self, images: Tensor, start: int = 0) -> None:
        """Add images (B, C, H, W); the first has number `start`."""
        self.images[start : start + len(images)] = images

    def compute(self) -> Tensor:
        """All of them (samples, C, H, W)."""
        return self.images.to(self.kind)  # a sum of pixels over ranks is int64
