"""The networks inside a denoiser, called with an image and EDM's c_noise."""

from __future__ import annotations

from torch import nn

from gaussbias.config import ModelConfig


def build(model: ModelConfig, shape: tuple[int, int, int]) -> nn.Module:
    """The backbone that a configuration names, for images of `shape` (C, H, W)."""
    if model.backbone == "mlp":
        from gaussbias.backbones.mlp import MLP

        return MLP(shape, model.channels, model.layers_per_block, model.dropout)
    from gaussbias.backbones.unet import UNet

    return UNet(
        shape,
        model.channels,
        tuple(model.channel_mult),
        model.layers_per_block,
        tuple(model.attention),
        model.dropout,
    )
