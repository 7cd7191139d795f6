"""The local score machine: the memoriser of windows, one for each pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gaussbias.data.images import to_unit
from gaussbias.data.rows import ImageRows
from gaussbias.denoisers.base import Denoiser, on_grid, per_image
from gaussbias.denoisers.theories.checks import check_images, reach_of
from gaussbias.numerics.precision import full_precision

CACHE, ON_GPU = 2**17, 2**25
"""Pairs of pixels that are compared at a time: what stays in the cache of a CPU, or keeps a GPU busy."""
LEAST_LOGIT = -120.0
"""A weight of 2 to this is nothing."""
LEAST = 64
"""Images that are compared at a time, at least."""
TOLERANCE = 2e-5
"""Largest error of a pixel, by those of logits, for which windows are compared in float32."""


class LocalDenoiser(Denoiser):
    """The local score machine (Kamb and Ganguli 2024, arXiv 2412.20292): each pixel from a window about it.

    Pixel p sees the window W of k x k pixels about it, clipped at the border, all channels:
    `D(x)_p = sum_i softmax_i(-||x_W - y_i,W||^2 / 2 sigma^2) y_i,p`. Squared distances of windows are sums of squared
    differences over k x k pixels, made of sums along rows and then columns, for all levels together; the softmax of
    each pixel runs over all images with a running maximum, so the result does not depend on how many images are
    compared at a time.
    k >= 2 H - 1 gives D_M, and k = 1 the posterior mean of each pixel from itself.

    Differences are taken in the dtype of `x`, before they are squared. An error e of the logits changes a pixel by at
    most e times its standard deviation under the softmax. Where that could be more than 2e-5 (small noise, and images
    that are almost equally near but differ in that pixel), the noisy image is done in float64 altogether.

    Args:
        images: Training images (N, C, H, W), uint8 or floating point in data units.
        window: k, odd.
        flip: Count the mirrored copy of each image as well.
        chunk: Images that are compared at a time; `None`: what stays in the cache of a CPU, or keeps a GPU busy.
    """

    def __init__(self, images: Tensor, window: int, flip: bool = False, chunk: int | None = None) -> None:
        super().__init__()
        check_images(images)
        self.rows, self.window, self.reach, self.chunk = ImageRows(images, flip), window, reach_of(window), chunk
        self.shape = tuple(images.shape[1:])
        self.largest = 1.0 if images.dtype == torch.uint8 else float(images.abs().max())

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        levels = per_image(sigma, x).flatten().double()[None]
        return self._denoise(x, None, levels, [0.0])[0]

    def forward_grid(self, x0: Tensor, eps: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigma eps` at every level; levels share the distances of `x0`, and products with `eps`.

        Returns:
            (S, B, C, H, W).
        """
        levels = on_grid(sigmas, x0)
        return self._denoise(x0, eps, levels, sigmas)

    def _denoise(self, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Denoise `x0 + sigmas[s] eps` at levels (S, B); without eps, x0 itself."""
        budget = ON_GPU if x0.device.type == "cuda" else CACHE
        pixels = x0.shape[-2] * x0.shape[-1]
        size = max(1, min(len(x0), budget // (pixels * LEAST)))
        noises = [None] * len(x0) if eps is None else eps.split(size)
        with full_precision(x0.device):
            parts = [
                self._some(part, noise, level, sigmas, budget)
                for part, noise, level in zip(x0.split(size), noises, levels.split(size, 1), strict=False)
            ]
        return torch.cat(parts, 1)

    def _some(self, x0: Tensor, eps: Tensor | None, levels: Tensor, sigmas: Sequence[float], budget: int) -> Tensor:
        window = min(self.window, x0.shape[-2]) * min(self.window, x0.shape[-1]) * x0.shape[1]
        far = window * (x0.abs().max().double() + self.largest) ** 2 / (2 * levels.square())
        if eps is not None:
            far = far + 2 * (window * eps.abs().max().double() ** 2 / 2 * far).sqrt()
        sums = _Sums(levels, x0, (_round_off(far) > TOLERANCE).any(1).tolist())
        scale = (-0.5 / math.log(2) / levels.square()).to(x0.dtype)
        size = self.chunk or max(LEAST, budget // (len(x0) * x0.shape[-2] * x0.shape[-1]))
        for _, rows in self.rows.chunks(size, x0.device):
            images = to_unit(rows, x0.dtype).view(-1, *x0.shape[1:]).permute(1, 2, 3, 0).contiguous()
            pixels = images.flatten(1, 2).transpose(0, 1)
            values = torch.cat([torch.ones_like(pixels[:, :1]), pixels, pixels.square()], 1)
            squares, along = self._compare(x0, eps, images)
            for level, sigma in enumerate(sigmas):
                logits = squares.clone() if along is None else torch.add(squares, along, alpha=2 * sigma)
                sums.add(level, logits.mul_(scale[level, :, None]), values)
        result, best = sums.result()
        if x0.dtype == torch.float64:
            return result
        rough = self._rough(best, sums.spread(), eps)
        for level, sigma in enumerate(sigmas):
            chosen = rough[level]
            if chosen.any():
                noisy = x0[chosen].double() + (0.0 if eps is None else sigma * eps[chosen].double())
                again = self._denoise(noisy, None, levels[level, chosen][None], [0.0])[0]
                result[level, chosen] = again.to(result.dtype)
        return result

    def _compare(self, x0: Tensor, eps: Tensor | None, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """`||x0 - y||^2` and `eps . (x0 - y)` over the window of each pixel, (H, W, B, n), of images (C, H, W, n)."""
        clean = x0.permute(1, 2, 3, 0)[..., None]
        noise = None if eps is None else eps.permute(1, 2, 3, 0)[..., None]
        squares: Tensor | None = None
        along: Tensor | None = None
        for channel, image in enumerate(images):
            rest = clean[channel] - image[:, :, None]
            if noise is not None:
                along = rest * noise[channel] if along is None else along.addcmul_(rest, noise[channel])
            squares = rest.square_() if squares is None else squares.addcmul_(rest, rest)
        assert squares is not None
        return self._over_windows(squares), None if along is None else self._over_windows(along)

    def _over_windows(self, values: Tensor) -> Tensor:
        """Sums over the window of each pixel, clipped at the border, of values (H, W, ...)."""
        return _along_first(_along_first(values, self.reach).transpose(0, 1), self.reach).transpose(0, 1)

    def _rough(self, best: Tensor, spread: Tensor, eps: Tensor | None) -> Tensor:
        """Whether logits of a noisy image are too large for float32 (S, B).

        Args:
            best: The best logit of each pixel (S, H, W, B).
            spread: Its standard deviation under the softmax (S, H, W, B).
            eps: Noise, if it is given by itself.
        """
        # logits are `-||x - y||^2 / 2 sigma^2`, plus `||eps||^2 / 2` if noise is given by itself; by the triangle
        # inequality the two parts that then add up to them are at most `square` and `2 sqrt(noise square)`
        size = -best.double()
        if eps is not None:
            noise = self._over_windows(eps.double().square().sum(1).permute(1, 2, 0)) / 2
            square = 2 * (size + 2 * noise)
            size = square + 2 * (noise * square).sqrt()
        return (_round_off(size) * spread).amax((1, 2)) > TOLERANCE


def _round_off(size: Tensor) -> Tensor:
    """The error of a logit in float32, by the size of what it is the sum of."""
    return 2 * torch.finfo(torch.float32).eps * size


class _Sums:
    """Running weighted sums over images of each level, noisy image and pixel; logits are in units of log 2.

    Args:
        levels: Noise levels (S, B).
        x0: Images (B, C, H, W).
        squares: Whether squares of pixels are summed as well, at each level.
    """

    def __init__(self, levels: Tensor, x0: Tensor, squares: Sequence[bool]) -> None:
        count, channels, height, width = x0.shape
        self.channels = channels
        self.top = x0.new_full((len(levels), height, width, count), -torch.inf)
        self.summed = [
            x0.new_zeros(height * width, 1 + (2 if also else 1) * channels, count, dtype=torch.float64)
            for also in squares
        ]

    def add(self, level: int, logits: Tensor, values: Tensor) -> None:
        """Add images with their logits (H, W, B, n), by ones, pixels and their squares (H * W, 1 + 2 C, n)."""
        before = self.top[level]
        top = torch.maximum(before, logits.amax(-1))
        # far below its range the exponential of CPUs takes ten times as long
        weights = logits.sub_(top[..., None]).clamp_(min=LEAST_LOGIT).exp2_().flatten(0, 1)
        shrink = (before - top).double().exp2().flatten(0, 1)[:, None]
        summed = self.summed[level]
        self.summed[level] = summed * shrink + values[:, : summed.shape[1]] @ weights.mT
        self.top[level] = top

    def result(self) -> tuple[Tensor, Tensor]:
        """The means (S, B, C, H, W), and the best logit of each pixel (S, H, W, B), natural."""
        means = torch.stack([part[:, 1 : 1 + self.channels] / part[:, :1] for part in self.summed])
        levels, height, width, count = self.top.shape
        shaped = means.view(levels, height, width, -1, count).permute(0, 4, 3, 1, 2)
        return shaped.to(self.top.dtype).contiguous(), self.top * math.log(2)

    def spread(self) -> Tensor:
        """The standard deviation of each pixel (S, H, W, B), the largest of its channels; 0 without sums of squares."""
        levels, height, width, count = self.top.shape
        found = self.top.new_zeros(levels, height * width, count, dtype=torch.float64)
        for level, part in enumerate(self.summed):
            if part.shape[1] > 1 + self.channels:
                ones, pixels, squares = part.split([1, self.channels, self.channels], 1)
                variance = squares / ones - (pixels / ones).square()
                found[level] = variance.clamp(min=0).sqrt().amax(1)
        return found.view(levels, height, width, count)


def _along_first(values: Tensor, reach: int) -> Tensor:
    """Sums over up to so many neighbours on each side along the first dimension."""
    result = values.clone()
    for shift in range(1, min(reach, len(values) - 1) + 1):
        result[shift:] += values[:-shift]
        result[:-shift] += values[shift:]
    return result
