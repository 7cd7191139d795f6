"""The optimal denoiser of a Gaussian."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.denoisers.base import Denoiser, per_image
from gaussbias.moments import Eigenmoments
from gaussbias.numerics.precision import full_precision


class GaussianDenoiser(Denoiser):
    """`D_G(x, sigma) = mu + U diag(lam / (lam + sigma^2)) U^T (x - mu)` (Li, Dai and Qu 2024, Eq. 6, arXiv 2410.24060).

    This is the posterior mean for normal data with these moments, and the affine map of least mean squared
    error for any data with them. It is computed in this form and not through the score, which loses digits at
    large sigma.

    Args:
        moments: Mean and covariance of the data.
        dtype: Of the computation; float32 has a relative error of 4e-7.
    """

    mean: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    def __init__(self, moments: Eigenmoments, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape = moments.shape
        self.register_buffer("mean", moments.mean.to(dtype))
        self.register_buffer("eigenvalues", moments.eigenvalues.to(dtype))
        self.register_buffer("eigenvectors", moments.eigenvectors.to(dtype))

    def shrinkage(self, sigma: Tensor | float) -> Tensor:
        """`lam / (lam + sigma^2)`, for one sigma (r,), or for (B,) of them (B, r)."""
        variance = torch.as_tensor(sigma, dtype=self.mean.dtype, device=self.mean.device).square()
        return self.eigenvalues / (self.eigenvalues + variance[..., None])

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().to(self.mean.dtype)
        centred = x.flatten(1).to(self.mean.dtype) - self.mean
        with full_precision(x.device):
            along = centred @ self.eigenvectors
            clean = self.mean + (self.shrinkage(levels) * along) @ self.eigenvectors.T
        return clean.view_as(x).to(x.dtype)

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level with two projections in all, instead of one a level.

        Returns:
            (S, B, C, H, W).
        """
        with full_precision(x0.device):
            clean = (x0.flatten(1).to(self.mean.dtype) - self.mean) @ self.eigenvectors
            noise = eps.flatten(1).to(self.mean.dtype) @ self.eigenvectors
            along = torch.cat([self.shrinkage(sigma) * (clean + sigma * noise) for sigma in sigmas])
            result = self.mean + along @ self.eigenvectors.T
        return result.view(len(sigmas), *x0.shape).to(x0.dtype)
