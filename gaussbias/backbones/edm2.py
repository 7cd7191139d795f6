"""The magnitude-preserving U-Net of EDM2 (Karras et al. 2024, arXiv 2312.02696, configuration G), to evaluate networks.

Every part keeps activations at the size that they have: weights are normalised when they are used, additions and
concatenations are divided by what they make larger, and there are no biases and no group norms (Section 2.3,
Appendix B). Parameters have the names that checkpoints of EDM2 give them, so that those load as they are. Training
would also have to normalise the stored weights at each step (Equation 66), which is not done here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, interpolate, linear, scaled_dot_product_attention, silu

from gaussbias.backbones.parts import Resampling

SMALLEST = 1e-4
"""What is added to sizes that are divided by."""
SILU = 0.596
"""Size of silu(x) for normal x (Equation 81)."""


def normalise(x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """`x / (1e-4 + rms(x))`, the root mean square along some dimensions (Equation 30)."""
    size = x.float().square().mean(dims, keepdim=True).sqrt()
    return x / (SMALLEST + size).to(x.dtype)


def activate(x: Tensor) -> Tensor:
    """silu, at the size of its input (Equation 81)."""
    return silu(x) / SILU


def add(a: Tensor, b: Tensor, share: float) -> Tensor:
    """`((1 - t) a + t b) / sqrt((1 - t)^2 + t^2)` for a share t of b (Equation 88)."""
    return ((1 - share) * a + share * b) / math.hypot(1 - share, share)


def join(a: Tensor, b: Tensor, share: float) -> Tensor:
    """Channels of both, weighted so that those of b contribute a share t whatever their number (Equation 103)."""
    first, second = a.shape[1], b.shape[1]
    whole = math.sqrt((first + second) / ((1 - share) ** 2 + share**2))
    return torch.cat([whole * (1 - share) / math.sqrt(first) * a, whole * share / math.sqrt(second) * b], 1)


class Weights(nn.Module):
    """A linear map or a convolution that keeps sizes: rows of its weight have length 1 when it is used (Equation 47).

    Args:
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels a side, odd; 0 is a linear map of (B, inputs).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *[kernel, kernel][: 2 * bool(kernel)]))

    def forward(self, x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
        """Of x (B, inputs) or (B, inputs, H, W), times `gain`."""
        others = tuple(range(1, self.weight.ndim))
        weight = normalise(self.weight, others) * (gain / math.sqrt(self.weight[0].numel()))
        weight = weight.to(x.dtype)
        return linear(x, weight) if weight.ndim == 2 else conv2d(x, weight, padding=weight.shape[-1] // 2)


class Waves(nn.Module):
    """`sqrt 2 cos(f c + p)` with random frequencies and phases (Equation 75).

    Args:
        channels: Of the output.
    """

    freqs: Tensor
    phases: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.randn(channels))
        self.register_buffer("phases", 2 * math.pi * torch.rand(channels))

    def forward(self, c_noise: Tensor) -> Tensor:
        """(B, channels) of c_noise (B,)."""
        return (c_noise[:, None] * self.freqs + self.phases).cos() * math.sqrt(2)


class Block(nn.Module):
    """A residual block of the encoder or the decoder (Figure 21 of the paper).

    Args:
        inputs: Channels.
        outputs: Channels.
        wide: Channels of the embedding.
        encodes: Whether it is one of the encoder, which changes the channels first and normalises each pixel.
        resampling: Whether the image is halved or doubled first.
        heads: Of self-attention; 0 has none.
        res_balance: Share of the residual branch.
        attn_balance: Share of attention.
        clip_act: Largest value of the output.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        wide: int,
        encodes: bool,
        resampling: Resampling = None,
        heads: int = 0,
        res_balance: float = 0.3,
        attn_balance: float = 0.3,
        clip_act: float | None = 256,
    ) -> None:
        super().__init__()
        self.encodes, self.resampling, self.heads = encodes, resampling, heads
        self.res_balance, self.attn_balance, self.clip_act = res_balance, attn_balance, clip_act
        self.emb_gain = nn.Parameter(torch.zeros(()))
        self.conv_res0 = Weights(outputs if encodes else inputs, outputs, 3)
        self.emb_linear = Weights(wide, outputs)
        self.conv_res1 = Weights(outputs, outputs, 3)
        self.conv_skip = Weights(inputs, outputs, 1) if inputs != outputs else None
        self.attn_qkv = Weights(outputs, 3 * outputs, 1) if heads else None
        self.attn_proj = Weights(outputs, outputs, 1) if heads else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(B, outputs, H', W') of x (B, inputs, H, W) and its embedding (B, wide)."""
        if self.resampling is not None:
            x = avg_pool2d(x, 2) if self.resampling == "down" else interpolate(x, scale_factor=2, mode="nearest")
        if self.encodes:
            x = normalise(self._skip(x), 1)
        scale = self.emb_linear(embedding, self.emb_gain) + 1
        y = activate(self.conv_res0(activate(x)) * scale[:, :, None, None])
        y = self.conv_res1(y)
        x = add(x if self.encodes else self._skip(x), y, self.res_balance)
        if self.attn_qkv is not None and self.attn_proj is not None:
            x = add(x, self.attn_proj(self._attend(self.attn_qkv(x))), self.attn_balance)
        return x if self.clip_act is None else x.clamp(-self.clip_act, self.clip_act)

    def _skip(self, x: Tensor) -> Tensor:
        return x if self.conv_skip is None else self.conv_skip(x)

    def _attend(self, mixed: Tensor) -> Tensor:
        """Cosine attention: queries, keys and values of each pixel are normalised (Section 2.3)."""
        count, channels, height, width = mixed.shape
        parts = mixed.view(count, self.heads, channels // (3 * self.heads), 3, height * width)
        query, key, value = normalise(parts, 2).movedim(-1, 2).unbind(-1)  # (B, heads, pixels, channels of a head)
        attended = scaled_dot_product_attention(query.contiguous(), key.contiguous(), value.contiguous())
        return attended.movedim(-1, 2).reshape(count, -1, height, width)


class MagnitudePreservingUNet(nn.Module):
    """F of EDM2, for images with `in_channels`.

    Arguments have the names that they have in checkpoints of EDM2.

    Args:
        img_resolution: Pixels a side.
        in_channels: Of the images.
        out_channels: Of the output.
        label_dim: Number of classes; 0 has none.
        model_channels: Width that those of the levels are multiples of.
        channel_mult: These multiples; each level but the first halves the image.
        channel_mult_noise: Number of waves, likewise; `None` is that of the first level.
        channel_mult_emb: Width of the embedding, likewise; `None` is the largest of the levels.
        num_blocks: Residual blocks a level.
        attn_resolutions: Pixels a side of the levels with self-attention; the lowest has it in the middle anyway.
        label_balance: Share of the class in the embedding.
        concat_balance: Share of what comes from the encoder.
        channels_per_head: Of self-attention.
        res_balance: Share of residual branches.
        attn_balance: Share of attention.
        clip_act: Largest activation; `None`: any.
        dropout: Of training, which this is not for.
    """

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,
        model_channels: int = 192,
        channel_mult: Sequence[int] = (1, 2, 3, 4),
        channel_mult_noise: int | None = None,
        channel_mult_emb: int | None = None,
        num_blocks: int = 3,
        attn_resolutions: Sequence[int] = (16, 8),
        label_balance: float = 0.5,
        concat_balance: float = 0.5,
        channels_per_head: int = 64,
        res_balance: float = 0.3,
        attn_balance: float = 0.3,
        clip_act: float | None = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.label_dim, self.label_balance, self.concat_balance = label_dim, label_balance, concat_balance
        levels = [model_channels * mult for mult in channel_mult]
        waves = levels[0] if channel_mult_noise is None else model_channels * channel_mult_noise
        wide = max(levels) if channel_mult_emb is None else model_channels * channel_mult_emb
        self.emb_fourier = Waves(waves)
        self.emb_noise = Weights(waves, wide)
        self.emb_label = Weights(label_dim, wide) if label_dim else None

        def block(
            inputs: int, outputs: int, encodes: bool, resampling: Resampling = None, attends: bool = False
        ) -> Block:
            heads = outputs // channels_per_head if attends else 0
            return Block(inputs, outputs, wide, encodes, resampling, heads, res_balance, attn_balance, clip_act)

        self.enc = nn.ModuleDict()
        channels, stack = in_channels + 1, []
        for level, outputs in enumerate(levels):
            side = img_resolution >> level
            if level == 0:
                self.enc[f"{side}x{side}_conv"] = Weights(channels, outputs, 3)
                channels = outputs
            else:
                self.enc[f"{side}x{side}_down"] = block(channels, channels, True, "down")
            stack.append(channels)
            for number in range(num_blocks):
                self.enc[f"{side}x{side}_block{number}"] = block(
                    channels, outputs, True, attends=side in attn_resolutions
                )
                channels = outputs
                stack.append(channels)
        self.dec = nn.ModuleDict()
        for level, outputs in reversed(list(enumerate(levels))):
            side = img_resolution >> level
            if level == len(levels) - 1:
                self.dec[f"{side}x{side}_in0"] = block(channels, channels, False, attends=True)
                self.dec[f"{side}x{side}_in1"] = block(channels, channels, False)
            else:
                self.dec[f"{side}x{side}_up"] = block(channels, channels, False, "up")
            for number in range(num_blocks + 1):
                inputs, channels = channels + stack.pop(), outputs
                self.dec[f"{side}x{side}_block{number}"] = block(
                    inputs, channels, False, attends=side in attn_resolutions
                )
        self.out_conv = Weights(channels, out_channels, 3)
        self.out_gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W), c_noise (B,) and one-hot labels (B, label_dim), absent ones all 0."""
        embedding = self.emb_noise(self.emb_fourier(c_noise))
        if self.emb_label is not None:
            rows = x.new_zeros(len(x), self.label_dim) if labels is None else labels.to(x.dtype)
            embedding = add(embedding, self.emb_label(rows * math.sqrt(self.label_dim)), self.label_balance)
        embedding = activate(embedding)
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        stack: list[Tensor] = []
        for part in self.enc.values():
            x = part(x, embedding) if isinstance(part, Block) else part(x)
            stack.append(x)
        for name, part in self.dec.items():
            x = part(join(x, stack.pop(), self.concat_balance) if "block" in name else x, embedding)
        result: Tensor = self.out_conv(x, self.out_gain)
        return result
