"""Means of the training images under weights `softmax_i(l_i)`, exact and in one pass over the images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import threshold

from gaussbias.data.images import to_unit
from gaussbias.data.rows import ImageRows, chunk_size
from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.theories.checks import check_images
from gaussbias.denoisers.theories.chunks import OFF_CENTRE, Chunks, Numbers, Pixels
from gaussbias.numerics import integers

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


class Logits(ABC):
    """The logits of all training images y_i for B noisy images at each of S levels, of products with `y_i - c`.

    Attributes:
        vectors: (V, d), what `y_i - c` is multiplied with, in the dtype of the products.
        error: (S, B), a bound on the error of a logit that is made of such products.
    """

    vectors: Tensor
    error: Tensor

    @abstractmethod
    def of_products(self, products: Tensor, start: int) -> Iterator[Tensor]:
        """For each level the logits (B, n) of a chunk from its products (V, n); its first image has number `start`."""

    @abstractmethod
    def exactly(self, level: int, row: Tensor, place: Tensor, centred: Tensor) -> Tensor:
        """Logits (n,), float64, of pairs of a noisy image and a training image.

        Args:
            level: Of the noisy images.
            row: (n,), their numbers.
            place: (n,), those of the training images.
            centred: The latter (n, d), less the centre; may be overwritten.
        """

    @abstractmethod
    def in_double(self, chosen: Tensor) -> Logits:
        """Those of the chosen ones, (S, B), in float64, as one level."""


class PosteriorMean(Denoiser):
    """A denoiser that needs `m = sum_i softmax_i(l_i) y_i` over the training images, for logits that are given.

    Logits come from products in the dtype of the noisy images, or of integers where those are as good and faster
    (`gaussbias.numerics.integers`).

    - Where a bound on their error stays below 1e-3, weights come from these logits. Those below the round-off of
      the sum are left out, and those that could be wrong by 2e-6 of it are corrected in float64.
    - Elsewhere few images weigh anything, and all that could, by the bound, are measured in float64. If they are
      many (near copies), that noisy image is done in float64 altogether.

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
        check_images(images)
        self.chunk = chunk
        self.rows = ImageRows(images, flip)
        self.register_buffer("centre", torch.zeros(images[0].numel(), dtype=torch.float64, device=images.device))
        longest, total = 0.0, torch.zeros_like(self.centre)
        for _, part in self.rows.chunks(chunk_size(images.device), images.device):
            values = to_unit(part, torch.float64)
            longest, total = max(longest, float(values.norm(dim=1).max())), total + values.sum(0)
        self.centre = total / len(self.rows)
        self.register_buffer("half_norms", self.each(lambda part: part.square().sum(1) / 2))
        self.longest = float((2 * self.half_norms.max()).sqrt())
        near = longest <= OFF_CENTRE * self.longest and len(self.rows) >= MANY
        self._as_integers = images.dtype == torch.uint8 and near

    def each(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """A number of each training image, mirrored copies after the others: (N,) or (..., N).

        Args:
            value: Of centred images (n, d), float64, to numbers (..., n).
        """
        device = self.centre.device
        found: Tensor | None = None
        for start, part in self.rows.chunks(chunk_size(device), device):
            some = value(to_unit(part, torch.float64) - self.centre)
            if found is None:  # small tensors that stay, between large ones that go, would leave no whole memory
                found = some.new_empty(*some.shape[:-1], len(self.rows))
            found[..., start : start + len(part)] = some
        assert found is not None
        return found

    def posterior_mean(self, logits: Logits) -> Tensor:
        """`m - c` (S, B, d), float64."""
        dtype = logits.vectors.dtype
        error = logits.error
        rough = error <= TOLERANCE if dtype != torch.float64 else torch.ones_like(error, dtype=torch.bool)
        reach = math.log(len(self.rows) / torch.finfo(dtype).eps)
        sums = [_Sum(rough[s], error[s], reach, logits.vectors) for s in range(len(error))]
        chunks = self._chunks(logits.vectors)
        for start, products in chunks:
            for part, of_level in zip(sums, logits.of_products(products, start), strict=True):
                part.add(start, chunks, of_level)

        result = torch.stack([self._finish(part, logits, level) for level, part in enumerate(sums)])
        crowded = torch.stack([part.crowded for part in sums])
        if crowded.any():
            result[crowded] = self.posterior_mean(logits.in_double(crowded))[0]
        return result

    def _finish(self, part: _Sum, logits: Logits, level: int) -> Tensor:
        """Measure the images that matter in float64, and divide."""
        row, place, logit = part.pairs()
        exact = torch.empty_like(logit)
        for some in torch.arange(len(row), device=row.device).split(PAIRS):
            exact[some] = logits.exactly(level, row[some], place[some], self._exactly(place[some]))
        top = part.top.double()
        highest = torch.full_like(top, -torch.inf).scatter_reduce(0, row, exact, "amax")
        top = torch.where(part.rough, top, highest)
        # a rough sum has these images already
        already = torch.where(part.rough[row], (logit - top[row]).exp(), 0)
        gain = (exact - top[row]).exp() - already
        total = part.total.index_add(0, row, gain)
        for some in torch.arange(len(row), device=row.device).split(PAIRS):
            part.summed.index_add_(0, row[some], self._exactly(place[some]).mul_(gain[some, None]))
        return part.summed / total[:, None]

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
        vectors: (V, d), for their length and dtype.
    """

    def __init__(self, rough: Tensor, error: Tensor, reach: float, vectors: Tensor) -> None:
        self.rough, self.reach = rough, reach
        self.top = vectors.new_full((len(error),), -torch.inf)
        self.total = torch.zeros_like(error)
        self.summed = vectors.new_zeros(len(error), vectors.shape[1], dtype=torch.float64)
        self.crowded = torch.zeros_like(rough)
        self._none_rough = not bool(rough.any())
        # what is measured in float64: of rough rows what is above this share, of others what is within this distance
        self._share, self._distance = (NOTABLE / error).log(), reach + 2 * error
        none = torch.empty(0, dtype=torch.int64, device=vectors.device)
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
        # far below its range the exponential of CPUs takes ten times as long
        weights = logits.sub(scale[:, None]).clamp_(min=-self.reach - 1).exp_()
        weights = threshold(weights, math.exp(-self.reach), 0, inplace=True)
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
