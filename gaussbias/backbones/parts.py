"""What the residual U-Nets of Song et al. 2021 and of Dhariwal and Nichol 2021 are made of.

Parameters have the names that checkpoints of EDM give them, so that those load as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, conv_transpose2d, interpolate, scaled_dot_product_attention, silu

Resampling = Literal["up", "down"] | None
BOX = (1, 1)
"""The filter of averaging 2 x 2 pixels, and of doubling them."""


def groups(channels: int) -> int:
    """Groups for normalising: 4 channels or more in each, at most 32."""
    return next(n for n in range(max(1, min(32, channels // 4)), 0, -1) if channels % n == 0)


class Conv(nn.Module):
    """A convolution of odd kernel that keeps the size, before or after the image is doubled or halved with a filter.

    Args:
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels a side; 0 only resamples.
        resampling: Whether the image is doubled (before the convolution) or halved.
        taps: The filter along each axis, of resampling.
        fused: Halve after the convolution instead of before it.
    """

    resample_filter: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        resampling: Resampling = None,
        taps: Sequence[float] = BOX,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.resampling, self.kernel, self.fused = resampling, kernel, fused
        self.box = tuple(taps) == BOX
        if kernel:
            plain = nn.Conv2d(inputs, outputs, kernel)
            self.weight, self.bias = plain.weight, plain.bias
        if resampling is not None:
            # on the CPU whatever the default device: networks are built on the meta device, and this is not loaded
            line = torch.tensor(taps, dtype=torch.float32, device="cpu")
            square = line.outer(line) / line.sum().square()
            self.register_buffer("resample_filter", square[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H', W')."""
        if self.fused and self.resampling == "down":
            edge = (self.resample_filter.shape[-1] - 1) // 2
            return self._halved(conv2d(x, self.weight, self.bias, padding=self.kernel // 2 + edge), 0)
        if self.resampling == "up":
            x = self._doubled(x)
        elif self.resampling == "down":
            x = self._halved(x, (self.resample_filter.shape[-1] - 1) // 2)
        return conv2d(x, self.weight, self.bias, padding=self.kernel // 2) if self.kernel else x

    def _doubled(self, x: Tensor) -> Tensor:
        if self.box:
            return interpolate(x, scale_factor=2, mode="nearest")
        each = (4 * self.resample_filter).to(x.dtype).expand(x.shape[1], -1, -1, -1)
        return conv_transpose2d(x, each, stride=2, padding=(each.shape[-1] - 1) // 2, groups=x.shape[1])

    def _halved(self, x: Tensor, padding: int) -> Tensor:
        if self.box:
            return avg_pool2d(x, 2)
        each = self.resample_filter.to(x.dtype).expand(x.shape[1], -1, -1, -1)
        return conv2d(x, each, stride=2, padding=padding, groups=x.shape[1])


class Block(nn.Module):
    """A residual block with an embedding of the noise level, and self-attention where there are heads.

    Args:
        inputs: Channels.
        outputs: Channels.
        embedding: Width of the embedding.
        resampling: Whether the block doubles or halves the image.
        taps: The filter of that.
        heads: Of the attention; 0 has none.
        dropout: Probability.
        scales: Whether the embedding scales and shifts what is normalised (Dhariwal and Nichol), or is added before
            (Song et al.).
        projects: Whether the way around has a convolution wherever the image is resampled, or only where channels
            change.
        skip_scale: Of the sum of both ways.
        eps: Of the normalisation.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        embedding: int,
        resampling: Resampling = None,
        taps: Sequence[float] = BOX,
        heads: int = 0,
        dropout: float = 0.0,
        scales: bool = False,
        projects: bool = True,
        skip_scale: float = 1.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.outputs, self.heads, self.scales, self.skip_scale = outputs, heads, scales, skip_scale
        self.norm0 = nn.GroupNorm(groups(inputs), inputs, eps)
        self.conv0 = Conv(inputs, outputs, 3, resampling, taps)
        self.affine = nn.Linear(embedding, outputs * (1 + scales))
        self.norm1 = nn.GroupNorm(groups(outputs), outputs, eps)
        self.dropout = nn.Dropout(dropout)
        self.conv1 = Conv(outputs, outputs, 3)
        self.skip: Conv | None = None
        if inputs != outputs or resampling is not None:
            self.skip = Conv(inputs, outputs, int(projects or inputs != outputs), resampling, taps)
        if heads:
            self.norm2 = nn.GroupNorm(groups(outputs), outputs, eps)
            self.qkv = Conv(outputs, 3 * outputs, 1)
            self.proj = Conv(outputs, outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(B, inputs, H, W) and (B, embedding) to (B, outputs, H', W')."""
        hidden = self.conv0(silu(self.norm0(x)))
        about = self.affine(embedding)[:, :, None, None].to(hidden.dtype)
        if self.scales:
            scale, shift = about.chunk(2, 1)
            hidden = silu(torch.addcmul(shift, self.norm1(hidden), scale + 1))
        else:
            hidden = silu(self.norm1(hidden + about))
        hidden = self.conv1(self.dropout(hidden))
        x = (hidden + (x if self.skip is None else self.skip(x))) * self.skip_scale
        return (self.proj(self._attend(x)) + x) * self.skip_scale if self.heads else x

    def _attend(self, x: Tensor) -> Tensor:
        """Self-attention over pixels; query, key and value of a channel lie next to each other in `qkv`."""
        packed = self.qkv(self.norm2(x)).view(len(x), self.heads, -1, 3, x[0, 0].numel())
        query, key, value = packed.transpose(2, 4).unbind(3)
        return scaled_dot_product_attention(query, key, value).transpose(2, 3).reshape(x.shape)


def embed_positions(x: Tensor, channels: int, endpoint: bool) -> Tensor:
    """Cosines and sines of x (B,) at frequencies from 1 to 1e-4, (B, channels); with `endpoint` 1e-4 is among them."""
    half = channels // 2
    powers = torch.arange(half, dtype=torch.float32, device=x.device) / (half - int(endpoint))
    angles = x.float()[:, None] * (1 / 10000) ** powers
    return torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype)


class Fourier(nn.Module):
    """Cosines and sines of `2 pi f x` at random frequencies f (Tancik et al. 2020; Song et al. 2021).

    Args:
        channels: Width of the embedding.
        scale: Standard deviation of f.
    """

    freqs: Tensor

    def __init__(self, channels: int, scale: float = 16.0) -> None:
        super().__init__()
        self.register_buffer("freqs", torch.randn(channels // 2) * scale)

    def forward(self, x: Tensor) -> Tensor:
        """(B,) to (B, channels)."""
        angles = x.float()[:, None] * (2 * math.pi * self.freqs)
        return torch.cat([angles.cos(), angles.sin()], 1)


def initialise(module: nn.Module, fill: Callable[[str, Conv | nn.Linear], object]) -> None:
    """Fill the weights of all convolutions and linear layers, by their names."""
    for name, part in module.named_modules():
        if isinstance(part, Conv | nn.Linear) and "weight" in dict(part.named_parameters(recurse=False)):
            with torch.no_grad():
                fill(name.rpartition(".")[2], part)
