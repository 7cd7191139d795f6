"""Between the memoriser and the Gaussian: the optimal denoiser of a smoothed bootstrap of the training images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from torch import Tensor

from gaussbias.denoisers.base import on_grid, per_image
from gaussbias.denoisers.theories.posterior import Logits, PosteriorMean
from gaussbias.moments import Eigenmoments
from gaussbias.numerics.precision import full_precision

KEPT = 64
"""Noise levels whose constants are kept."""


class BootstrapDenoiser(PosteriorMean):
    """`D_h`, 0 <= h <= 1: the posterior mean for the smoothed bootstrap that keeps the mean and the covariance.

    The data model (Silverman and Young 1987, Biometrika 74, 469): an image y_i at random, drawn in to
    `m_i = mu + sqrt(1 - h^2) (y_i - mu)`, and normal noise of covariance `h^2 Sigma`, so that for every h the mean is
    mu and the covariance `Sigma = U diag(lam) U^T`. With `v = h^2 lam + sigma^2`

        w = softmax_i(-1/2 sum_k (u_k . (x - m_i))^2 / v_k),    m = sum_i w_i m_i,
        D_h(x, sigma) = m + U diag(h^2 lam / v) U^T (x - m).

    h = 0 is D_M, and h = 1 is D_G. The logits are `sqrt(1 - h^2) (U diag(1 / v) U^T (x - mu)) . (y_i - mu)` less half
    of `(1 - h^2) sum_k (u_k . (y_i - mu))^2 / v_k`, a number for each image and noise level, which is made once: so a
    level costs what it costs D_M without others, and three products with U.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        moments: Of these images, with their mirrored copies if these count.
        h: From 0 to 1.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time; `None`: what stays in the cache of a CPU, or keeps a GPU busy.
    """

    mean: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    def __init__(
        self, images: Tensor, moments: Eigenmoments, h: float, flip: bool = False, chunk: int | None = None
    ) -> None:
        if not 0 <= h <= 1:
            raise ValueError(f"Expected `h` from 0 to 1 but got {h:g}.")
        super().__init__(images, flip, chunk)
        self.h, self.drawn_in = h, (1 - h**2) ** 0.5
        self.register_buffer("mean", moments.mean.double())
        self.register_buffer("eigenvalues", moments.eigenvalues.double())
        self.register_buffer("eigenvectors", moments.eigenvectors.double())
        self.kept: dict[float, Tensor] = {}
        self.family = [self]

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        along = (x.flatten(1).double() - self.mean) @ self.eigenvectors
        levels = per_image(sigma, x).flatten().double()
        return self._denoise(along[None], levels[None], x.dtype).view_as(x)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level, with one pass over the images.

        Returns:
            (S, B, C, H, W).
        """
        levels = on_grid(sigmas, x0)
        clean = (x0.flatten(1).double() - self.mean) @ self.eigenvectors
        noise = eps.flatten(1).double() @ self.eigenvectors
        return self._denoise(clean + levels[..., None] * noise, levels, x0.dtype).view(len(sigmas), *x0.shape)

    def variances(self, levels: Tensor) -> Tensor:
        """`v = h^2 lam + sigma^2` (..., r) at levels (...)."""
        return self.h**2 * self.eigenvalues + levels[..., None].square()

    def offsets(self, levels: Tensor) -> Tensor:
        """`(1 - h^2) sum_k (u_k . (y_i - mu))^2 / 2 v_k` (K, N) at levels (K,), float64; kept for later.

        Those of the same images that `bootstraps` made get theirs in the same pass.
        """
        wanted = levels.tolist()
        new = [level for level in wanted if level not in self.kept or self.kept[level].device != levels.device]
        if new:
            at = torch.tensor(new, dtype=torch.float64, device=levels.device)
            scale = torch.cat([one.drawn_in**2 / 2 / one.variances(at) for one in self.family])
            shift = self.centre - self.mean
            made = self.each(lambda part: scale @ ((part + shift) @ self.eigenvectors).square().T)
            for one, part in zip(self.family, made.split(len(new)), strict=True):
                if len(one.kept) + len(new) > KEPT:
                    one.kept = {level: one.kept[level] for level in wanted if level not in new and level in one.kept}
                one.kept |= dict(zip(new, part, strict=True))
        return torch.stack([self.kept[level] for level in wanted])

    def _denoise(self, along: Tensor, levels: Tensor, dtype: torch.dtype) -> Tensor:
        """Denoise what has coordinates `U^T (x - mu)` (S, B, r) at levels (S, B)."""
        with full_precision(along.device):
            variances = self.variances(levels)
            mean = (self.centre - self.mean) + self.posterior_mean(_Whitened(self, along / variances, levels, dtype))
            mean *= self.drawn_in
            rest = along - mean @ self.eigenvectors
            shrunk = (self.h**2 * self.eigenvalues / variances * rest) @ self.eigenvectors.T
            return (self.mean + mean + shrunk).to(dtype)


def bootstraps(
    images: Tensor, moments: Eigenmoments, several: Sequence[float], flip: bool = False
) -> list[BootstrapDenoiser]:
    """D_h for several h, which share the images and the components, and move to a device together."""
    first = BootstrapDenoiser(images, moments, several[0], flip)
    family = [first]
    for h in several[1:]:
        one = copy(first)  # with the same buffers
        one.h, one.drawn_in, one.kept = h, (1 - h**2) ** 0.5, {}
        family.append(one)
    for one in family:
        one.family = family
    return family


class _Whitened(Logits):
    """Logits of D_h, of products of the images with `sqrt(1 - h^2) U diag(1 / v) U^T (x - mu)`."""

    def __init__(self, denoiser: BootstrapDenoiser, whitened: Tensor, levels: Tensor, dtype: torch.dtype) -> None:
        kinds, index = levels.unique(return_inverse=True)
        exact = denoiser.drawn_in * whitened @ denoiser.eigenvectors.T
        self._take(denoiser, exact, denoiser.offsets(kinds), index, dtype)

    def _take(
        self, denoiser: BootstrapDenoiser, exact: Tensor, offsets: Tensor, index: Tensor, dtype: torch.dtype
    ) -> None:
        """Vectors (S, B, d) in float64, and which of the offsets (K, N) belong to each (S, B)."""
        self.denoiser, self.exact, self.offsets, self.index = denoiser, exact, offsets, index
        self.vectors = exact.to(dtype).flatten(0, 1)
        largest = exact.norm(dim=-1) * denoiser.longest + offsets.amax(1)[index]
        self.error = 8 * torch.finfo(dtype).eps * largest

    def of_products(self, products: Tensor, start: int) -> Iterator[Tensor]:
        """Each level has products of its own."""
        offsets = self.offsets[:, start : start + products.shape[1]].to(products.dtype)
        for part, index in zip(products.split(self.index.shape[1]), self.index, strict=True):
            one = bool((index == index[0]).all())
            yield part.sub_(offsets[index[:1]] if one else offsets[index])

    def exactly(self, level: int, row: Tensor, place: Tensor, centred: Tensor) -> Tensor:
        """From the vectors in float64."""
        return centred.mul_(self.exact[level][row]).sum(1) - self.offsets[self.index[level][row], place]

    def in_double(self, chosen: Tensor) -> Logits:
        """Those of the chosen noisy images."""
        made = object.__new__(_Whitened)
        made._take(self.denoiser, self.exact[chosen][None], self.offsets, self.index[chosen][None], torch.float64)
        return made
