"""Nearest training images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case
from gaussbias.data.images import to_unit
from gaussbias.metrics.neighbours import DIRECTIONS, NearestImages

QUERIES = 1000
CHECKED = 16
CHUNK = 512


def cases(images: Tensor) -> Iterator[Case]:
    """Against `cdist` and a sort; with the index made, which is done once a run, and with making it."""
    queries, d = min(QUERIES, len(images) // 2), images[0].numel()
    training, x = images[queries:], to_unit(images[:queries])
    nearest = NearestImages(training)

    def usual() -> Tensor:
        distances = torch.cdist(x.flatten(1), to_unit(training.flatten(1)))
        return distances.gather(1, distances.argsort(1)[:, :2])

    def ours(nearest: NearestImages = nearest) -> Tensor:
        found = nearest(x)
        return torch.stack([found.first, found.second], 1)

    exact = torch.full((CHECKED, 2), torch.inf, dtype=torch.float64, device=images.device)
    for start in range(0, len(training), CHUNK):
        part = to_unit(training[start : start + CHUNK].flatten(1), torch.float64)
        rows = torch.stack([(part - row).norm(dim=1) for row in x[:CHECKED].double().flatten(1)])
        exact = torch.cat([exact, rows], 1).topk(2, largest=False).values

    def error(value: Tensor) -> float:
        return float(((value[:CHECKED].double() - exact) / exact).abs().max())

    directions = min(DIRECTIONS, d)
    size = f"d={d}, N={len(training)}, k={queries}"
    search = 2.0 * queries * len(training) * directions
    yield Case("nearest images", size, usual, ours, error, 10, search)
    make = 2.0 * len(training) * d * directions
    yield Case("nearest images, and index", size, usual, lambda: ours(NearestImages(training)), error, 1, search + make)
