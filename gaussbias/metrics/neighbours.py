"""The nearest training images, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gaussbias import integers
from gaussbias.data.images import same_image, to_unit
from gaussbias.data.rows import ImageRows, chunk_size, near, round_off
from gaussbias.denoisers.chunks import OFF_CENTRE, Numbers, Pixels
from gaussbias.moments import estimate

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
        self.embedded = torch.empty(len(self.rows), self.directions.shape[1] + 1, device=images.device)
        self.half_norms = torch.empty(len(self.rows), device=images.device)
        farthest = torch.zeros((), device=images.device)
        for start, part in self.rows.chunks(chunk_size(images.device), images.device):
            here = slice(start, start + len(part))
            values = to_unit(part)
            farthest = torch.maximum(farthest, values.norm(dim=1).max())
            self.embedded[here], norms = self._embed(values - self.centre.float(), self.directions.float())
            self.half_norms[here] = norms.square() / 2
        self.longest, self.farthest = float((2 * self.half_norms.max()).sqrt()), float(farthest)
        self.as_integers = images.dtype == torch.uint8 and self.farthest <= OFF_CENTRE * self.longest

    def __call__(self, x: Tensor) -> Neighbours:
        """Search for each of the images `x` (B, C, H, W), in data units."""
        queries = max(1, SCORES // len(self.rows))
        parts = [self._search(rows) for rows in x.flatten(1).double().split(queries)]
        return Neighbours(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def _search(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, norms = self._embed(x - self.centre.to(x), self.directions.to(x))
        query = query.float()
        # x.y - ||y||^2 / 2 is ||x||^2 / 2 less half the squared distance
        width = self._width()
        embedded, half_norms = near(self.embedded, x.device), near(self.half_norms, x.device)
        scores = torch.full((len(x), -(-len(self.rows) // width) * width), -torch.inf, device=x.device)
        chunk = self.chunk or chunk_size(x.device)
        for start in range(0, len(self.rows), chunk):
            here = slice(start, min(start + chunk, len(self.rows)))
            scores[:, here] = query @ embedded[here].to(query).T - half_norms[here].to(query)
        value, place = scores.unflatten(1, (-1, width)).max(2)
        blocks = value.topk(min(FIRST, value.shape[1])).indices
        first = place.gather(1, blocks) + blocks * width

        found = _Found(x, self)
        found.measure(*_pairs(first))
        # of products; of a length of the rest near 0, which has few digits; and of centring far from 0
        error = 2 * round_off(torch.float32, norms, self.longest) + query[:, -1] * self.longest * ROOT_EPS
        error += torch.finfo(torch.float32).eps * self.farthest * (norms + self.longest)
        limit = (norms.square() - found.second.square()) / 2
        possible = scores > (limit - error).float()[:, None]
        loose = possible.sum(1) > LOOSE * len(self.rows)
        if bool(loose.any()):
            possible[loose] = self._whole(x[loose], limit[loose])
        found.measure(*possible.scatter_(1, first, False).nonzero().unbind(1))
        return found.first, found.second, found.index, x.norm(dim=1)

    def _whole(self, x: Tensor, limit: Tensor) -> Tensor:
        """Which images may be nearer than the limit (B,) by products of all pixels; (B, N) and what fills blocks up."""
        centred = x - self.centre.to(x)
        limit = limit - 2 * round_off(torch.float32, centred.norm(dim=1), self.longest)
        possible = x.new_zeros(len(x), self._width() * -(-len(self.rows) // self._width()), dtype=torch.bool)
        kind = Pixels if self.as_integers and integers.are_fast(x.device) else Numbers
        half_norms = near(self.half_norms, x.device)
        size = self.chunk or chunk_size(x.device)
        for start, products in kind(self.rows, self.centre.to(x.device), centred.float(), size):
            here = slice(start, start + products.shape[1])
            possible[:, here] = products - half_norms[here].to(products) > limit.float()[:, None]
        return possible

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


def _pairs(places: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and entries of a matrix, as pairs."""
    return torch.arange(len(places), device=places.device).repeat_interleave(places.shape[1]), places.flatten()


class _Found:
    """The nearest and the nearest different image so far, of images `x` (B, d)."""

    def __init__(self, x: Tensor, nearest: NearestImages) -> None:
        self.x, self.nearest = x, nearest
        self.identity = near(nearest.identity, x.device).to(x.device)
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
