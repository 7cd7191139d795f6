"""The nearest training images, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from gaussbias.data.images import same_image, to_unit
from gaussbias.data.rows import ImageRows, Near, chunk_size, round_off
from gaussbias.denoisers.theories.chunks import OFF_CENTRE, Numbers, Pixels
from gaussbias.moments import estimate
from gaussbias.numerics import integers
from gaussbias.numerics.precision import full_precision
from gaussbias.numerics.room import room

DIRECTIONS = 256
"""Principal directions in which distances are bounded from below; more bound them better and cost more."""
FITTED = 1024
"""Images that the directions are taken from: any orthonormal ones give a bound, principal ones a tight one."""
FIRST, BLOCKS = 8, 512
"""The images of smallest bound in 8 of 512 blocks are measured before all others are judged by their bounds."""
SCORES = 2**23
"""Bounds that are held at a time, 32 MB."""
PAIRS = 256
"""Pairs of images that are measured in float64 at a time; more leave the cache."""
ROOT_EPS = 1e-3
"""Bound on the error of the length of a rest near 0, over the longest image: the root of 8 eps in float32."""
LOOSE = 1 / 32
"""Share of images left by the bound from which on products with all images take less than measuring those."""
PASS = 2
"""They do if that many are left in all, for each training image: reading those takes as long for any queries."""
MEMORIZED = 1 / 3
"""An image this much nearer to its nearest training image than to the next counts as memorised."""


@dataclass(frozen=True)
class Neighbours:
    """Distances of images to a training set, in data units, float64.

    Attributes:
        first: (B,), to the nearest training image.
        second: (B,), to the nearest training image that is a different one; infinite if there is none.
        index: (B,), position of the nearest training image; N or more is a mirrored copy.
        norm: (B,), norm of the images themselves.
    """

    first: Tensor
    second: Tensor
    index: Tensor
    norm: Tensor

    @property
    def relative(self) -> Tensor:
        """`||x - NN(x)|| / ||x||`, (B,)."""
        return self.first / self.norm

    @property
    def memorized(self) -> Tensor:
        """Whether `first / second < 1/3`, (B,)."""
        return self.first < MEMORIZED * self.second


class NearestImages:
    """The nearest and the second nearest different training image, by L2 distance of pixels, exactly.

    With an image split into its part along k orthonormal directions and the length r of the rest,
    `||x - y||^2 >= ||x_k - y_k||^2 + (r_x - r_y)^2`: a distance in k + 1 dimensions, from products in float32. All
    images for which this bound, less its round-off, is below the second nearest distance found are measured in
    float64. That distance is one that is there, so no image left out is among the two nearest. Where the bound leaves
    many (images without structure, which no few directions describe), products of all pixels and their round-off take
    its place. Mirrored copies (with `flip`) belong to the set, but a mirrored copy or an exact duplicate of the nearest
    image is not a different one.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units, on any device.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time; `None`: what suits the device.
        directions: k, the most of them.
    """

    def __init__(
        self, images: Tensor, flip: bool = False, chunk: int | None = None, directions: int = DIRECTIONS
    ) -> None:
        self.rows = ImageRows(images, flip)
        self.identity = same_image(images, flip).repeat(1 + flip).to(images.device)
        self.chunk = chunk
        fitted = estimate(images[:: -(-len(images) // FITTED)].repeat(1 + (len(images) == 1), 1, 1, 1))
        self.centre, self.directions = fitted.mean, fitted.eigenvectors[:, :directions]
        self.embedded = room(len(self.rows), self.directions.shape[1] + 1, images.device)
        self.half_norms = torch.empty(len(self.rows), device=images.device)
        farthest = torch.zeros((), device=images.device)
        for start, part in self.rows.chunks(chunk_size(images.device), images.device):
            here = slice(start, start + len(part))
            values = to_unit(part)
            farthest = torch.maximum(farthest, values.norm(dim=1).max())
            with full_precision(images.device):
                self.embedded[here], norms = self._embed(values - self.centre.float(), self.directions.float())
            self.half_norms[here] = norms.square() / 2
        parts = {"embedded": self.embedded, "half_norms": self.half_norms, "identity": self.identity}
        self._near = {name: Near(part) for name, part in parts.items()}
        self.longest, self.farthest = float((2 * self.half_norms.max()).sqrt()), float(farthest)
        self._last: tuple[ref[Tensor], int, Neighbours] | None = None
        self.as_integers = images.dtype == torch.uint8 and self.farthest <= OFF_CENTRE * self.longest

    def __call__(self, x: Tensor) -> Neighbours:
        """Search for each of the images `x` (B, C, H, W), in data units.

        What was found of a tensor is kept until the next one: several probes look at the same samples.
        """
        if self._last is not None:
            last, version, found = self._last
            if last() is x and version == x._version:
                return found
        found = self._find(x)
        self._last = ref(x), x._version, found
        return found

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: not what was found last."""
        return vars(self) | {"_last": None}

    def _find(self, x: Tensor) -> Neighbours:
        queries = max(1, SCORES // len(self.rows))
        with full_precision(x.device):  # bounds on the round-off are those of float32
            parts = [self._search(rows) for rows in x.flatten(1).double().split(queries)]
        return Neighbours(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def identity_on(self, device: torch.device) -> Tensor:
        """For each row the position of the first one that is the same image, on a device."""
        return self._near["identity"].on(device).to(device)

    def _search(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        centred, nearest = x - self.centre.to(x), _Found(x, self)
        query, norms = self._embed(centred, self.directions.to(x))
        # of products; of a length of the rest near 0, which has few digits; and of centring far from 0
        error = 2 * round_off(torch.float32, norms, self.longest) + query[:, -1] * self.longest * ROOT_EPS
        error += torch.finfo(torch.float32).eps * self.farthest * (norms + self.longest)
        every = torch.arange(len(x), device=x.device)
        possible = self._possible(nearest, every, self._bounds(query.float()), norms, error)
        row, place = possible.nonzero().unbind(1)
        left = row.bincount(minlength=len(x))
        loose = every[left > LOOSE * len(self.rows)]
        if int(left[loose].sum()) > PASS * len(self.rows):
            error = 2 * round_off(torch.float32, norms[loose], self.longest)
            possible[loose] = self._possible(
                nearest, loose, self._products(centred[loose].float()), norms[loose], error
            )
            row, place = possible.nonzero().unbind(1)
        nearest.measure(row, place)
        return nearest.first, nearest.second, nearest.index, x.norm(dim=1)

    def _possible(self, nearest: _Found, rows: Tensor, scores: Tensor, norms: Tensor, error: Tensor) -> Tensor:
        """Measure the images of the best scores, and say which others may be as near as the second nearest, as scores.

        A score, but for the error, is at least `x.y - ||y||^2 / 2`: `||x||^2 / 2` less half the squared distance.
        """
        width = self._width()
        value, place = scores.unflatten(1, (-1, width)).max(2)
        blocks = value.topk(min(FIRST, value.shape[1])).indices
        first = place.gather(1, blocks) + blocks * width
        nearest.measure(rows.repeat_interleave(first.shape[1]), first.flatten())
        limit = (norms.square() - nearest.second[rows].square()) / 2 - error
        return (scores > limit.float()[:, None]).scatter_(1, first, False)

    def _bounds(self, query: Tensor) -> Tensor:
        """Scores along the directions and the rest (B, N, filled up to whole blocks)."""
        scores, embedded = self._no_scores(query), self._near["embedded"].on(query.device)
        half_norms = self._near["half_norms"].on(query.device)
        chunk = self.chunk or chunk_size(query.device)
        for start in range(0, len(self.rows), chunk):
            here = slice(start, min(start + chunk, len(self.rows)))
            scores[:, here] = query @ embedded[here].to(query).T - half_norms[here].to(query)
        return scores

    def _products(self, centred: Tensor) -> Tensor:
        """Scores by all pixels."""
        scores, half_norms = self._no_scores(centred), self._near["half_norms"].on(centred.device)
        kind = Pixels if self.as_integers and integers.are_fast(centred.device) else Numbers
        size = self.chunk or chunk_size(centred.device)
        for start, products in kind(self.rows, self.centre.to(centred.device), centred, size):
            here = slice(start, start + products.shape[1])
            scores[:, here] = products - half_norms[here].to(products)
        return scores

    def _no_scores(self, like: Tensor) -> Tensor:
        size = -(-len(self.rows) // self._width()) * self._width()
        return torch.full((len(like), size), -torch.inf, device=like.device)

    def _width(self) -> int:
        return -(-len(self.rows) // BLOCKS)

    @staticmethod
    def _embed(centred: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """The part of centred images (n, d) along the directions and the length of the rest, (n, k + 1); norms (n,)."""
        along = centred @ directions
        squares = torch.linalg.vector_norm(centred, dim=1, dtype=torch.float64).square()
        inside = torch.linalg.vector_norm(along, dim=1, dtype=torch.float64).square()
        rest = (squares - inside).clamp(min=0).sqrt()
        return torch.cat([along, rest[:, None].to(along)], 1), squares.sqrt()


class _Found:
    """The nearest and the nearest different image so far, of images `x` (B, d)."""

    def __init__(self, x: Tensor, nearest: NearestImages) -> None:
        self.x, self.nearest = x, nearest
        self.identity = nearest.identity_on(x.device)
        self.first = x.new_full((len(x),), torch.inf)
        self.second = x.new_full((len(x),), torch.inf)
        self.index = torch.full((len(x),), -1, device=x.device)

    def measure(self, row: Tensor, place: Tensor) -> None:
        """Measure pairs of an image and a training image in float64."""
        distance = self.x.new_empty(len(row))
        for some in torch.arange(len(row), device=row.device).split(PAIRS):
            images = to_unit(self.nearest.rows.take(place[some]), torch.float64)
            distance[some] = (images - self.x[row[some]]).norm(dim=1)
        before, former = self.first, self.index
        self.first = before.scatter_reduce(0, row, distance, "amin")
        hit = distance == self.first[row]
        nearest = torch.full_like(former, len(self.identity)).scatter_reduce(0, row[hit], place[hit], "amin")
        self.index = torch.where(self.first < before, nearest, former)
        other = self.identity[self.index] != self.identity[former]
        different = self.identity[place] != self.identity[self.index[row]]
        second = torch.where(other, before, self.second)
        self.second = second.scatter_reduce(0, row[different], distance[different], "amin")
