"""ADM, the U-Net of Dhariwal and Nichol 2021 (arXiv 2105.05233), with the options of EDM's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from gaussbias.backbones.parts import Block, Conv, embed_positions, groups, initialise

CHANNELS_PER_HEAD = 64


class DhariwalUNet(nn.Module):
    """The U-Net of ADM; attention has a head for each 64 channels, and narrower levels none.

    Arguments have the names that they have in checkpoints of EDM (Karras et al. 2022, arXiv 2206.00364).

    Args:
        img_resolution: Pixels a side.
        in_channels: Of the images.
        out_channels: Of the output.
        label_dim: Number of classes; 0 has none.
        model_channels: Width that those of the levels are multiples of.
        channel_mult: These multiples; each level but the first halves the image.
        channel_mult_emb: Width of the embedding, likewise.
        num_blocks: Residual blocks a level.
        attn_resolutions: Pixels a side of the levels with self-attention; the lowest has it in the middle anyway.
        dropout: Probability.
    """

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,
        model_channels: int = 192,
        channel_mult: Sequence[int] = (1, 2, 3, 4),
        channel_mult_emb: int = 4,
        num_blocks: int = 3,
        attn_resolutions: Sequence[int] = (32, 16, 8),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.label_dim, self.model_channels = label_dim, model_channels
        wide = model_channels * channel_mult_emb
        self.map_layer0, self.map_layer1 = nn.Linear(model_channels, wide), nn.Linear(wide, wide)
        self.map_label = nn.Linear(label_dim, wide, bias=False) if label_dim else None

        def block(
            inputs: int, outputs: int, resampling: Literal["up", "down"] | None = None, attends: bool = False
        ) -> Block:
            heads = outputs // CHANNELS_PER_HEAD if attends else 0
            return Block(inputs, outputs, wide, resampling, heads=heads, dropout=dropout, scales=True, projects=False)

        self.enc = nn.ModuleDict()
        channels, stack = model_channels * channel_mult[0], []
        for level, mult in enumerate(channel_mult):
            side = img_resolution >> level
            at = f"{side}x{side}"
            if level == 0:
                self.enc[f"{at}_conv"] = Conv(in_channels, channels, 3)
            else:
                self.enc[f"{at}_down"] = block(channels, channels, "down")
            stack.append(channels)
            for number in range(num_blocks):
                outputs = model_channels * mult
                self.enc[f"{at}_block{number}"] = block(channels, outputs, attends=side in attn_resolutions)
                channels = outputs
                stack.append(channels)
        self.dec = nn.ModuleDict()
        for level, mult in reversed(list(enumerate(channel_mult))):
            side = img_resolution >> level
            at = f"{side}x{side}"
            if level == len(channel_mult) - 1:
                self.dec[f"{at}_in0"] = block(channels, channels, attends=True)
                self.dec[f"{at}_in1"] = block(channels, channels)
            else:
                self.dec[f"{at}_up"] = block(channels, channels, "up")
            for number in range(num_blocks + 1):
                inputs, channels = channels + stack.pop(), model_channels * mult
                self.dec[f"{at}_block{number}"] = block(inputs, channels, attends=side in attn_resolutions)
        self.out_norm = nn.GroupNorm(groups(channels), channels, 1e-5)
        self.out_conv = Conv(channels, out_channels, 3)
        initialise(self, _fill)

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W), c_noise (B,) and one-hot labels (B, label_dim), absent ones all 0."""
        embedding = embed_positions(c_noise, self.model_channels, endpoint=False)
        embedding = self.map_layer1(silu(self.map_layer0(embedding)))
        if self.map_label is not None and labels is not None:
            embedding = embedding + self.map_label(labels.to(embedding.dtype))
        embedding = silu(embedding)
        stack: list[Tensor] = []
        for part in self.enc.values():
            x = part(x, embedding) if isinstance(part, Block) else part(x)
            stack.append(x)
        for name, part in self.dec.items():
            x = part(torch.cat([x, stack.pop()], 1) if "block" in name else x, embedding)
        result: Tensor = self.out_conv(silu(self.out_norm(x)))
        return result


def _fill(name: str, part: Conv | nn.Linear) -> None:
    """0 where a block or the network ends; torch's uniform weights elsewhere."""
    if name in ("conv1", "proj", "out_conv"):
        for parameter in part.parameters():
            nn.init.zeros_(parameter)
