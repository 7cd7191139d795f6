"""The distribution of noisy images that an affine map is fitted on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gaussbias.moments import Eigenmoments
from gaussbias.numerics.seeding import generator

ROUND_OFF = 1e-14
"""Variance, relative to squared lengths, that is none."""


class Pool(nn.Module):
    """A pool of images in the eigenbasis of its own moments, made complete, and the Gaussian denoiser in that basis.

    Args:
        moments: Of the pool.
        train: Of the training images, whose Gaussian denoiser fits shrink to.

    Attributes:
        mean: (d,), of the pool, in data units.
        variances: (d,), along the basis, descending; 0 outside the span of the images.
        basis: (d, d), orthonormal columns.

    Raises:
        ValueError: If the images do not vary.
    """

    mean: Tensor
    variances: Tensor
    basis: Tensor

    def __init__(self, moments: Eigenmoments, train: Eigenmoments) -> None:
        super().__init__()
        d, rank = moments.eigenvectors.shape
        for these in (moments, train):
            scale = 1 + float(these.mean.square().sum())
            if not these.eigenvalues.numel() or not float(these.eigenvalues.max()) > ROUND_OFF * scale:
                raise ValueError(f"Expected images that differ, for a covariance, but got {these.count} that do not.")
        self.train_moments, self.own = train, train is moments
        self._turned: tuple[Tensor, Tensor, Tensor] | None = None
        variances = moments.eigenvalues.new_zeros(d)
        variances[:rank] = moments.eigenvalues
        self.register_buffer("mean", moments.mean, persistent=False)
        self.register_buffer("variances", variances, persistent=False)
        self.register_buffer("basis", _complete(moments.eigenvectors), persistent=False)

    def along(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) less the mean along the basis, (n, d), float64."""
        return (images.flatten(1).to(self.basis.dtype) - self.mean) @ self.basis

    def gaussian(self, sigma: float) -> tuple[Tensor, Tensor]:
        """The Gaussian denoiser of the training images in this basis, about the pool's mean: weights and bias."""
        eigenvalues = self.train_moments.eigenvalues.to(self.basis.device)
        shrinkage = eigenvalues / (eigenvalues + sigma**2)
        if self.own:
            weights = self.basis.new_zeros(len(self.mean))
            weights[: len(shrinkage)] = shrinkage
            return weights.diag(), torch.zeros_like(self.mean)
        turned, offset, inside = self._train()
        bias = offset - turned @ (shrinkage * inside)  # D_G(mu_P) - mu_P = (I - W_G) (mu - mu_P)
        return (turned * shrinkage) @ turned.T, bias

    def _train(self) -> tuple[Tensor, Tensor, Tensor]:
        """The training images' eigenvectors and their mean less the pool's in this basis, and that mean along them."""
        if self._turned is None or self._turned[0].device != self.basis.device:
            mean, vectors = (
                part.to(self.basis.device) for part in (self.train_moments.mean, self.train_moments.eigenvectors)
            )
            self._turned = self.basis.T @ vectors, self.basis.T @ (mean - self.mean), vectors.T @ (mean - self.mean)
        return self._turned

    def in_pixels(self, weights: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """W and b of `W x + b` in data units, from an affine map in this basis about the mean."""
        full = self.basis @ weights @ self.basis.T
        return full, self.mean + self.basis @ bias - full @ self.mean


def _complete(vectors: Tensor) -> Tensor:
    """Orthonormal columns (d, r), with d - r more."""
    d, rank = vectors.shape
    if rank == d:
        return vectors
    others = torch.randn(d, d - rank, dtype=vectors.dtype, generator=generator("basis", d, rank)).to(vectors.device)
    for _ in range(2):  # twice is enough for orthogonality to round-off
        others = others - vectors @ (vectors.T @ others)
        others = torch.linalg.qr(others)[0]
    return torch.cat([vectors, others], 1)
