"""What pairs of independent draws tell about a pool's affine fit.

On noisy images x of a pool P with mean mu_P and covariance Sigma_P = U diag(lam) U^T, let S = Sigma_P + sigma^2 I,
c = x - mu_P and z = S^-1 c. A function g has the closest affine map `E[g] + A c`, with `A = E[g z^T]`, and

    E||E[g] + A c||^2 = ||E[g]||^2 + tr(A S A^T),        ||A||_F^2

are products of two expectations. Over pairs of draws i != j they are single ones,

    affine      E[(g_i . g_j) (1 + c_i . z_j)]
    gap         E[(g_i . g_j) (z_i . z_j)]

so their means over the pairs of a block are unbiased, and no A is fitted or stored.

Their noise is that of the whole of g, though the affine part of g has nothing to do with the error of the fit. Control
variates take the noise of its simplest share away. For a map h that scales the directions of U, `h = U diag(b) U^T c`,
the parts of g - h differ from those of g by what is known exactly, so for every b

    affine + 2 b . s - b^2 . t,     gap - 2 b . s' + b^2 . t'

have the same expectation, where s, t, s', t' are means over draws less means over pairs, of expectation 0. The b of a
block comes from the other blocks alone, so nothing is biased. Directions are taken together in groups of like
eigenvalues; outside the span of U there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.moments import Eigenmoments

GROUPS = 64
"""Groups of directions, at most."""
OUTSIDE = 1e-6
"""Share of ||x0 - mu||^2 outside the span of a pool's images that is round-off."""
SAME = 1e-13
"""Relative difference of two sums that only equal noise has."""


class Pairs:
    """A block of draws `x0 + sigma eps` of a pool, and what its pairs weigh; all of it float64, and of no denoiser.

    With a = U^T c, `c_i . z_j = sum_k a_ik a_jk / (lam_k + sigma^2) + p_ij` and
    `z_i . z_j = sum_k a_ik a_jk / (lam_k + sigma^2)^2 + p_ij / sigma^2`. x0 lies in mu_P + span(U), so the part outside
    is noise alone: `p = eps eps^T - (eps U)(eps U)^T` at every level, 0 for a pool of full rank.

    Args:
        pool: Exact moments of the images that x0 was drawn from.
        x0: (m, C, H, W), drawn independently and with replacement.
        eps: Standard normal noise of the same shape, one a draw.
        sigmas: Noise levels (S,).

    Attributes:
        affine: (S, m, m), `1 + c_i . z_j`, 0 on the diagonal.
        gap: (S, m, m), `z_i . z_j`, 0 on the diagonal.
        scale: (S, J), the sum of `lam + sigma^2` over the directions of each group; the last is outside the span.
        squares: (S, 2, J), t and t'.
        mark: A number that no two independent blocks share.

    Raises:
        ValueError: For fewer than two draws, for draws that share their noise (or have each other's negative), which
            are not independent, and for images outside the span of the pool.
    """

    def __init__(self, pool: Eigenmoments, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> None:
        count, device = len(x0), eps.device
        if count < 2:
            raise ValueError(f"Expected at least 2 draws in a block, for a pair, but got {count}.")
        self.basis = pool.eigenvectors.to(device)
        size, rank = self.basis.shape
        self.sigmas = list(sigmas)
        self.clean, self.noise = x0.double().flatten(1) - pool.mean.to(device), eps.double().flatten(1)
        self.mark = _mark(self.noise)
        self.along_clean, self.along_noise = self.clean @ self.basis, self.noise @ self.basis
        norm = float(self.clean.square().sum())
        outside = norm - float(self.along_clean.square().sum())
        if outside > OUTSIDE * norm:
            raise ValueError(
                "Expected x0 from the images that the moments of the pool were taken of "
                f"but got {outside:.3g} of {norm:.3g} squared deviation outside their span."
            )
        rest = self.noise @ self.noise.T - self.along_noise @ self.along_noise.T
        self.full = rank == size
        self.variances = pool.eigenvalues.to(device) + torch.tensor(self.sigmas, device=device)[:, None].double() ** 2
        self.groups = _groups(rank).to(device)
        outside_scale = [[(size - rank) * sigma**2] for sigma in self.sigmas]
        self.scale = torch.cat([self._sums(self.variances), self.variances.new_tensor(outside_scale)], 1)
        others = 1 - torch.eye(count, dtype=torch.float64, device=device)
        affine, gap = [], []
        for level, sigma in enumerate(self.sigmas):
            along = self._along(level)
            whitened = along / self.variances[level]
            affine.append(others * (1 + along @ whitened.T + (0 if self.full else rest)))
            gap.append(others * (whitened @ whitened.T + (0 if self.full else rest / sigma**2)))
        self.affine, self.gap = torch.stack(affine), torch.stack(gap)
        self.squares = torch.stack([self.controls(level, self._c(level))[1:] for level in range(len(self.sigmas))])

    @property
    def nbytes(self) -> int:
        """Memory, but for the pool's basis."""
        own = (self.affine, self.gap, self.clean, self.noise, self.along_clean, self.along_noise)
        return sum(part.nbytes for part in own)

    def means(self, level: int, products: Tensor) -> tuple[Tensor, Tensor]:
        """Means over pairs of products (m, m), weighed for the affine part and for the gap."""
        count = len(products) * (len(products) - 1)
        return (products * self.affine[level]).sum() / count, (products * self.gap[level]).sum() / count

    def controls(self, level: int, g: Tensor) -> Tensor:
        """Of values g (m, d) at the draws: `b * scale`, s and s' of each group, (3, J)."""
        count = len(g) * (len(g) - 1)
        along, values = self._along(level), g @ self.basis
        whitened = along / self.variances[level]
        inside = torch.stack(
            [
                self._sums((values * along).mean(0)),
                self._sums((values * whitened).mean(0)),
                self._sums((values * (self.affine[level] @ along)).sum(0) / count),
                self._sums((values * (self.gap[level] @ along)).sum(0) / count),
            ]
        )
        outside = inside.new_zeros(4, 1)
        if not self.full:
            products = g @ self._c(level).T
            alone = products.diagonal().mean() - inside[0].sum()
            affine, gap = self.means(level, products)
            parts = [alone, alone / self.sigmas[level] ** 2, affine - inside[2].sum(), gap - inside[3].sum()]
            outside = torch.stack(parts)[:, None]
        alone, whitened_alone, affine, gap = torch.cat([inside, outside], 1)
        return torch.stack([alone, alone - affine, gap - whitened_alone])

    def _c(self, level: int) -> Tensor:
        return self.clean + self.sigmas[level] * self.noise

    def _along(self, level: int) -> Tensor:
        return self.along_clean + self.sigmas[level] * self.along_noise

    def _sums(self, values: Tensor) -> Tensor:
        """Sums over groups of (..., r), as (..., J - 1)."""
        size = int(self.groups[-1]) + 1 if len(self.groups) else 0
        return values.new_zeros(*values.shape[:-1], size).index_add_(-1, self.groups, values)


def with_controls(affine: Tensor, gap: Tensor, controls: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The means over pairs of blocks, less the noise that the other blocks' b foretell.

    Args:
        affine: (B, S), from `Pairs.means`.
        gap: (B, S).
        controls: (B, S, 5, J), from `Pairs.controls` and `Pairs.squares`.
        scale: (S, J).

    Returns:
        Both, with the same expectations; unchanged for a single block.
    """
    if len(affine) == 1:
        return affine, gap
    own, s, s_gap, t, t_gap = controls.unbind(2)
    others = (own.sum(0) - own) / (len(own) - 1)
    b = torch.where(scale > 0, others / scale.where(scale > 0, 1.0), 0.0)
    return affine + (2 * b * s - b.square() * t).sum(-1), gap - (2 * b * s_gap - b.square() * t_gap).sum(-1)


def group_count(pool: Eigenmoments) -> int:
    """J of a pool."""
    groups = _groups(pool.eigenvectors.shape[1])
    return int(groups[-1]) + 2 if len(groups) else 1


def _groups(rank: int) -> Tensor:
    """The group of each of so many directions: each of the leading ones its own, then ever larger ones."""
    if rank <= GROUPS:
        return torch.arange(rank)
    edges = torch.logspace(0, torch.tensor(rank + 1.0).log10().item(), GROUPS + 1, dtype=torch.float64).round().unique()
    return torch.bucketize(torch.arange(1, rank + 1, dtype=torch.float64), edges, right=True) - 1


def _mark(noise: Tensor) -> float:
    """A number that names the noise of a block; raises `ValueError` for noise that occurs in it twice."""
    weights = torch.arange(1, noise.shape[1] + 1, dtype=noise.dtype, device=noise.device).sqrt()
    sums = (noise * weights).sum(1).abs()
    if repeated(sums):
        raise ValueError("Expected independent draws but got some with the same noise, or one the negative of another.")
    return float(sums.sum())


def repeated(numbers: Tensor) -> bool:
    """Whether two of some positive numbers (n,) are the same up to round-off."""
    ordered = numbers.sort().values
    return bool((ordered.diff() <= SAME * ordered[1:]).any())
