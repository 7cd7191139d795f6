"""The optimal denoiser of the training images themselves: the memoriser."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import threshold

from gaussbias.data.images import to_unit
from gaussbias.data.rows import ImageRows, chunk_size, round_off
from gaussbias.denoisers.base import Denoiser, per_image
from gaussbias.denoisers.theories.chunks import OFF_CENTRE, Chunks, Numbers, Pixels
from gaussbias.numerics import integers
from gaussbias.numerics.precision import full_precision

TOLERANCE = 1e-3
"""Largest bound on the error of a logit for which weights may come from products in the dtype of the images."""
NOTABLE = 2e-6
"""A weight that may be wrong by this share of their sum is computed again in float64."""
MANY = 4096
"""Images from which on sums with integer weights are as good as those of float32."""
LIMIT = 512
"""Images per noisy image that are measured one by one in float64; where more of them count, all are."""
PAIRS = 64
"""Pairs of a noisy and a training image that are measured in float64 at a time; more leave the cache."""


class EmpiricalDenoiser(Denoiser):
    """`D_M(x, sigma) = sum_i softmax_i(-||x - y_i||^2 / 2 sigma^2) y_i` (Li, Dai and Qu 2024, Eq. 5, arXiv 2410.24060).

    `||x||^2` is common to all images and drops out. After centring by the mean image the logits are
    `(x.y_i - ||y_i||^2 / 2) / sigma^2`, from products in the dtype of `x`, or of integers where those are as good and
    faster (`gaussbias.numerics.integers`). Their round-off is divided by sigma^2.

    - Where a bound on it stays below 1e-3 (large sigma), weights come from these logits. Those below the round-off of
      the sum are left out, and those that could be wrong by 2e-6 of it are corrected in float64.
    - Elsewhere few images weigh anything, and all that could, by the bound, are measured in float64. If they are
      many (near copies), that noisy image is done in float64 altogether.

    On photographs the result is right to 1e-6. Where hundreds of copies of one image compete with those of another, the
    equal errors of their logits add up, to 5e-5 at worst.

    Images are read once, in chunks: the memory is that of (noisy images) x (chunk), not (noisy images) x (images).

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units. They do not move with the
            module; a GPU with room for them gets a copy.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time; `None`: what stays in the cache of a CPU, or keeps a GPU busy.
    """

    centre: Tensor
    half_norms: Tensor

    def __init__(self, images: Tensor, flip: bool = False, chunk: int | None = None) -> None:
        super().__init__()
        if images.ndim != 4 or not len(images):
            raise ValueError(f"Expected `images` (N, C, H, W) with N > 0 but got shape {tuple(images.shape)}.")
        self.chunk = chunk
        self.rows = ImageRows(images, flip)
        total = torch.zeros_like(images[0].flatten(), dtype=torch.float64)
        for _, part in self.rows.chunks(chunk_size(images.device), images.device):
            total += to_unit(part, torch.float64).sum(0)
        self.register_buffer("centre", total / len(self.rows))
        halves = total.new_empty(len(self.rows))
        longest = 0.0
        for start, part in self.rows.chunks(chunk_size(images.device), images.device):
            values = to_unit(part, torch.float64)
            longest = max(longest, float(values.norm(dim=1).max()))
            halves[start : start + len(part)] = (values - self.centre).square().sum(1) / 2
        self.register_buffer("half_norms", halves)
        self.longest = float((2 * halves.max()).sqrt())
        near = longest <= OFF_CENTRE * self.longest and len(self.rows) >= MANY
        self._as_integers = images.dtype == torch.uint8 and near

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().double()
        with full_precision(x.device):  # bounds on the round-off are those of float32
            return self._denoise(x.flatten(1), None, levels[None], [0.0]).view_as(x)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level with two products in all, instead of one a level.

        Returns:
            (S, B, C, H, W).
        """
        levels = torch.tensor(sigmas, dtype=torch.float64, device=x0.device)[:, None].expand(-1, len(x0))
        with full_precision(x0.device):
            return self._denoise(x0.flatten(1), eps.flatten(1), levels, sigmas).view(len(sigmas), *x0.shape)

    def _denoise(self, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigmas[s] eps`, (S, B, d), at `levels` (S, B); without eps, x0 itself."""
        noisy = torch.stack([x0 if eps is None else x0 + sigma * eps for sigma in sigmas])
        lengths = (noisy - self.centre.to(noisy.dtype)).norm(dim=-1).double()
        error = round_off(noisy.dtype, lengths, self.longest) / levels.square()
        rough = error <= TOLERANCE if noisy.dtype != torch.float64 else torch.ones_like(error, dtype=torch.bool)
        reach = math.log(len(self.rows) / torch.finfo(noisy.dtype).eps)

        sums = [_Sum(rough[s], error[s], reach, noisy[s]) for s in range(len(noisy))]
        inverse = levels.square().reciprocal().to(noisy.dtype)
        clean = x0 - self.centre.to(x0.dtype)
        vectors = clean if eps is None else torch.cat([clean, eps])
        chunks = self._chunks(vectors)
        for start, products in chunks:  # all levels share them
            products[: len(x0)] -= self.half_norms[start : start + products.shape[1]].to(x0.dtype)
            against_clean, against_noise = products[: len(x0)], products[-len(x0) :]
            for s, sigma in enumerate(sigmas):
                logits = torch.add(against_clean, against_noise, alpha=sigma).mul_(inverse[s, :, None])
                sums[s].add(start, chunks, logits)

        result = torch.empty_like(noisy)
        for s, part in enumerate(sums):
            result[s] = self._finish(part, noisy[s], levels[s])
        crowded = torch.stack([part.crowded for part in sums])
        if crowded.any():
            exact = self._denoise(noisy[crowded].double(), None, levels[crowded][None], [0.0])
            result[crowded] = exact[0].to(noisy.dtype)
        return result

    def _finish(self, part: _Sum, noisy: Tensor, levels: Tensor) -> Tensor:
        """Measure the images that matter in float64, and divide."""
        row, place, logit = part.pairs()
        exact, centred = torch.empty_like(logit), noisy.double() - self.centre
        for some in torch.arange(len(row), device=row.device).split(PAIRS):
            products = self._exactly(place[some]).mul_(centred[row[some]]).sum(1)
            exact[some] = (products - self.half_norms[place[some]]) / levels[row[some]].square()
        top = part.top.double()
        highest = torch.full_like(top, -torch.inf).scatter_reduce(0, row, exact, "amax")
        top = torch.where(part.rough, top, highest)
        # a rough sum has these images already
        already = torch.where(part.rough[row], (logit - top[row]).exp(), 0)
        gain = (exact - top[row]).exp() - already
        total = part.total.index_add(0, row, gain)
        for some in torch.arange(len(row), device=row.device).split(PAIRS):
            part.summed.index_add_(0, row[some], self._exactly(place[some]).mul_(gain[some, None]))
        return (self.centre + part.summed / total[:, None]).to(noisy.dtype)

    def _exactly(self, places: Tensor) -> Tensor:
        """Centred images (n, d), float64."""
        return to_unit(self.rows.take(places), torch.float64).sub_(self.centre)

    def as_integers(self, x: Tensor) -> bool:
        """Whether products with `x` are those of integers."""
        return self._as_integers and x.dtype == torch.float32 and integers.are_fast(x.device)

    def _chunks(self, vectors: Tensor) -> Chunks:
        fast = self.as_integers(vectors)
        size = self.chunk or (max(2048, chunk_size(vectors.device)) if fast else chunk_size(vectors.device))
        return (Pixels if fast else Numbers)(self.rows, self.centre.to(vectors.device), vectors, size)


class _Sum:
    """The weighted sums of one level over the chunks, relative to the running largest logit.

    Args:
        rough: (B,), whether weights may come from logits as they are.
        error: (B,), bound on the error of a logit.
        reach: A logit this far below the largest weighs nothing.
        noisy: (B, d), for its shape and dtype.
    """

    def __init__(self, rough: Tensor, error: Tensor, reach: float, noisy: Tensor) -> None:
        self.rough, self.reach = rough, reach
        self.top = noisy.new_full((len(noisy),), -torch.inf)
        self.total = torch.zeros_like(error)
        self.summed = torch.zeros_like(noisy, dtype=torch.float64)
        self.crowded = torch.zeros_like(rough)
        self._none_rough = not bool(rough.any())
        # what is measured in float64: of rough rows what is above this share, of others what is within this distance
        self._share, self._distance = (NOTABLE / error).log(), reach + 2 * error
        none = torch.empty(0, dtype=torch.int64, device=noisy.device)
        self._kept = (none, none, none.double())

    def add(self, start: int, chunks: Chunks, logits: Tensor) -> None:
        """Add a chunk, the first image of which is number `start`, with its logits (B, n)."""
        best = logits.amax(1)
        before, self.top = self.top, torch.maximum(self.top, best)
        if not self._none_rough:
            self._add_weights(chunks, logits, (before - self.top).double().exp())
        floor = self._floor().to(logits.dtype)
        if bool((best >= floor).any()):
            row, place = (logits >= floor[:, None]).nonzero().unbind(1)
            self._keep(row, place + start, logits[row, place].double())

    def _floor(self) -> Tensor:
        """The logit from which on an image is measured in float64."""
        share = (self.total.log() + self._share).clamp(min=-self.reach)
        return (self.top + torch.where(self.rough, share, -self._distance)).masked_fill(self.crowded, torch.inf)

    def _add_weights(self, chunks: Chunks, logits: Tensor, shrink: Tensor) -> None:
        scale = torch.where(self.rough, self.top, torch.inf)
        weights = threshold(logits.sub(scale[:, None]).exp_(), math.exp(-self.reach), 0, inplace=True)
        summed, total = chunks.sum(weights)
        self.total = self.total * shrink + total
        self.summed = torch.addcmul(summed, self.summed, shrink[:, None])

    def _keep(self, row: Tensor, place: Tensor, logit: Tensor) -> None:
        row, place, logit = (torch.cat(pair) for pair in zip(self._kept, (row, place, logit), strict=True))
        still = logit >= self._floor()[row]
        row, place, logit = row[still], place[still], logit[still]
        self.crowded |= ~self.rough & (row.bincount(minlength=len(self.top)) > LIMIT)
        still = ~self.crowded[row]
        self._kept = row[still], place[still], logit[still]

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, numbers of images and logits of what has to be measured in float64."""
        row, place, logit = self._kept
        still = logit >= self._floor()[row]
        return row[still], place[still], logit[still]
