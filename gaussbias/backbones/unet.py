"""The U-Net of diffusers as a backbone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffusers import UNet2DModel
from torch import Tensor, nn

from gaussbias.backbones.parts import groups

WIDER = 4
"""Width of the embedding in diffusers' networks, as a multiple of that of the first level."""
C_NOISE_MIN, C_NOISE_MAX = -1.6, 1.2
"""c_noise = ln(sigma)/4 lies in here for sigma from 0.0017 to 121."""


class UNet(nn.Module):
    """diffusers' `UNet2DModel`, called with EDM's c_noise.

    Its Fourier embedding takes the logarithm of the time, which c_noise, being negative, does not have. So the
    positional embedding is used, with c_noise stretched to the 0..1000 for which its frequencies are made.
    The last convolution starts at 0, so that an untrained denoiser is `c_skip x`.

    Args:
        shape: (C, H, W) of the images.
        channels: Width of the first level.
        channel_mult: Width of each level, as a multiple of `channels`; each but the first halves the image.
        layers_per_block: Residual blocks a level.
        attention: Resolutions, in pixels a side, with self-attention; if the lowest is among them, the middle
            block has it too.
        dropout: Probability.
        classes: Number of classes; their embedding is added to that of the noise.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: int = 32,
        channel_mult: Sequence[int] = (1, 2),
        layers_per_block: int = 1,
        attention: Sequence[int] = (),
        dropout: float = 0.0,
        classes: int = 0,
    ) -> None:
        super().__init__()
        levels = [shape[1] >> level in attention for level in range(len(channel_mult))]
        self.net = UNet2DModel(
            sample_size=(shape[1], shape[2]),
            in_channels=shape[0],
            out_channels=shape[0],
            block_out_channels=tuple(channels * mult for mult in channel_mult),
            layers_per_block=layers_per_block,
            down_block_types=tuple("AttnDownBlock2D" if has else "DownBlock2D" for has in levels),
            up_block_types=tuple("AttnUpBlock2D" if has else "UpBlock2D" for has in reversed(levels)),
            add_attention=levels[-1],
            attention_head_dim=min(64, channels),
            norm_num_groups=groups(channels),
            dropout=dropout,
            class_embed_type="identity" if classes else None,
        )
        nn.init.zeros_(self.net.conv_out.weight)
        nn.init.zeros_(self.net.conv_out.bias)
        self.width = WIDER * channels * channel_mult[0]
        self.label = nn.Linear(classes, self.width, bias=False) if classes else None

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W), c_noise (B,) and one-hot labels (B, classes), absent ones all 0."""
        time = 1000 * (c_noise - C_NOISE_MIN) / (C_NOISE_MAX - C_NOISE_MIN)
        told = None
        if self.label is not None:
            told = x.new_zeros(len(x), self.width)
            if labels is not None:
                told = self.label(labels * math.sqrt(labels.shape[1]))
        result: Tensor = self.net(x, time, class_labels=told).sample
        return result
