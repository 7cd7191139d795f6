"""Whether samples are nearer to the training images than new images would be, against an exact null.

If samples are new draws of the distribution that training and held-out images come from, all images are exchangeable:
the nearest image of a sample is a training image with probability `n_t / (n_t + n_h)`, whatever the sizes. Samples
share the images, so that their share has no binomial error. Its variance under the null is that over all ways to
relabel the images: for c_j samples nearest to image j, n = n_t + n_h images and S samples

    Var = n_t n_h / (n (n - 1))  sum_j (c_j - S/n)^2 / S^2.

That of the Mann-Whitney statistic, with ties, is the same of ranks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.stats import rankdata
from torch import Tensor

from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.metrics.neighbours import NearestImages

QUANTITIES = ("training", "heldout", "training_place", "heldout_place")


def relabelled(value: Tensor, scores: Tensor, labelled: int, scale: float) -> Estimate:
    """An estimate whose error is that over all ways to label so many of n scores.

    Args:
        value: A number, of the form `(sum of the labelled scores - constant) / scale`.
        scores: (n,).
        labelled: How many of them have the label.
        scale: What the sum is divided by.
    """
    others = len(scores) - labelled
    pseudo = value + (scores - scores.mean()) * ((labelled * others) ** 0.5 / scale)
    return Estimate(value, pseudo, torch.tensor(True))


def train_share(training: Tensor, heldout: Tensor, places: tuple[Tensor, Tensor], counts: tuple[int, int]) -> Estimate:
    """Share of samples whose nearest image of all is a training image; an equally near held-out image counts half.

    Args:
        training: Distances (S,) to the nearest training image.
        heldout: To the nearest held-out image.
        places: Which images these are, (S,) each.
        counts: Numbers n_t and n_h of images.
    """
    inside = (training < heldout).double() + (training == heldout).double() / 2
    nearest = torch.zeros(sum(counts), dtype=torch.float64)
    nearest.index_add_(0, places[0], inside).index_add_(0, counts[0] + places[1], 1 - inside)
    known = (training.isfinite() & heldout.isfinite()).all()
    value = torch.where(known, inside.mean(), torch.nan)
    return relabelled(value, nearest, counts[0], len(training))


def nearer(samples: Tensor, images: Tensor) -> Estimate:
    """Probability that a sample is nearer to its nearest training image than a held-out image is to its own.

    Args:
        samples: Distances (S,) of samples.
        images: Distances (M,) of held-out images.
    """
    both = torch.cat([images, samples])
    ranks = torch.from_numpy(rankdata(both.numpy())).masked_fill(~both.isfinite().all(), torch.nan)
    count = len(images)
    above = ranks[:count].sum() - count * (count + 1) / 2
    pairs = count * len(samples)
    return relabelled(above / pairs, ranks, count, pairs)


class Novelty(BlockMetric):
    """How near samples are to training images, compared with new images.

    `train_share` and `nearest_auc`: see the functions `train_share` and `nearer` of this file.

    Args:
        training: Search among all training images.
        heldout: Among the held-out images.
        samples: Number of samples.
        real: Distances (M,) of held-out images to their nearest training images.
    """

    real: Tensor

    def __init__(self, training: NearestImages, heldout: NearestImages, samples: int, real: Tensor) -> None:
        super().__init__(samples, 1, QUANTITIES)
        self.among_training, self.among_heldout = training, heldout
        self.register_buffer("real", real.double())

    def update(self, samples: Tensor, start: int = 0) -> None:
        """Measure samples (B, C, H, W) in data units, the first of which has number `start`."""
        training, heldout = self.among_training(samples), self.among_heldout(samples)
        values = (training.first, heldout.first, training.index, heldout.index)
        self.fill(
            slice(start, start + len(samples)),
            {name: value.double()[:, None] for name, value in zip(QUANTITIES, values, strict=True)},
        )

    def estimate(self, rows: Tensor) -> dict[str, Estimate]:
        """The share and the probability, from the rows of samples."""
        training, heldout, *places = rows[:, 0].unbind(1)
        sets = self.among_training.rows.images, self.among_heldout.rows.images
        # a mirrored copy counts as its image; a sample that is not a number has none
        first, second = (place.long().clamp(min=0) % len(images) for place, images in zip(places, sets, strict=True))
        counts = len(sets[0]), len(sets[1])
        found = {
            "train_share": train_share(training, heldout, (first, second), counts),
            "nearest_auc": nearer(training, self.real.cpu()),
        }
        return {
            name: replace(part, value=part.value[None], pseudo=part.pseudo[:, None], defined=part.defined[None])
            for name, part in found.items()
        }
