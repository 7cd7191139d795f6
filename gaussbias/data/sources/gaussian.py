"""A normal distribution whose moments are known: the oracle for everything that is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.data.sources.base import TensorSource
from gaussbias.numerics.seeding import generator

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
