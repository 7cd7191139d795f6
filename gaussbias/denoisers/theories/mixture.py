"""The optimal denoiser of a mixture of Gaussians: one for each class, or for each cluster of the training images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers.base import Denoiser, on_grid, per_image
from gaussbias.moments import Moments


class MixtureDenoiser(Denoiser):
    """The posterior mean for a mixture of K normal distributions, `sum_c pi_c(x) D_G,c(x)`.

    With weights p_c, means mu_c and covariances `U_c diag(lam_c) U_c^T`, of full rank d or filled up with zeros,

        log pi_c = log p_c - 1/2 sum_k [(u_ck . (x - mu_c))^2 / (lam_ck + sigma^2) + log(lam_ck + sigma^2)] + const.

    One component is D_G, and each image as a component of its own D_M. All is float64: at small noise log pi_c is the
    difference of large numbers. The memory is that of K d x d matrices.

    Args:
        weights: p_c (K,), positive.
        means: (K, d), in data units.
        covariances: (K, d, d).
        shape: (C, H, W), with d = C*H*W.
    """

    weights: Tensor
    means: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    def __init__(self, weights: Tensor, means: Tensor, covariances: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        d = math.prod(shape)
        if means.shape != (len(weights), d) or covariances.shape != (len(weights), d, d):
            raise ValueError(
                f"Expected `means` {(len(weights), d)} and `covariances` {(len(weights), d, d)} but got "
                f"{tuple(means.shape)} and {tuple(covariances.shape)}."
            )
        self.shape = shape
        eigenvalues, eigenvectors = torch.linalg.eigh(covariances.double())
        self.register_buffer("weights", weights.double() / weights.double().sum())
        self.register_buffer("means", means.double())
        self.register_buffer("eigenvalues", eigenvalues.clamp(min=0))
        self.register_buffer("eigenvectors", eigenvectors)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().double()[None]
        points = x.flatten(1).double()
        parts = (((points - mean) @ basis)[None] for mean, basis in zip(self.means, self.eigenvectors, strict=True))
        return self._mix(parts, levels).view_as(x).to(x.dtype)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level; levels share the projections.

        Returns:
            (S, B, C, H, W).
        """
        levels = on_grid(sigmas, x0)
        clean, noise = x0.flatten(1).double(), eps.flatten(1).double()
        parts = (
            (clean - mean) @ basis + levels[..., None] * (noise @ basis)
            for mean, basis in zip(self.means, self.eigenvectors, strict=True)
        )
        return self._mix(parts, levels).view(len(sigmas), *x0.shape).to(x0.dtype)

    def _mix(self, parts: Iterator[Tensor], levels: Tensor) -> Tensor:
        """The mean (S, B, d) over components of what has the coordinates (S, B, d) of each, at levels (S, B)."""
        top = torch.full_like(levels, -torch.inf)
        total = torch.zeros_like(levels)
        summed = levels.new_zeros(*levels.shape, self.means.shape[1])
        for component, along in enumerate(parts):
            lam, variances, logit = self._likely(component, along, levels)
            clean = self.means[component] + (along * lam / variances) @ self.eigenvectors[component].T
            highest = torch.maximum(top, logit)
            shrink, weight = (top - highest).exp(), (logit - highest).exp()
            summed = summed * shrink[..., None] + weight[..., None] * clean
            total, top = total * shrink + weight, highest
        return summed / total[..., None]

    def _likely(self, component: int, along: Tensor, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lam (d,) of a component, `lam + sigma^2` (S, B, d), and log pi (S, B) up to what all have in common."""
        lam = self.eigenvalues[component]
        variances = lam + levels[..., None].square()
        logit = self.weights[component].log() - (along.square() / variances + variances.log()).sum(-1) / 2
        return lam, variances, logit

    def posterior(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """pi_c(x), the probabilities of the components given noisy images `x` (B, C, H, W); (B, K), float64."""
        levels, points = per_image(sigma, x).flatten().double()[None], x.flatten(1).double()
        logits = [
            self._likely(component, ((points - mean) @ basis)[None], levels)[2][0]
            for component, (mean, basis) in enumerate(zip(self.means, self.eigenvectors, strict=True))
        ]
        return torch.stack(logits, 1).softmax(1)


def mixture_of(images: Tensor, groups: Tensor, flip: bool = False) -> MixtureDenoiser:
    """The mixture with a component for each group of training images, shrunk where a group is small.

    The covariance of a group of N_c images is `w S_c + (1 - w) S`, w = `N_c / (N_c + d)`, with S the pooled covariance
    within groups: the groups' own ones have rank N_c - 1 at most, and would memorise. A single group keeps its own.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        groups: (N,), a number of the group of each; with flips (2N,) if mirrored copies have groups of their own.
        flip: Count the mirrored copy of each image as well.
    """
    both = torch.cat([images, mirror(images)]) if flip else images
    groups = groups.to(images.device)
    if flip and len(groups) == len(images):
        groups = groups.repeat(2)
    if len(groups) != len(both):
        raise ValueError(f"Expected `groups` of {len(both)} images but got {len(groups)}.")
    shape = tuple(images.shape[1:])
    counts, means, covariances = [], [], []
    for group in groups.unique().tolist():
        moments = Moments(shape, images.dtype == torch.uint8).to(images.device)
        chosen = both[groups == group]
        for part in chosen.split(4096):
            moments.update(part)
        mean, covariance = moments.compute()
        counts.append(len(chosen))
        means.append(mean)
        covariances.append(covariance)
    sizes = torch.tensor(counts, dtype=torch.float64, device=images.device)
    own = torch.stack(covariances)
    pooled = torch.einsum("c,cij->ij", sizes / sizes.sum(), own)
    share = (sizes / (sizes + math.prod(shape)))[:, None, None]
    return MixtureDenoiser(sizes, torch.stack(means), share * own + (1 - share) * pooled, shape)


def clustered(images: Tensor, count: int, flip: bool = False, seed: int = 0) -> MixtureDenoiser:
    """The mixture of so many clusters, by k-means (scikit-learn's, of 4 starts the best).

    Every process finds them for itself, the same ones on machines of one kind.

    Raises:
        ValueError: If there are fewer images than clusters.
    """
    from sklearn.cluster import KMeans

    both = torch.cat([images, mirror(images)]) if flip else images
    if not 1 <= count <= len(both):
        raise ValueError(f"Expected from 1 to {len(both)} clusters but got {count}.")
    found = KMeans(count, n_init=4, random_state=seed).fit_predict(to_unit(both).flatten(1).cpu().numpy())
    return mixture_of(images, torch.from_numpy(found).long(), flip)
