"""The optimal denoiser of the training images themselves: the memoriser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gaussbias.data.rows import round_off
from gaussbias.denoisers.base import on_grid, per_image
from gaussbias.denoisers.theories.posterior import Logits, PosteriorMean
from gaussbias.numerics.precision import full_precision


class EmpiricalDenoiser(PosteriorMean):
    """`D_M(x, sigma) = sum_i softmax_i(-||x - y_i||^2 / 2 sigma^2) y_i` (Li, Dai and Qu 2024, Eq. 5, arXiv 2410.24060).

    `||x||^2` is common to all images and drops out. After centring by the mean image the logits are
    `(x.y_i - ||y_i||^2 / 2) / sigma^2`: products, whose round-off is divided by sigma^2.

    On photographs the result is right to 1e-6. Where hundreds of copies of one image compete with those of another, the
    equal errors of their logits add up, to 5e-5 at worst.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units. They do not move with the
            module; a GPU with room for them gets a copy.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time; `None`: what stays in the cache of a CPU, or keeps a GPU busy.
    """

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().double()
        return self._denoise(x.flatten(1), None, levels[None], [0.0]).view_as(x)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level with two products in all, instead of one a level.

        Returns:
            (S, B, C, H, W).
        """
        levels = on_grid(sigmas, x0)
        return self._denoise(x0.flatten(1), eps.flatten(1), levels, sigmas).view(len(sigmas), *x0.shape)

    def _denoise(self, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigmas[s] eps`, (S, B, d), at `levels` (S, B); without eps, x0 itself."""
        with full_precision(x0.device):  # bounds on the round-off are those of float32
            logits = _Distances(self, x0, eps, levels, sigmas)
            return (self.centre + self.posterior_mean(logits)).to(x0.dtype)


class _Distances(Logits):
    """`(x . y - ||y||^2 / 2) / sigma^2`, x and y less the mean image, of products that levels share.

    Args:
        denoiser: D_M.
        x0: (B, d).
        eps: (B, d), or `None`, for x0 itself.
        levels: (S, B), float64.
        sigmas: (S,), what eps is multiplied by.
    """

    def __init__(
        self, denoiser: EmpiricalDenoiser, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float]
    ) -> None:
        self.denoiser, self.levels, self.sigmas, self.count = denoiser, levels, sigmas, len(x0)
        self.noisy = torch.stack([x0 if eps is None else x0 + sigma * eps for sigma in sigmas])
        centre = denoiser.centre.to(x0.dtype)
        lengths = (self.noisy - centre).norm(dim=-1).double()
        self.error = round_off(x0.dtype, lengths, denoiser.longest) / levels.square()
        self.inverse = levels.square().reciprocal().to(x0.dtype)
        clean = x0 - centre
        self.vectors = clean if eps is None else torch.cat([clean, eps])
        self._at = -1, clean  # a level, and its noisy images in float64

    def of_products(self, products: Tensor, start: int) -> Iterator[Tensor]:
        """All levels share the products."""
        half_norms = self.denoiser.half_norms[start : start + products.shape[1]]
        products[: self.count] -= half_norms.to(products.dtype)
        against_clean, against_noise = products[: self.count], products[-self.count :]
        for level, sigma in enumerate(self.sigmas):
            yield torch.add(against_clean, against_noise, alpha=sigma).mul_(self.inverse[level, :, None])

    def exactly(self, level: int, row: Tensor, place: Tensor, centred: Tensor) -> Tensor:
        """Of the noisy images as they are, in float64."""
        if self._at[0] != level:  # pairs come a few at a time
            self._at = level, self.noisy[level].double() - self.denoiser.centre
        along = centred.mul_(self._at[1][row]).sum(1)
        return (along - self.denoiser.half_norms[place]) / self.levels[level][row].square()

    def in_double(self, chosen: Tensor) -> Logits:
        """Those of the chosen noisy images."""
        return _Distances(self.denoiser, self.noisy[chosen].double(), None, self.levels[chosen][None], [0.0])
