"""The networks inside a denoiser, called with an image and EDM's c_noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gaussbias.config import ModelConfig


def build(model: ModelConfig, shape: tuple[int, int, int], classes: int = 0) -> nn.Module:
    """The backbone that a configuration names, for images of `shape` (C, H, W), with classes or without.

    One with classes is called with one-hot rows (B, classes) as well, in which no class is a row of zeros.
    """
    if model.patch == 1:
        return _build(model, shape, classes)
    from gaussbias.backbones.patches import Patched

    channels, height, width = shape
    inner = channels * model.patch**2, height // model.patch, width // model.patch
    return Patched(_build(model, inner, classes), model.patch)


def _build(model: ModelConfig, shape: tuple[int, int, int], classes: int) -> nn.Module:
    if model.backbone == "mlp":
        from gaussbias.backbones.mlp import MLP

        return MLP(shape, model.channels, model.layers_per_block, model.dropout, classes)
    if model.backbone in ("ddpmpp", "ncsnpp", "adm"):
        return _of_edm(model, shape, classes)
    from gaussbias.backbones.unet import UNet

    return UNet(
        shape,
        model.channels,
        tuple(model.channel_mult),
        model.layers_per_block,
        tuple(model.attention),
        model.dropout,
        classes,
    )


def _of_edm(model: ModelConfig, shape: tuple[int, int, int], classes: int) -> nn.Module:
    from gaussbias.backbones.dhariwal import DhariwalUNet
    from gaussbias.backbones.songunet import NCSNPP, SongUNet

    channels, height, _ = shape
    arguments: dict[str, Any] = {
        "img_resolution": height,
        "in_channels": channels,
        "out_channels": channels,
        "label_dim": classes,
        "model_channels": model.channels,
        "channel_mult": tuple(model.channel_mult),
        "num_blocks": model.layers_per_block,
        "attn_resolutions": tuple(model.attention),
        "dropout": model.dropout,
    }
    if model.backbone == "adm":
        return DhariwalUNet(**arguments)
    return SongUNet(**arguments, **(NCSNPP if model.backbone == "ncsnpp" else {}))


def flops(model: ModelConfig, shape: tuple[int, int, int]) -> int:
    """Floating-point operations of the products and convolutions in one pass of one image; training takes three."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        build(model, shape)(torch.zeros(1, *shape), torch.zeros(1))
    return int(counter.get_total_flops())
