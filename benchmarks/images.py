"""The images that benchmarks run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gaussbias.data.images import downsample
from gaussbias.data.sources import EDMZip


def read_images(path: Path | None, count: int, resolution: int) -> Tensor:
    """Images of a file, or synthetic ones."""
    if path is not None:
        source = EDMZip(path)
        return downsample(source.read(torch.arange(min(count, source.count))), resolution)
    return torch.cat(list(_synthetic(count, resolution)))


def _synthetic(count: int, resolution: int) -> Iterator[Tensor]:
    """Colour images with the spectrum of photographs: amplitudes fall like 1/f, and channels are alike."""
    random = torch.Generator().manual_seed(0)
    f = torch.fft.fftfreq(resolution)[:, None].square() + torch.fft.rfftfreq(resolution).square()
    amplitude = 1 / f.sqrt().clamp(min=0.5 / resolution)
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        noise = torch.randn(size, 3, resolution, resolution, generator=random)
        noise = noise.mean(1, keepdim=True) + 0.2 * noise
        fields = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(resolution, resolution))
        yield (128 + 64 * fields / fields.std()).round().clamp(0, 255).to(torch.uint8)
