"""Differences between two pools of draws, whose sampling units are images.

Two pools that a network never saw differ in difficulty, and draws of one image are alike: the error of a difference has
to cover the choice of images. With the contribution of each draw to the difference (its influence), summed over the
draws of each image, the variance is the sum of the squares of these sums, times J / (J - 1) for the J images of a pool:
that of a mean over clusters. For the Mann-Whitney probability a draw contributes by its placement, the share of the
other pool that is above or below it (DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44, 837; for clusters
Obuchowski 1997, Biometrics 53, 567). Ties count half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias.metrics.blocks import Estimate


@dataclass(frozen=True)
class Drawn:
    """A value of each draw of a pool.

    Attributes:
        values: (S, M), float64.
        images: (M,), the number of the image that each was made of.
    """

    values: Tensor
    images: Tensor


def mean_difference(first: Drawn, second: Drawn) -> Estimate:
    """The mean of the second pool less that of the first, (S,), with pseudo-values of images."""
    means = [part.values.mean(1) for part in (first, second)]
    contributions = [
        sign * (part.values - mean[:, None]) / part.values.shape[1]
        for sign, part, mean in zip((-1, 1), (first, second), means, strict=True)
    ]
    return _by_images(means[1] - means[0], contributions, (first, second))


def probability_below(first: Drawn, second: Drawn) -> Estimate:
    """`P(first < second) + P(first = second) / 2` of two draws, (S,), with pseudo-values of images.

    The statistic of Mann and Whitney (1947, Ann. Math. Statist. 18, 50) over the number of pairs: the area under the
    curve of whoever tells the pools apart by a threshold.
    """
    above = _share_above(first.values, second.values)
    below = 1 - _share_above(second.values, first.values)
    value = above.mean(1)
    contributions = [(part - value[:, None]) / part.shape[1] for part in (above, below)]
    return _by_images(value, contributions, (first, second))


def _share_above(values: Tensor, others: Tensor) -> Tensor:
    """For each of the values (S, m) the share of others (S, n) above it; NaN if anything of a level is not a number."""
    ordered, sought = others.sort(1).values.contiguous(), values.contiguous()
    below = torch.searchsorted(ordered, sought) + torch.searchsorted(ordered, sought, right=True)
    unknown = values.isnan().any(1) | others.isnan().any(1)
    return (1 - below.double() / (2 * others.shape[1])).masked_fill(unknown[:, None], torch.nan)


def _by_images(value: Tensor, contributions: Sequence[Tensor], pools: Sequence[Drawn]) -> Estimate:
    """An estimate whose pseudo-values (J, S) are those of the images of all pools, from the contributions of draws."""
    rows = []
    for contribution, pool in zip(contributions, pools, strict=True):
        there, place = pool.images.unique(return_inverse=True)
        sums = contribution.new_zeros(len(there), len(value)).index_add_(0, place, contribution.T)
        correction = len(there) / (len(there) - 1) if len(there) > 1 else torch.nan
        rows.append(sums * correction**0.5)
    every = torch.cat(rows)
    # so that the variance of the pseudo-values over their number is the sum of squares
    pseudo = value + every * (len(every) * (len(every) - 1)) ** 0.5
    return Estimate(value, pseudo, torch.ones_like(value, dtype=torch.bool))
