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
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gaussbias.moments import Eigenmoments

GROUPS = 64
"""Groups of directions, at most."""
CONSTANTS = 64
"""Leading directions along which a is taken."""
OUTSIDE = 1e-6
"""Share of ||x0 - mu||^2 outside the span of a pool's images that is round-off."""
ROUNDED = 2**-23
"""Share of ||x0|| by which x0 is rounded."""
SAME = 1e-13
"""Relative difference of two sums that only equal noise has."""


AFFINE, GAP = 0, 1
"""Places of the two means over pairs in `Controls`."""


@dataclass(frozen=True)
class Controls:
    """What the a and b of other blocks multiply in the means over pairs of a block, for the affine part and the gap.

    J is the number of groups of directions, K that of leading directions.

    Attributes:
        scaled_slope: (..., J), the block's own b times `Pairs.scale`.
        slope: (..., 2, J), Q(g, h) for the h of unit slope.
        slope_itself: (..., 2, J), Q(h, h) for it.
        mean: (..., K), the block's own a.
        constant: (..., 2, K), Q(g, 1).
        cross: (..., 2, K), Q(h, 1) for the h of unit slope.
        one: (..., 2), Q(1, 1).
    """

    scaled_slope: Tensor
    slope: Tensor
    slope_itself: Tensor
    mean: Tensor
    constant: Tensor
    cross: Tensor
    one: Tensor

    @staticmethod
    def shapes(groups: int, leading: int) -> dict[str, tuple[int, ...]]:
        """The shape of each part for J groups and K leading directions."""
        return {
            "scaled_slope": (groups,),
            "slope": (2, groups),
            "slope_itself": (2, groups),
            "mean": (leading,),
            "constant": (2, leading),
            "cross": (2, leading),
            "one": (2,),
        }

    @classmethod
    def stack(cls, parts: Sequence[Controls]) -> Controls:
        """Those of several levels or blocks, along a new first dimension."""
        return cls(*(torch.stack([getattr(part, field.name) for part in parts]) for field in fields(cls)))


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

    def controls(self, level: int, g: Tensor) -> Controls:
        """What other blocks' a and b multiply, of values g (m, d) at the draws; `with_controls` reads it."""
        values = g @ self.basis
        slopes, own = self._slopes(level, g, values), self._own[level]
        along, leading = self._along(level)[:, :CONSTANTS], values[:, :CONSTANTS]
        constant, cross, ones = [], [], []
        for weights, sign in ((self.affine[level], 1), (self.gap[level], 0)):
            share = weights.sum(0) / (len(g) * (len(g) - 1))  # of each draw in the mean over pairs
            ones.append(sign - share.sum())
            constant.append(sign * leading.mean(0) - share @ leading)
            cross.append(sign * along.mean(0) - share @ along)
        return Controls(
            scaled_slope=slopes[0],
            slope=slopes[1:],
            slope_itself=own[1:],
            mean=leading.mean(0),
            constant=torch.stack(constant),
            cross=torch.stack(cross),
            one=torch.stack(ones),
        )

    def _slopes(self, level: int, g: Tensor, values: Tensor) -> Tensor:
        """`b * scale` and Q(g, h) of both kinds, (3, J), for values g (m, d), along the basis (m, r)."""
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
    affine: Tensor, gap: Tensor, controls: Controls, scale: Tensor, groups: Tensor
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
    count = len(affine)
    if count == 1:
        return affine, gap
    mean, scaled = controls.mean, controls.scaled_slope
    a = (mean.sum(0) - mean) / (count - 1)
    b = torch.where(scale > 0, (scaled.sum(0) - scaled) / (count - 1) / scale.where(scale > 0, 1.0), 0.0)
    along = a * b[..., groups]
    norm = a.square().sum(-1)

    def less_noise(value: Tensor, kind: int) -> Tensor:
        slope, itself, constant, cross = (
            part[..., kind, :] for part in (controls.slope, controls.slope_itself, controls.constant, controls.cross)
        )
        first = (b * slope).sum(-1) + (a * constant).sum(-1)
        second = (b.square() * itself).sum(-1) + 2 * (along * cross).sum(-1) + norm * controls.one[..., kind]
        less: Tensor = value + 2 * first - second
        return less

    return less_noise(affine, AFFINE), less_noise(gap, GAP)


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
