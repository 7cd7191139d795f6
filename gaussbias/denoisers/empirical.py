"""The optimal denoiser of the training images themselves: the memoriser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gaussbias.data.images import to_unit
from gaussbias.data.rows import ImageRows, largest, round_off
from gaussbias.denoisers.base import Denoiser, per_image

CANDIDATES = 16
"""Images per noisy image whose distance is computed again in float64."""
NEGLIGIBLE = 40.0
"""A logit that is this far below the largest one weighs less than 1e-17."""
TOLERANCE = 1e-3
"""Largest bound on the error of a logit for which the many small weights may come from products in float32."""


class EmpiricalDenoiser(Denoiser):
    """`D_M(x, sigma) = sum_i softmax_i(-||x - y_i||^2 / 2 sigma^2) y_i` (Li, Dai and Qu 2024, Eq. 5, arXiv 2410.24060).

    `||x||^2` is common to all images and drops out. After centring by the mean image the logits are
    `(x.y_i - ||y_i||^2 / 2) / sigma^2`, from products in the dtype of `x`. Their round-off is divided by sigma^2,
    so the 16 largest are computed again in float64, which decides near ties. The others are summed only where
    they weigh anything; where the round-off of their logits could exceed 1e-3 all is done in float64. Images are
    read in chunks: the memory is that of (noisy images) x (chunk), and of 16 images for each noisy one of a level,
    not (noisy images) x (all images).

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units. They are neither copied nor
            moved with the module; on the device of the noisy images this is faster.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time.
    """

    centre: Tensor

    def __init__(self, images: Tensor, flip: bool = False, chunk: int = 4096) -> None:
        super().__init__()
        if images.ndim != 4 or not len(images):
            raise ValueError(f"Expected `images` (N, C, H, W) with N > 0 but got shape {tuple(images.shape)}.")
        self.chunk = chunk
        self.rows = ImageRows(images, flip)
        total = torch.zeros_like(images[0].flatten(), dtype=torch.float64)
        for _, part in self.rows.chunks(chunk, images.device):
            total += to_unit(part, torch.float64).sum(0)
        self.register_buffer("centre", total / len(self.rows))
        norms = [part.norm(dim=1).max() for _, part in self._chunks(torch.float64)]
        self.longest = float(torch.stack(norms).max())

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().double()
        return self._denoise(x.flatten(1), None, levels[None], [0.0]).view_as(x)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level with two products in all, instead of one a level.

        Returns:
            (S, B, C, H, W).
        """
        levels = torch.tensor(sigmas, dtype=torch.float64, device=x0.device)[:, None].expand(-1, len(x0))
        return self._denoise(x0.flatten(1), eps.flatten(1), levels, sigmas).view(len(sigmas), *x0.shape)

    def _denoise(self, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigmas[s] eps`, (S, B, d), at `levels` (S, B); without eps, x0 itself."""
        noisy = torch.stack([x0 if eps is None else x0 + sigma * eps for sigma in sigmas])
        products = _SharedProducts(x0 - self.centre.to(x0.dtype), eps, sigmas, levels)
        values, indices = largest(
            ((start, products.logits(products.against(part))) for start, part in self._chunks(products.dtype)),
            CANDIDATES,
        )

        # the candidates, in float64, one level at a time
        top = torch.empty_like(levels)
        total = torch.empty_like(levels)
        summed = torch.empty_like(noisy, dtype=torch.float64)
        for s in range(len(noisy)):
            images = to_unit(self.rows.take(indices[s]), torch.float64) - self.centre  # (B, k, d)
            along = torch.einsum("bkd,bd->bk", images, noisy[s].double() - self.centre)
            logits = (along - images.square().sum(-1) / 2) / levels[s, :, None].square()
            top[s] = logits.amax(-1)
            weights = (logits - top[s, :, None]).exp()
            total[s] = weights.sum(-1)
            summed[s] = torch.einsum("bk,bkd->bd", weights, images)

        careful = torch.zeros_like(levels, dtype=torch.bool)
        if len(self.rows) > indices.shape[-1]:
            lengths = (noisy - self.centre.to(noisy.dtype)).norm(dim=-1).double()
            error = round_off(noisy.dtype, lengths, self.longest) / levels.square()
            dense = (values[..., 0] - values[..., -1]).double() < NEGLIGIBLE + 2 * error
            if noisy.dtype != torch.float64:
                careful = dense & (error > TOLERANCE)
            needed = (dense & ~careful).any(1).nonzero().flatten().tolist()
            self._add_rest(products, indices, top, needed, total, summed)
        result = (self.centre + summed / total[..., None]).to(noisy.dtype)
        if careful.any():
            exact = self._denoise(noisy[careful].double(), None, levels[careful][None], [0.0])
            result[careful] = exact[0].to(noisy.dtype)
        return result

    def _add_rest(
        self,
        products: _SharedProducts,
        indices: Tensor,
        top: Tensor,
        levels: list[int],
        total: Tensor,
        summed: Tensor,
    ) -> None:
        """Add all images but the candidates to the weights' sum and the weighted sum, at some of the levels."""
        if not levels:
            return
        for start, centred in self._chunks(products.dtype):
            size = len(centred)
            shared = products.against(centred)
            for s in levels:
                logits = products.level(shared, s) - top[s, :, None].to(centred.dtype)
                here = (indices[s] >= start) & (indices[s] < start + size)
                row, place = here.nonzero().unbind(1)
                logits[row, indices[s][row, place] - start] = float("-inf")
                weights = logits.exp_()
                total[s] += weights.sum(-1, dtype=torch.float64)
                summed[s] += (weights @ centred).double()

    def _chunks(self, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Position of the first, and the centred images (n, d), of each chunk."""
        centre = self.centre.to(dtype)
        for start, part in self.rows.chunks(self.chunk, centre.device):
            yield start, to_unit(part, dtype) - centre


class _SharedProducts:
    """Logits of `x0 + sigma_s eps` against images, from the products of x0 and of eps with the images."""

    def __init__(self, x0: Tensor, eps: Tensor | None, sigmas: Sequence[float], levels: Tensor) -> None:
        self.x0, self.eps, self.sigmas = x0, eps, sigmas
        self.dtype = x0.dtype
        self.inverse = levels.square().reciprocal().to(x0.dtype)

    def against(self, centred: Tensor) -> tuple[Tensor, Tensor | None]:
        """The products with centred images (n, d) that all levels share, each (B, n)."""
        clean = self.x0 @ centred.T - centred.square().sum(1) / 2
        return clean, None if self.eps is None else self.eps @ centred.T

    def logits(self, shared: tuple[Tensor, Tensor | None]) -> Tensor:
        """Logits (S, B, n) at all levels, up to a term that all images share."""
        return torch.stack([self.level(shared, s) for s in range(len(self.sigmas))])

    def level(self, shared: tuple[Tensor, Tensor | None], s: int) -> Tensor:
        """Logits (B, n) at level s."""
        clean, noise = shared
        return (clean if noise is None else clean + self.sigmas[s] * noise) * self.inverse[s, :, None]
