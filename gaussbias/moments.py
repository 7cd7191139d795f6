"""Exact mean and covariance of images, and their eigendecomposition.

For pixels the sums are exact. A pixel minus 128 is an integer of at most 2^7 in size, so a product over 1,024
images keeps every partial sum within 2^24, where float32 represents all integers: the products run at float32
speed and without any rounding. Chunks add up in float64. Mirroring permutes the pixels of an image, so the
sums over mirrored copies are the same sums with rows and columns permuted: no second pass.

Moments are those of the data set as it is (1/N, not 1/(N-1)), in data units (Li, Dai and Qu, Eq. 6,
arXiv 2410.24060).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torchmetrics import Metric

from gaussbias.data.images import mirror, to_unit
from gaussbias.data.rows import ImageRows
from gaussbias.files import complete

EXACT_ROWS = 1024
"""Rows of integers in [-128, 127] whose float32 product is exact: 1,024 * 2^14 = 2^24."""
COLUMNS = 768
"""Columns of a block of the symmetric product on a CPU; on a GPU small products cost more than the half they save."""


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

    The memory is that of two d x d matrices in float64, whatever the number of images.

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
        self.add_state("outer", torch.zeros(d, d, dtype=torch.float64), "sum")

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
        step = COLUMNS if images.device.type == "cpu" else size
        for rows in images.flatten(1).split(EXACT_ROWS):
            # pixels less 128 are integers: sums of 1,024 of them, at most 2^17, are exact as well
            values = rows.to(torch.float32) - 128 if self.pixels else rows.to(torch.float64)
            self.total += values.sum(0)
            for start in range(0, size, step):
                self.outer[start : start + step, start:] += values[:, start : start + step].T @ values[:, start:]
            self.count += len(rows)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Mean (d,) and covariance (d, d) of the images, in data units, float64."""
        return self._mean_and_covariance()

    def _mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        mean = self.total / self.count
        covariance = _symmetric(self.outer).div_(self.count).sub_(torch.outer(mean, mean))
        if not self.pixels:
            return mean, covariance
        return (mean + 0.5) / 127.5, covariance.div_(127.5**2)

    def eigenmoments(self, flip: bool = False) -> Eigenmoments:
        """The moments of this rank's images, decomposed; with `flip` their mirrored copies are added.

        Raises:
            ValueError: For fewer than 2 images.
        """
        if self.count < 2:
            raise ValueError("Expected at least 2 images for a covariance.")
        if flip:
            _add_mirrored(self)
        mean, covariance = self._mean_and_covariance()
        return decompose(mean, covariance, int(self.count), self.shape)


def estimate(images: Tensor | Iterable[Tensor], flip: bool = False) -> Eigenmoments:
    """Mean and covariance of images, decomposed in float64.

    Args:
        images: (N, C, H, W), uint8 or floating point in data units, or an iterable of such batches.
        flip: Count the mirrored copy of each image as well.

    Returns:
        All d eigenvalues, or, for a tensor of N <= d images (with their copies), the at most N-1 that are not
        0, by way of the N x N Gram matrix.

    Raises:
        ValueError: For fewer than 2 images.
    """
    if isinstance(images, Tensor):
        shape = tuple(images.shape[1:])
        count = len(images) * (1 + flip)
        if count <= math.prod(shape):
            return _from_gram(images, flip)
        batches: Iterable[Tensor] = images.split(EXACT_ROWS)
    else:
        batches = images
    moments: Moments | None = None
    for batch in batches:
        if moments is None:
            moments = Moments(tuple(batch.shape[1:]), batch.dtype == torch.uint8).to(batch.device)
        moments.update(batch)
    if moments is None:
        raise ValueError("Expected at least 2 images for a covariance.")
    return moments.eigenmoments(flip)


def read_or_estimate(path: Path, images: Tensor, flip: bool, data_fingerprint: str) -> Eigenmoments:
    """The moments of images, from `path` if it holds those of just these, which have this fingerprint."""
    moments = Eigenmoments.load(path, data_fingerprint)
    return estimate(images, flip) if moments is None else moments


def stored_fingerprint(path: Path) -> str | None:
    """The hash of the images whose moments are in a file; `None` if it is not there or not readable."""
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("fingerprint")
    except (OSError, SafetensorError):
        return None


def decompose(mean: Tensor, covariance: Tensor, count: int, shape: tuple[int, ...]) -> Eigenmoments:
    """Eigenmoments of a mean (d,) and covariance (d, d) in float64; round-off below 0 becomes 0."""
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
    rank = min(len(mean), count - 1)
    kept = eigenvalues.flip(0)[:rank].clamp(min=0)
    return Eigenmoments(mean, kept, eigenvectors.flip(1)[:, :rank].contiguous(), count, shape)


def _symmetric(upper: Tensor) -> Tensor:
    """The symmetric matrix with the upper triangle of a matrix."""
    return upper.triu().add_(upper.triu(1).T)


def _add_mirrored(moments: Moments) -> None:
    size = math.prod(moments.shape)
    order = mirror(torch.arange(size, device=moments.total.device).view(moments.shape)).flatten()
    moments.count *= 2
    moments.total += moments.total[order]
    outer = _symmetric(moments.outer)
    moments.outer = outer + outer[order][:, order]


def _from_gram(images: Tensor, flip: bool) -> Eigenmoments:
    both = torch.cat([images, mirror(images)]) if flip else images
    count = len(both)
    if count < 2:
        raise ValueError("Expected at least 2 images for a covariance.")
    values = to_unit(both.flatten(1), torch.float64)
    mean = values.mean(0)
    centred = values - mean
    eigenvalues, vectors = torch.linalg.eigh(centred @ centred.T)
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
