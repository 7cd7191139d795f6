"""DDPM++ and NCSN++, the U-Nets of Song et al. 2021 (arXiv 2011.13456), with the options of EDM's checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from gaussbias.backbones.parts import BOX, Block, Conv, Fourier, embed_positions, groups, initialise

EPS = 1e-6
SMALL = 1e-5
"""The size of weights that begin near 0: those of each block's last convolution, and of the output."""
NCSNPP: dict[str, Any] = {
    "embedding_type": "fourier",
    "encoder_type": "residual",
    "decoder_type": "standard",
    "channel_mult_noise": 2,
    "resample_filter": (1, 3, 3, 1),
}
"""What makes an NCSN++ of it; the defaults are DDPM++'s."""


class SongUNet(nn.Module):
    """The U-Net of DDPM++ and NCSN++.

    Arguments have the names that they have in checkpoints of EDM (Karras et al. 2022, arXiv 2206.00364).

    Args:
        img_resolution: Pixels a side.
        in_channels: Of the images.
        out_channels: Of the output.
        label_dim: Number of classes; 0 has none.
        model_channels: Width of the first level.
        channel_mult: Width of each level, as a multiple of it; each but the first halves the image.
        channel_mult_emb: Width of the embedding, likewise.
        num_blocks: Residual blocks a level.
        attn_resolutions: Pixels a side of the levels with self-attention; the lowest has it in the middle anyway.
        dropout: Probability.
        embedding_type: `positional` (DDPM++) or `fourier` (NCSN++).
        channel_mult_noise: Width of the first embedding, as a multiple of `model_channels`.
        encoder_type: `standard` (DDPM++), `residual` (NCSN++) or `skip`.
        decoder_type: `standard` or `skip`.
        resample_filter: Taps, (1, 1) for DDPM++ and (1, 3, 3, 1) for NCSN++.
    """

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,
        model_channels: int = 128,
        channel_mult: Sequence[int] = (1, 2, 2, 2),
        channel_mult_emb: int = 4,
        num_blocks: int = 4,
        attn_resolutions: Sequence[int] = (16,),
        dropout: float = 0.1,
        embedding_type: Literal["positional", "fourier"] = "positional",
        channel_mult_noise: int = 1,
        encoder_type: Literal["standard", "skip", "residual"] = "standard",
        decoder_type: Literal["standard", "skip"] = "standard",
        resample_filter: Sequence[float] = BOX,
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("embedding_type", embedding_type, ("positional", "fourier")),
            ("encoder_type", encoder_type, ("standard", "skip", "residual")),
            ("decoder_type", decoder_type, ("standard", "skip")),
        ):
            if value not in known:
                raise ValueError(f"Expected `{name}` to be one of {', '.join(known)} but got {value}.")
        self.label_dim = label_dim
        noise, wide = model_channels * channel_mult_noise, model_channels * channel_mult_emb
        self.noise_channels = noise
        self.map_noise = Fourier(noise) if embedding_type == "fourier" else None
        self.map_label = nn.Linear(label_dim, noise) if label_dim else None
        self.map_layer0, self.map_layer1 = nn.Linear(noise, wide), nn.Linear(wide, wide)

        def block(inputs: int, outputs: int, resampling: Literal["up", "down"] | None = None, heads: int = 0) -> Block:
            return Block(
                inputs,
                outputs,
                wide,
                resampling,
                resample_filter,
                heads,
                dropout,
                skip_scale=math.sqrt(0.5),
                eps=EPS,
            )

        self.enc = nn.ModuleDict()
        channels, aux, stack = in_channels, in_channels, []
        for level, mult in enumerate(channel_mult):
            side = img_resolution >> level
            at = f"{side}x{side}"
            if level == 0:
                self.enc[f"{at}_conv"] = Conv(channels, model_channels, 3)
                channels = model_channels
            else:
                self.enc[f"{at}_down"] = block(channels, channels, "down")
                if encoder_type == "skip":
                    self.enc[f"{at}_aux_down"] = Conv(aux, aux, 0, "down", resample_filter)
                    self.enc[f"{at}_aux_skip"] = Conv(aux, channels, 1)
                elif encoder_type == "residual":
                    self.enc[f"{at}_aux_residual"] = Conv(aux, channels, 3, "down", resample_filter, fused=True)
                    aux = channels
            stack.append(channels)
            for number in range(num_blocks):
                outputs = model_channels * mult
                self.enc[f"{at}_block{number}"] = block(channels, outputs, heads=int(side in attn_resolutions))
                channels = outputs
                stack.append(channels)

        self.dec = nn.ModuleDict()
        lowest = len(channel_mult) - 1
        for level, mult in reversed(list(enumerate(channel_mult))):
            side = img_resolution >> level
            at = f"{side}x{side}"
            if level == lowest:
                self.dec[f"{at}_in0"] = block(channels, channels, heads=1)
                self.dec[f"{at}_in1"] = block(channels, channels)
            else:
                self.dec[f"{at}_up"] = block(channels, channels, "up")
            for number in range(num_blocks + 1):
                last = number == num_blocks and side in attn_resolutions
                inputs, channels = channels + stack.pop(), model_channels * mult
                self.dec[f"{at}_block{number}"] = block(inputs, channels, heads=int(last))
            if decoder_type == "skip" or level == 0:
                if decoder_type == "skip" and level < lowest:
                    self.dec[f"{at}_aux_up"] = Conv(out_channels, out_channels, 0, "up", resample_filter)
                self.dec[f"{at}_aux_norm"] = nn.GroupNorm(groups(channels), channels, EPS)
                self.dec[f"{at}_aux_conv"] = Conv(channels, out_channels, 3)
        initialise(self, _fill)

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W), c_noise (B,) and one-hot labels (B, label_dim), absent ones all 0."""
        embedding = self._embed(c_noise, labels)
        stack: list[Tensor] = []
        aux = x
        for name, part in self.enc.items():
            if name.endswith("aux_down"):
                aux = part(aux)
            elif name.endswith("aux_skip"):
                x = stack[-1] = x + part(aux)
            elif name.endswith("aux_residual"):
                x = stack[-1] = aux = (x + part(aux)) / math.sqrt(2)
            else:
                x = part(x, embedding) if isinstance(part, Block) else part(x)
                stack.append(x)
        result: Tensor | None = None
        shown = x
        for name, part in self.dec.items():
            if name.endswith("aux_up"):
                result = part(result)
            elif name.endswith("aux_norm"):
                shown = silu(part(x))
            elif name.endswith("aux_conv"):
                shown = part(shown)
                result = shown if result is None else result + shown
            else:
                x = part(torch.cat([x, stack.pop()], 1) if "block" in name else x, embedding)
        assert result is not None
        return result

    def _embed(self, c_noise: Tensor, labels: Tensor | None) -> Tensor:
        if self.map_noise is None:
            first = embed_positions(c_noise, self.noise_channels, endpoint=True)
        else:
            first = self.map_noise(c_noise)
        first = torch.cat(first.chunk(2, 1)[::-1], 1)
        if self.map_label is not None:
            rows = first.new_zeros(len(first), self.label_dim) if labels is None else labels.to(first.dtype)
            first = first + self.map_label(rows * math.sqrt(self.label_dim))
        embedding: Tensor = silu(self.map_layer1(silu(self.map_layer0(first))))
        return embedding


def _fill(name: str, part: Conv | nn.Linear) -> None:
    """Xavier's uniform weights, small ones where a block or the network ends; biases 0."""
    nn.init.xavier_uniform_(part.weight, gain=math.sqrt(0.2) if name == "qkv" else 1.0)
    if name in ("conv1", "proj") or name.endswith("aux_conv"):
        part.weight *= SMALL
    if part.bias is not None:
        nn.init.zeros_(part.bias)
