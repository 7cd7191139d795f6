"""The networks that benchmarks train and sample with."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussbias.backbones import build, flops
from gaussbias.config import ModelConfig
from gaussbias.data.images import downsample
from gaussbias.denoisers import EDMDenoiser

SMALL = ModelConfig(channels=32, channel_mult=[1, 2])
"""That of configs/cifar_tiny.yaml, for images of 8 x 8."""
LARGE = ModelConfig(backbone="ddpmpp", channels=128, channel_mult=[2, 2, 2], layers_per_block=4, attention=[16])
"""EDM's DDPM++ for CIFAR-10 (55.7 M parameters), for images of 32 x 32 on a GPU."""


def model_for(device: torch.device) -> ModelConfig:
    """What a device trains in seconds."""
    return LARGE if device.type == "cuda" else SMALL


def images_for(images: Tensor) -> Tensor:
    """Images of the size that goes with it."""
    return images if images.device.type == "cuda" else downsample(images, min(8, images.shape[-1]))


def make(model: ModelConfig, images: Tensor) -> EDMDenoiser:
    """A denoiser with weights of its own seed, whose last layer is not 0 as in training."""
    torch.manual_seed(0)
    _, channels, height, width = images.shape
    network = build(model, (channels, height, width))
    for parameter in network.parameters():
        if not bool(parameter.any()):
            torch.nn.init.normal_(parameter, std=0.02)
    return EDMDenoiser(network).to(images.device)


def describe(model: ModelConfig, images: Tensor) -> tuple[str, float]:
    """The size in words, and the operations of a training step for each image."""
    _, channels, height, width = images.shape
    count = sum(parameter.numel() for parameter in build(model, (channels, height, width)).parameters())
    each = flops(model, (channels, height, width))
    return f"{count / 1e6:.1f} M, {height} x {width}", 3.0 * each
