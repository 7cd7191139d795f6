"""The local Wiener filter: the best affine estimate of each pixel from a window about it."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.denoisers.base import Denoiser, per_image
from gaussbias.denoisers.theories.checks import reach_of
from gaussbias.moments import Eigenmoments

KEPT = 32
"""Noise levels whose filters are kept."""
NUMBERS = 2**24
"""Of the matrices that are inverted at a time."""


class WienerDenoiser(Denoiser):
    """`D_p = mu_p + S_pW (S_WW + sigma^2 I)^-1 (x_W - mu_W)`, W the window of k x k pixels about p, all channels.

    S is the covariance of the training images. Of all affine maps whose output at a pixel depends on its window alone
    it has the least expected error, for any data with these moments; k >= 2 H - 1 gives D_G. It tells the locality that
    the covariance of the data has from locality that a network adds.

    Args:
        moments: Mean and covariance of the data.
        window: k, odd.
    """

    mean: Tensor
    covariance: Tensor
    places: Tensor
    inside: Tensor

    def __init__(self, moments: Eigenmoments, window: int) -> None:
        super().__init__()
        reach = reach_of(window)
        self.shape = moments.shape
        places, inside = _windows(self.shape, reach)
        basis = moments.eigenvectors.double()
        self.register_buffer("mean", moments.mean.double())
        self.register_buffer("covariance", (basis * moments.eigenvalues.double()) @ basis.T)
        self.register_buffer("places", places)
        self.register_buffer("inside", inside)
        self.kept: dict[float, Tensor] = {}

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels, result = per_image(sigma, x).flatten().double(), torch.empty_like(x)
        for level in levels.unique().tolist():
            chosen = (levels == level).nonzero().flatten()
            for some in chosen.split(max(1, NUMBERS // self.places.numel())):
                centred = x[some].flatten(1).double() - self.mean
                windows = centred[:, self.places].transpose(0, 1)
                along = (windows @ self.filter(level)).permute(1, 2, 0).flatten(1)
                result[some] = (self.mean + along).view(-1, *self.shape).to(x.dtype)
        return result

    def filter(self, sigma: float) -> Tensor:
        """`(S_WW + sigma^2 I)^-1 S_Wp` (P, k^2 C, C) of each of the P pixels, 0 beyond the border; kept for later."""
        if sigma not in self.kept or self.kept[sigma].device != self.mean.device:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            size = max(1, NUMBERS // self.places.shape[1] ** 2)
            parts = zip(self.places.split(size), self.inside.split(size), self._pixels().split(size), strict=True)
            self.kept[sigma] = torch.cat([self._solve(*part, sigma) for part in parts])
        return self.kept[sigma]

    def expected_mse(self, sigma: float) -> float:
        """Its expected error over d, on data with these moments.

        It is `sum_p tr(S_pp - S_pW (S_WW + sigma^2 I)^-1 S_Wp) / d`.
        """
        beside = self.covariance[self.places[:, :, None], self._pixels()[:, None, :]]
        return float(self.covariance.trace() - (self.filter(sigma) * beside).sum()) / len(self.mean)

    def _pixels(self) -> Tensor:
        """The places (P, C) of the channels of each pixel."""
        channels, height, width = self.shape
        return torch.arange(channels * height * width, device=self.mean.device).view(channels, -1).T

    def _solve(self, places: Tensor, inside: Tensor, pixels: Tensor, sigma: float) -> Tensor:
        both = inside[:, :, None] & inside[:, None, :]
        within = self.covariance[places[:, :, None], places[:, None, :]].where(both, 0.0)
        within.diagonal(dim1=1, dim2=2).add_(torch.where(inside, within.new_tensor(sigma**2), 1.0))
        beside = self.covariance[places[:, :, None], pixels[:, None, :]].where(inside[:, :, None], 0.0)
        return torch.cholesky_solve(beside, torch.linalg.cholesky(within))


def _windows(shape: tuple[int, ...], reach: int) -> tuple[Tensor, Tensor]:
    """Places (P, k^2 C) of what each pixel sees, in rows of channels first, and which of them are inside the image."""
    channels, height, width = shape
    reach = min(reach, max(height, width) - 1)
    steps = torch.arange(-reach, reach + 1)
    y = torch.arange(height)[:, None] + steps
    x = torch.arange(width)[:, None] + steps
    inside_y, inside_x = (y >= 0) & (y < height), (x >= 0) & (x < width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    pixel = y[:, None, :, None] * width + x[None, :, None, :]
    inside = inside_y[:, None, :, None] & inside_x[None, :, None, :]
    pixel, inside = pixel.reshape(height * width, -1), inside.expand_as(pixel).reshape(height * width, -1)
    offsets = torch.arange(channels) * height * width
    return (pixel[:, None, :] + offsets[:, None]).flatten(1), inside[:, None, :].expand(-1, channels, -1).flatten(1)
