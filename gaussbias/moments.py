"""Exact mean and covariance of images, and their eigendecomposition.

For pixels the sums are exact. A pixel minus 128 is an integer of at most 2^7 in size. Where the hardware multiplies
such integers (`gaussbias.numerics.integers`) they add up in 32 bits; elsewhere a product over 1,024 images keeps every
partial sum within 2^24, where float32 represents all integers: the products run at float32 speed, without any rounding.
Chunks add up in float64. Mirroring permutes the pixels of an image, so the sums over mirrored copies are the same sums
with rows and columns permuted: no second pass.

The covariance takes the place of the sums that it is made of: one d x d matrix in all, until it is decomposed.

Moments are those of the data set as it is (1/N, not 1/(N-1)), in data units (Li, Dai and Qu, Eq. 6,
arXiv 2410.24060).
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torchmetrics import Metric

from gaussbias.data.images import LARGEST_MATRIX, mirror, to_unit
from gaussbias.data.rows import ImageRows
from gaussbias.numerics import integers
from gaussbias.numerics.precision import full_precision
from gaussbias.system.errors import UserError
from gaussbias.system.files import UNREADABLE, complete, reason

log = logging.getLogger("gaussbias")

EXACT_ROWS = 1024
"""Rows of integers in [-128, 127] whose float32 product is exact: 1,024 * 2^14 = 2^24."""
INTEGERS = 2**25
"""Pixels in a product of integers: 32 MB of them, so that few sums in float64 are taken."""
LARGEST_ON_GPU = 20_000
"""Rows of the largest matrix that a GPU is given: cuSOLVER is reported to fail from about 23,000."""
PATIENCE, PATIENCE_EACH = 60.0, 5e-10
"""Seconds that other ranks wait for the one that estimates, and for each n^3 of a matrix: twice what a core takes; a
tenth of that for each product of numbers of images."""
COLUMNS = 384
"""Columns of a block of a symmetric matrix; products on a GPU take all at once, the smaller ones save it nothing."""


@dataclass(frozen=True)
class Eigenmoments:
    """Mean and covariance of a set of images, the covariance as eigenvalues and eigenvectors; float64.

    Attributes:
        mean: (d,), in data units.
        eigenvalues: (r,), descending, at least 0, in data units squared. What is left out is exactly 0.
        eigenvectors: (d, r), orthonormal columns.
        count: Images, mirrored copies included.
        shape: (C, H, W), with d = C*H*W; vectors are channels first.
    """

    mean: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor
    count: int
    shape: tuple[int, ...]

    @property
    def effective_rank(self) -> float:
        """`(sum lam)^2 / sum lam^2`, the number of equal eigenvalues that would be as concentrated."""
        return float(self.eigenvalues.sum() ** 2 / self.eigenvalues.square().sum())

    @property
    def deviation(self) -> float:
        """The standard deviation of all numbers of all images about their common mean, in data units."""
        spread = self.mean - self.mean.mean()
        return math.sqrt(float(self.eigenvalues.sum() + spread.square().sum()) / len(self.mean))

    def to(self, device: torch.device) -> Eigenmoments:
        """The same on a device."""
        tensors = {name: getattr(self, name).to(device) for name in ("mean", "eigenvalues", "eigenvectors")}
        return replace(self, **tensors)

    def save(self, path: Path, data_fingerprint: str = "") -> None:
        """Write a safetensors file, with a hash of the images that the moments belong to."""
        metadata = {
            "format": "gaussbias.moments/1",
            "count": str(self.count),
            "shape": json.dumps(self.shape),
            "fingerprint": data_fingerprint,
        }
        tensors = {name: getattr(self, name).cpu().contiguous() for name in ("mean", "eigenvalues", "eigenvectors")}
        with complete(path) as temporary:
            save_file(tensors, temporary, metadata)

    @staticmethod
    def load(path: Path, data_fingerprint: str | None = None) -> Eigenmoments | None:
        """Read what `save` wrote; `None` if it is not there, not readable, or of other images."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if data_fingerprint is not None and metadata.get("fingerprint") != data_fingerprint:
                    return None
                mean, eigenvalues, eigenvectors = (
                    file.get_tensor(name) for name in ("mean", "eigenvalues", "eigenvectors")
                )
                shape = tuple(int(side) for side in json.loads(metadata["shape"]))
                if eigenvectors.shape != (math.prod(shape), len(eigenvalues)) or len(mean) != math.prod(shape):
                    return None
                return Eigenmoments(mean, eigenvalues, eigenvectors, int(metadata["count"]), shape)
        except Exception:  # what a file from elsewhere leads to has no base class
            return None


class Moments(Metric):
    """Streaming mean and covariance; exact for uint8, float64 otherwise.

    The memory is that of one d x d matrix in float64, whatever the number of images; `compute` takes another.

    Args:
        shape: (C, H, W) of the images.
        pixels: Whether the images are uint8; else floating point, in data units.

    Example:
        >>> import torch
        >>> moments = Moments((1, 1, 2), pixels=False)
        >>> moments.update(torch.tensor([[[[0.0, 1.0]]], [[[2.0, 3.0]]]]))
        >>> mean, covariance = moments.compute()
        >>> mean.tolist(), covariance.tolist()
        ([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]])
    """

    full_state_update = False
    count: Tensor
    total: Tensor
    outer: Tensor

    def __init__(self, shape: tuple[int, ...], pixels: bool) -> None:
        super().__init__()
        d = math.prod(shape)
        self.shape, self.pixels = shape, pixels
        self.add_state("count", torch.zeros((), dtype=torch.float64), "sum")
        self.add_state("total", torch.zeros(d, dtype=torch.float64), "sum")
        self.add_state("outer", torch.zeros(0, dtype=torch.float64), "sum")
        # Metric keeps what a state is reset to, and moves it to the device as well: one number instead of a matrix
        self._defaults["outer"] = torch.zeros((), dtype=torch.float64)
        self.outer = torch.zeros(d, d, dtype=torch.float64)

    def reset(self) -> None:
        """Forget all images."""
        super().reset()
        self.outer = self.total.new_zeros(len(self.total), len(self.total))

    def update(self, images: Tensor) -> None:
        """Add images (B, C, H, W).

        Raises:
            ValueError: For another shape or kind of number than the metric was made for.
        """
        if images.shape[1:] != self.shape or (images.dtype == torch.uint8) != self.pixels:
            raise ValueError(
                f"Expected {'uint8' if self.pixels else 'floating-point'} images of shape {self.shape} "
                f"but got {images.dtype} of {tuple(images.shape[1:])}."
            )
        size = len(self.total)
        if not len(self.outer):  # they were used up
            self.outer = self.total.new_zeros(size, size)
        step = COLUMNS if images.device.type == "cpu" else size
        fast = self.pixels and integers.are_fast(images.device)
        rows = max(8, min(integers.ROWS, INTEGERS // size)) if fast else EXACT_ROWS
        multiply = integers.product if fast else torch.matmul
        for part in images.flatten(1).split(rows):
            if fast:
                values = integers.signed(part)
                self.total += integers.column_sums(values)
            else:
                # sums of 1,024 integers, at most 2^17, are exact as well
                values = part.to(torch.float32) - 128 if self.pixels else part.to(torch.float64)
                self.total += values.sum(0)
            with full_precision(images.device):  # bf16 could not hold the sums
                for start in range(0, size, step):
                    here = slice(start, start + step)
                    self.outer[here, start:] += multiply(values[:, here].T, values[:, start:])
            self.count += len(part)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Mean (d,) and covariance (d, d) of the images, in data units, float64.

        Raises:
            ValueError: Without images.
        """
        if not self.count:
            raise ValueError("Expected images before moments are computed, but got none.")
        return self._mean_and_covariance(self.outer.clone())

    def eigenmoments(self, flip: bool = False) -> Eigenmoments:
        """The moments of this rank's images, decomposed; with `flip` with their mirrored copies. It uses the sums up.

        Raises:
            ValueError: For fewer than 2 images.
        """
        if self.count < 2:
            raise ValueError("Expected at least 2 images for a covariance.")
        mean, covariance = self._mean_and_covariance(self.outer, flip)
        count = int(self.count) * (1 + flip)
        self.count, self.total = torch.zeros_like(self.count), torch.zeros_like(self.total)
        self.outer = covariance.new_empty(0)  # until `update` begins again
        return decompose(mean, covariance, count, self.shape)

    def combined(self, add: Callable[[Tensor], Tensor], flip: bool = False) -> Eigenmoments:
        """Like `eigenmoments`, of sums that `add` makes of this rank's, which stay as they are.

        Args:
            add: Returns a tensor of its own, such as the sum over ranks.
            flip: Count mirrored copies as well.
        """
        total = copy(self)
        total.count, total.total, total.outer = add(self.count), add(self.total), add(self.outer)
        return total.eigenmoments(flip)

    def _mean_and_covariance(self, outer: Tensor, flip: bool = False) -> tuple[Tensor, Tensor]:
        """The covariance takes the place of `outer`."""
        count, total = self.count, self.total
        _complete(outer)
        if flip:
            order = mirror(torch.arange(len(total), device=total.device).view(self.shape)).flatten()
            count, total = 2 * count, total + total[order]
            _add_mirrored(outer, order)
        mean = total / count
        unit = 127.5 if self.pixels else 1.0
        for start in range(0, len(mean), COLUMNS):
            rows = outer[start : start + COLUMNS]
            rows.div_(count).sub_(mean[start : start + COLUMNS, None] * mean).div_(unit**2)
        return ((mean + 0.5) / 127.5 if self.pixels else mean), outer


def estimate(images: Tensor | Iterable[Tensor], flip: bool = False, device: torch.device | None = None) -> Eigenmoments:
    """Mean and covariance of images, decomposed in float64.

    Args:
        images: (N, C, H, W), uint8 or floating point in data units, or an iterable of such batches.
        flip: Count the mirrored copy of each image as well.
        device: Where a tensor of images is added up and decomposed, if not where it is; a GPU that cannot leaves it to
            the CPU. The result is then on the CPU.

    Returns:
        All d eigenvalues, or, for a tensor of N <= d images (with their copies), the at most N-1 that are not
        0, by way of the N x N Gram matrix.

    Raises:
        ValueError: For fewer than 2 images, and where both they and their pixels are more than `LARGEST_MATRIX`.
    """
    if not isinstance(images, Tensor):
        return _from_sums(images, flip)
    count, d = len(images) * (1 + flip), math.prod(images.shape[1:])
    if min(count, d) > LARGEST_MATRIX:
        raise ValueError(
            f"Expected at most {LARGEST_MATRIX:,} images, or numbers in an image, for the eigenvectors of a matrix of "
            f"so many rows, but got {count:,} of {d:,}."
        )
    if device is not None and device != images.device:
        try:
            return _of_tensor(images, flip, device).to(images.device)
        except RuntimeError as error:  # of too little memory there are several
            if device.type != "cuda":
                raise
            log.warning("moments are computed on the CPU, because the GPU failed (%s)", reason(error))
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()  # matrices that are not needed again, for those who ask how much is free
    return _of_tensor(images, flip, images.device)


def _of_tensor(images: Tensor, flip: bool, device: torch.device) -> Eigenmoments:
    if len(images) * (1 + flip) <= math.prod(images.shape[1:]):
        return _from_gram(images.to(device), flip)
    return _from_sums((part.to(device) for part in images.split(EXACT_ROWS)), flip)


def _from_sums(batches: Iterable[Tensor], flip: bool) -> Eigenmoments:
    moments: Moments | None = None
    for batch in batches:
        if moments is None:
            moments = Moments(tuple(batch.shape[1:]), batch.dtype == torch.uint8).to(batch.device)
        moments.update(batch)
    if moments is None:
        raise ValueError("Expected at least 2 images for a covariance.")
    return moments.eigenmoments(flip)


def read_or_estimate(
    path: Path,
    images: Tensor,
    flip: bool,
    data_fingerprint: str,
    device: torch.device | None = None,
    wait: bool = False,
) -> Eigenmoments:
    """The moments of images, from `path` if it holds those of just these, which have this fingerprint.

    Args:
        path: A file of moments, which need not be there.
        images: (N, C, H, W).
        flip: Whether mirrored copies count.
        data_fingerprint: Of the images.
        device: Where they are estimated.
        wait: Whether another process estimates them, and writes the file; after far more time than that should take
            this one does.
    """
    count, d = len(images) * (1 + flip), math.prod(images.shape[1:])
    work = min(count, d) ** 3 + count * d * min(count, d) / 10
    until = time.monotonic() + (PATIENCE + PATIENCE_EACH * work if wait else 0)
    while (moments := Eigenmoments.load(path, data_fingerprint)) is None and time.monotonic() < until:
        time.sleep(0.1)
    return estimate(images, flip, device) if moments is None else moments


def stored_fingerprint(path: Path) -> str | None:
    """The hash of the images whose moments are in a file; `None` if it is not there or damaged.

    Raises:
        UserError: If it is there and may not be read: nobody could tell whether the images are the same.
    """
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("fingerprint")
    except (OSError, SafetensorError) as error:
        if reason(error) == UNREADABLE:
            raise UserError(f"expected moments that may be read at {path}: {UNREADABLE}") from None
        return None


def decompose(mean: Tensor, covariance: Tensor, count: int, shape: tuple[int, ...]) -> Eigenmoments:
    """Eigenmoments of a mean (d,) and covariance (d, d) in float64; round-off below 0 becomes 0."""
    eigenvalues, eigenvectors = eigh(covariance)
    rank = min(len(mean), count - 1)
    kept = eigenvalues.flip(0)[:rank].clamp(min=0)
    return Eigenmoments(mean, kept, _last_first(eigenvectors, rank), count, shape)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix; of a GPU's by the CPU where it cannot."""
    if matrix.device.type != "cuda" or len(matrix) <= LARGEST_ON_GPU:
        try:
            values, vectors = torch.linalg.eigh(matrix)
            return values, vectors
        except RuntimeError as error:
            if matrix.device.type != "cuda":
                raise
            log.warning(
                "the GPU failed to decompose a matrix of %d rows, so the CPU does it (%s)", len(matrix), reason(error)
            )
    values, vectors = torch.linalg.eigh(matrix.cpu())
    return values.to(matrix.device), vectors.to(matrix.device)


def _last_first(columns: Tensor, count: int) -> Tensor:
    """The last columns of a matrix, from the last one on; some at a time, without another copy of all."""
    result = columns.new_empty(len(columns), count)
    for start in range(0, count, COLUMNS):
        stop = min(start + COLUMNS, count)
        result[:, start:stop] = columns[:, columns.shape[1] - stop : columns.shape[1] - start].flip(1)
    return result


def _complete(upper: Tensor) -> None:
    """Fill the lower triangle of a symmetric matrix, in its place."""
    for start in range(0, len(upper), COLUMNS):
        here = slice(start, start + COLUMNS)
        upper[here, :start] = upper[:start, here].T
        block = upper[here, here]
        block.copy_(block.triu() + block.triu(1).T)


def _add_mirrored(outer: Tensor, order: Tensor) -> None:
    """Add to a symmetric matrix the same with rows and columns in an order that is its own inverse, in its place.

    Rows i and order[i] need only each other, so pairs of them are done one after another.
    """
    rows = torch.arange(len(order), device=order.device)
    for row in rows[rows < order].split(COLUMNS):
        other = order[row]
        both = outer[row] + outer[other][:, order]
        outer[row], outer[other] = both, both[:, order]
    for row in rows[rows == order].split(COLUMNS):
        outer[row] += outer[row][:, order]


def _from_gram(images: Tensor, flip: bool) -> Eigenmoments:
    both = torch.cat([images, mirror(images)]) if flip else images
    count = len(both)
    if count < 2:
        raise ValueError("Expected at least 2 images for a covariance.")
    values = to_unit(both.flatten(1), torch.float64)
    mean = values.mean(0)
    centred = values - mean
    eigenvalues, vectors = eigh(centred @ centred.T)
    # an eigenvalue of the Gram matrix is N times one of the covariance; the smallest is the mean's, 0
    limit = eigenvalues[-1] * count * torch.finfo(torch.float64).eps
    rank = min(count - 1, int((eigenvalues > limit).sum()))
    kept, vectors = eigenvalues.flip(0)[:rank], vectors.flip(1)[:, :rank]
    # QR mends the loss of orthogonality among directions of tiny variance
    directions, triangle = torch.linalg.qr(centred.T @ (vectors / kept.sqrt()))
    directions = directions * triangle.diagonal().sign()
    return Eigenmoments(mean, kept / count, directions.contiguous(), count, tuple(images.shape[1:]))


@dataclass(frozen=True)
class Projection:
    """Second moments of a pool of images about its own mean, along the eigenvectors of a data set.

    Attributes:
        offset: (r,), `U^T (mu_P - mu)`.
        variances: (r,), `u_i^T Sigma_P u_i`.
        offset_outside: `||(I - U U^T)(mu_P - mu)||^2`.
        variance_outside: `tr[(I - U U^T) Sigma_P]`.
    """

    offset: Tensor
    variances: Tensor
    offset_outside: float
    variance_outside: float

    @staticmethod
    def itself(moments: Eigenmoments) -> Projection:
        """The data set along its own eigenvectors."""
        return Projection(torch.zeros_like(moments.eigenvalues), moments.eigenvalues, 0.0, 0.0)


def project(moments: Eigenmoments, images: Tensor, flip: bool = False) -> Projection:
    """Second moments of `images` along the eigenvectors of `moments`, in float64, by one pass in chunks."""
    every = ImageRows(images, flip)
    shift = torch.zeros_like(moments.mean)
    total = torch.zeros_like(moments.eigenvalues)
    squares = torch.zeros_like(moments.eigenvalues)
    norm = 0.0
    for _, rows in every.chunks(EXACT_ROWS, moments.mean.device):
        centred = to_unit(rows, torch.float64) - moments.mean
        along = centred @ moments.eigenvectors
        shift += centred.sum(0)
        norm += float(centred.square().sum())
        total += along.sum(0)
        squares += along.square().sum(0)
    count = len(every)
    offset, shift = total / count, shift / count
    variances = squares / count - offset.square()
    offset_outside = float(shift.square().sum() - offset.square().sum())
    variance_total = norm / count - float(shift.square().sum())
    return Projection(offset, variances, max(offset_outside, 0.0), max(variance_total - float(variances.sum()), 0.0))
