"""Which training images samples come closest to, by how much, and whether new images come as close."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias.metrics.neighbours import Neighbours


@dataclass(frozen=True)
class Leak:
    """A training image that samples are nearest to.

    Attributes:
        place: Its position among the training images.
        samples: How many samples have it as their nearest.
        sample: The number of the one of them that is closest to it, compared with the next training image.
        distance: Of that sample, per root of the number of pixels and channels, in data units.
        ratio: Of that distance to the one to the next different training image; 0 is a copy.
        p: Share of held-out images, and this sample, with a ratio as small (`1 + count` over `1 + number`).
        q: The false discovery rate at which it is found among all samples (Benjamini and Hochberg 1995).
    """

    place: int
    samples: int
    sample: int
    distance: float
    ratio: float
    p: float
    q: float


def ledger(samples: Neighbours, heldout: Neighbours, count: int, size: int) -> list[Leak]:
    """The training images that samples are nearest to, those that leak most surely first.

    A held-out image is a new draw of the distribution: under the hypothesis that a sample is one too, its p-value is
    uniform, and the procedure of Benjamini and Hochberg holds for such p-values, which share the held-out images (Bates
    et al. 2023, Ann. Statist. 51, 149). The smallest p-value is that of so many held-out images.

    Args:
        samples: The nearest training images of samples.
        heldout: Of held-out images.
        count: Number of training images; a mirrored copy counts as its image.
        size: Number of pixels times channels.
    """
    ratios, real = (part.first / part.second for part in (samples, heldout))
    known = ratios.isfinite()
    p = p_values(ratios, real)
    q = discovery_rates(p)
    places = samples.index % count
    found = []
    for place in places[known].unique().tolist():
        near = ((places == place) & known).nonzero().flatten()
        best = int(near[ratios[near].argmin()])
        distance = float(samples.first[best]) / size**0.5
        found.append(Leak(place, len(near), best, distance, float(ratios[best]), float(p[best]), float(q[best])))
    return sorted(found, key=lambda leak: (leak.ratio, leak.place))


def p_values(values: Tensor, reference: Tensor) -> Tensor:
    """For each value (S,) the share of it and of the reference (M,) that are as small; 1 for what is not a number."""
    ordered = reference[reference.isfinite()].sort().values
    below = torch.searchsorted(ordered, values.nan_to_num(torch.inf).contiguous(), right=True)
    return (1 + below.double()) / (1 + len(ordered))


def discovery_rates(p: Tensor) -> Tensor:
    """The smallest false discovery rates at which each of the p-values (S,) is rejected (Benjamini and Hochberg)."""
    order = p.argsort(descending=True)
    ranks = torch.arange(len(p), 0, -1, dtype=p.dtype, device=p.device)
    rates = (p[order] * len(p) / ranks).cummin(0).values.clamp(max=1)
    return torch.empty_like(p).scatter_(0, order, rates)
