"""How far samples are from the training images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias.data.images import same_image, to_unit
from gaussbias.data.rows import ImageRows, largest, round_off
from gaussbias.metrics.blocks import BlockMetric

QUANTITIES = ("relative_distance", "memorized")
CANDIDATES = 16
QUERIES = 64
"""Images that are searched for at a time."""
MEMORIZED = 1 / 3
"""A sample this much nearer to its nearest training image than to the next counts as memorised."""


@dataclass(frozen=True)
class Neighbours:
    """Distances of images to a training set, in data units, float64.

    Attributes:
        first: (B,), to the nearest training image.
        second: (B,), to the nearest training image that is a different one; infinite if there is none.
        index: (B,), position of the nearest training image; N or more is a mirrored copy.
        norm: (B,), norm of the images themselves.
    """

    first: Tensor
    second: Tensor
    index: Tensor
    norm: Tensor

    @property
    def relative(self) -> Tensor:
        """`||x - NN(x)|| / ||x||`, (B,)."""
        return self.first / self.norm

    @property
    def memorized(self) -> Tensor:
        """Whether `first / second < 1/3`, (B,)."""
        return self.first < MEMORIZED * self.second


class NearestImages:
    """The nearest and the second nearest different training image, by L2 distance of pixels.

    Candidates come from a centred product in float32, chunk by chunk; the best 16 are measured in float64. Where
    round-off could have hidden a nearer image from them, all images are measured in float64. Mirrored copies (with
    `flip`) belong to the set, but a mirrored copy or an exact duplicate of the nearest image is not a different one.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units, on any device.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time.
    """

    def __init__(self, images: Tensor, flip: bool = False, chunk: int = 4096) -> None:
        self.rows = ImageRows(images, flip)
        self.identity = same_image(images, flip).repeat(1 + flip)
        self.chunk = chunk
        self.centre = to_unit(images[:: max(1, len(images) // 4096)].flatten(1)).mean(0)
        norms = [(to_unit(part) - self.centre).norm(dim=1).max() for _, part in self.rows.chunks(chunk, images.device)]
        self.longest = float(torch.stack(norms).max())

    def __call__(self, x: Tensor) -> Neighbours:
        """Search for each of the images `x` (B, C, H, W), in data units."""
        parts = [self._search(rows) for rows in x.flatten(1).double().split(QUERIES)]
        return Neighbours(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def _search(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        identity, centre = self.identity.to(x.device), self.centre.to(x.device)
        query = (x - centre).float()
        scores = (
            (start, _score(query, to_unit(part) - centre)) for start, part in self.rows.chunks(self.chunk, x.device)
        )
        values, places = largest(scores, CANDIDATES)
        distances = (to_unit(self.rows.take(places), torch.float64) - x[:, None]).norm(dim=-1)
        first, best = distances.min(1)
        index = places.gather(1, best[:, None])[:, 0]
        different = identity[places] != identity[index][:, None]
        second = torch.where(different, distances, torch.inf).amin(1)
        if len(self.rows) > CANDIDATES:
            error = round_off(torch.float32, query.norm(dim=1).double(), self.longest)
            hidden = (values[:, 0] - values[:, -1]).double() < 2 * error
            for row in (hidden | second.isinf()).nonzero()[:, 0].tolist():
                first[row], second[row], index[row] = self._measure_all(x[row], identity)
        return first, second, index, x.norm(dim=1)

    def _measure_all(self, x: Tensor, identity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distances = x.new_empty(len(self.rows))
        for start, part in self.rows.chunks(self.chunk, x.device):
            distances[start : start + len(part)] = (to_unit(part, torch.float64) - x).norm(dim=1)
        first, index = distances.min(0)
        return first, torch.where(identity != identity[index], distances, torch.inf).min(), index


def _score(query: Tensor, images: Tensor) -> Tensor:
    """`||x||^2 / 2` less half the squared distance, (B, n)."""
    return query @ images.T - images.square().sum(1) / 2


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927).

    >>> low, high = wilson_interval(0, 100)
    >>> round(low, 4), round(high, 4)
    (0.0, 0.037)
    """
    z = 1.959963984540054
    share = successes / trials
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == trials else middle + half)


class GeneralizationScore(BlockMetric):
    """GL score and memorised fraction of samples (Li, Dai and Qu 2024, Section 2, arXiv 2410.24060).

    - `gl_score`: mean of `||x - NN(x)|| / ||x||`; the paper calls above 0.6 generalising. It rewards blur, so it
      means something beside the value of held-out images only.
    - `memorized_fraction`: share of samples at most a third as far from the nearest training image as from the
      next different one, with its 95 % Wilson interval in `memorized_fraction_low` and `_high`.

    Args:
        nearest: Search among the training images.
        samples: Number of samples.
    """

    def __init__(self, nearest: NearestImages, samples: int) -> None:
        super().__init__(samples, 1, QUANTITIES)
        self.nearest = nearest

    def update(self, samples: Tensor, start: int = 0) -> None:
        """Measure samples (B, C, H, W) in data units, the first of which has number `start`."""
        found = self.nearest(samples)
        values = dict(zip(QUANTITIES, (found.relative, found.memorized), strict=True))
        self.fill(slice(start, start + len(samples)), {name: value[:, None] for name, value in values.items()})

    def compute(self) -> dict[str, Tensor]:
        """The values by name."""
        means = super().compute()
        assert self.gathered is not None
        memorized = self.gathered[:, 0, 1]
        low, high = wilson_interval(float(memorized.sum()), len(memorized))
        return {
            "gl_score": means["relative_distance"][0],
            "memorized_fraction": means["memorized"][0],
            "memorized_fraction_low": torch.tensor(low, dtype=torch.float64),
            "memorized_fraction_high": torch.tensor(high, dtype=torch.float64),
        }
