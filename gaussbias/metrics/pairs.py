"""What pairs of independent draws tell about a pool's affine fit.

On noisy images x of a pool P with mean mu_P and covariance Sigma_P = U diag(lam) U^T, let S = Sigma_P + sigma^2 I,
c = x - mu_P and z = S^-1 c. A function g has the closest affine map `E[g] + A c`, with `A = E[g z^T]`, and

    E||E[g] + A c||^2 = ||E[g]||^2 + tr(A S A^T),        ||A||_F^2

are products of two expectations. Over pairs of draws i != j they are single ones,

    affine      E[(g_i . g_j) (1 + c_i . z_j)]
    gap         E[(g_i . g_j) (z_i . z_j)]

so their means over the pairs of a block are unbiased, and no A is fitted or stored.

Their noise is that of the whole of g, though the affine part of g has nothing to do with the error of a fit. Control
variates take the noise of its simplest share away. For bilinear means over draws and over pairs of a block,

    Q(g, h) = mean over i of g_i . h_i  -  mean over i != j of (g_i . h_j) (1 + c_i . z_j)

has the expectation 0 whenever h is affine. So for any h = a + U diag(b) U^T c, the

    affine part + 2 Q(g, h) - Q(h, h)

of a block has the same expectation, and its noise is that of g - h. The a and b of a block come from the other blocks
alone, so nothing is biased: a is the mean of g along the leading directions of U, b its slopes along all of them, taken
together in groups of like eigenvalues (outside the span of U there is one). The gap has controls of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.moments import Eigenmoments

GROUPS = 64
"""Groups of directions, at most."""
CONSTANTS = 64
"""Leading directions along which a is taken."""
OUTSIDE = 1e-6
"""Share of ||x0 - mu||^2 outside the span of a pool's images that is round-off ..."""
ROUNDED = 2**-23
"""... and that of ||x0||, in which x0 is rounded."""
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
        groups: (r,), the group of each direction.
        mark: A number that no two independent blocks share.

    Raises:
        ValueError: For fewer than two draws, for draws that share their noise (or have each other's negative), which
            are not independent, and for images outside the span of the pool.
    """

    def __init__(self, pool: Eigenmoments, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> None:
        count, device = len(x0), eps.device
        if count < 2:
            raise ValueError(f"Expected at least 2 draws in a block, for a pair, but got {count}.")
        self.basis = pool.eigenvectors.to(device)  # the pool's own, not a copy, if it is on this device
        size, rank = self.basis.shape
        self.sigmas = list(sigmas)
        self.clean, self.noise = x0.double().flatten(1) - pool.mean.to(device), eps.double().flatten(1)
        self.mark = _mark(self.noise)
        self.along_clean, self.along_noise = self.clean @ self.basis, self.noise @ self.basis
        norm = float(self.clean.square().sum())
        outside = norm - float(self.along_clean.square().sum())
        # images that hardly differ deviate by less than float32 rounds them
        rounding = ROUNDED**2 * float(x0.double().square().sum())
        if outside > OUTSIDE * norm + rounding:
            raise ValueError(
                "Expected x0 from the images that the moments of the pool were taken of "
                f"but got {outside:.3g} of {norm:.3g} squared deviation outside their span."
            )
        rest = self.noise @ self.noise.T - self.along_noise @ self.along_noise.T
        self.full = rank == size
        levels = torch.tensor(self.sigmas, dtype=torch.float64, device=device)[:, None]
        self.variances = pool.eigenvalues.to(device) + levels.square()
        groups = _groups(rank)
        self._inside = int(groups[-1]) + 1 if rank else 0  # groups but for the one outside the span
        self.groups = groups.to(device)
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
        self._own = [self._slopes(level, self._c(level), self._along(level)) for level in range(len(self.sigmas))]

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
        """What other blocks' a and b multiply, of values g (m, d) at the draws; `with_controls` reads it.

        (5, J) of groups: `b * scale`, Q(g, h) for the unit slope h and the same of the gap, and both for g = h. (5, K)
        of the leading directions: a, Q(g, 1) and Q(h, 1), and both of the gap. And Q(1, 1) of both.
        """
        values = g @ self.basis
        slopes = torch.cat([self._slopes(level, g, values), self._own[level][1:]])
        along, leading = self._along(level)[:, :CONSTANTS], values[:, :CONSTANTS]
        constants = [leading.mean(0)]
        ones = []
        for weights, sign in ((self.affine[level], 1), (self.gap[level], 0)):
            share = weights.sum(0) / (len(g) * (len(g) - 1))  # of each draw in the mean over pairs
            ones.append(sign - share.sum())
            constants += [sign * part.mean(0) - share @ part for part in (leading, along)]
        return torch.cat([slopes.flatten(), torch.stack(constants).flatten(), torch.stack(ones)])

    def _slopes(self, level: int, g: Tensor, values: Tensor) -> Tensor:
        """Of values g (m, d) and the same along the basis (m, r): `b * scale`, and Q(g, h) of both kinds, (3, J)."""
        along, count = self._along(level), len(g) * (len(g) - 1)
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
        return torch.stack([alone, alone - affine, whitened_alone - gap])

    def _c(self, level: int) -> Tensor:
        return self.clean + self.sigmas[level] * self.noise

    def _along(self, level: int) -> Tensor:
        return self.along_clean + self.sigmas[level] * self.along_noise

    def _sums(self, values: Tensor) -> Tensor:
        """Sums over groups of (..., r), as (..., J - 1)."""
        return values.new_zeros(*values.shape[:-1], self._inside).index_add_(-1, self.groups, values)


def with_controls(
    affine: Tensor, gap: Tensor, controls: Tensor, scale: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """The means over pairs of blocks, less the noise that the other blocks' a and b foretell.

    Args:
        affine: (B, S), from `Pairs.means`.
        gap: (B, S).
        controls: (B, S, ...), from `Pairs.controls`.
        scale: (S, J).
        groups: (K,), of the leading directions.

    Returns:
        Both, with the same expectations; unchanged for a single block.
    """
    count, size = len(affine), scale.shape[1]
    if count == 1:
        return affine, gap
    slopes, constants, ones = controls.split([5 * size, 5 * len(groups), 2], -1)
    own, s, s_gap, t, t_gap = slopes.unflatten(-1, (5, size)).unbind(2)
    mean, q, x, q_gap, x_gap = constants.unflatten(-1, (5, len(groups))).unbind(2)
    a = (mean.sum(0) - mean) / (count - 1)
    b = torch.where(scale > 0, (own.sum(0) - own) / (count - 1) / scale.where(scale > 0, 1.0), 0.0)
    along = a * b[..., groups]
    norm = a.square().sum(-1)

    def less_noise(value: Tensor, s: Tensor, t: Tensor, q: Tensor, x: Tensor, one: Tensor) -> Tensor:
        first = (b * s).sum(-1) + (a * q).sum(-1)
        second = (b.square() * t).sum(-1) + 2 * (along * x).sum(-1) + norm * one
        less: Tensor = value + 2 * first - second
        return less

    return (
        less_noise(affine, s, t, q, x, ones[..., 0]),
        less_noise(gap, s_gap, t_gap, q_gap, x_gap, ones[..., 1]),
    )


def leading_groups(pool: Eigenmoments) -> Tensor:
    """The groups (K,) of the directions along which a is taken."""
    return _groups(pool.eigenvectors.shape[1])[:CONSTANTS]


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
