"""A step of training of EDM's DDPM++ against diffusers' U-Net of the same size, both as `gaussbias.fit` trains them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from benchmarks.harness import Case, Timed
from benchmarks.networks import describe, images_for
from benchmarks.training import WARM, fit
from gaussbias.config import ModelConfig

SMALL = ModelConfig(backbone="ddpmpp", channels=32, channel_mult=[1, 2]), 34
"""For images of 8 x 8: 0.72 M parameters; and the channels of the U-Net that has as many."""
LAYOUT = ModelConfig(backbone="ddpmpp", channels=32, channel_mult=[2, 2, 2], layers_per_block=4, attention=[16]), 32
"""EDM's layout for CIFAR-10, narrow: 3.5 M parameters, the U-Net's 3.7 M."""
WHOLE = replace(LAYOUT[0], channels=128), 128
"""EDM's network for CIFAR-10, 55.7 M parameters; the U-Net's 58.7 M."""


def cases(images: Tensor) -> Iterator[Case]:
    """Against diffusers' `UNet2DModel`; both in float32 on a CPU, in bf16 on a GPU."""
    if images.device.type == "cuda":
        yield _case(*WHOLE, images, 256, 25, "bf16-mixed")
        return
    yield _case(*SMALL, images_for(images), 128, 15)
    if images.shape[-1] == 32:
        yield _case(*LAYOUT, images, 16, 15)


def _case(
    model: ModelConfig, channels: int, images: Tensor, batch: int, steps: int, precision: str = "32-true"
) -> Case:
    other = replace(model, backbone="unet", channels=channels)
    size, flops = describe(model, images)
    seen = batch * (steps - WARM)

    def run(which: ModelConfig) -> Timed:
        _, seconds = fit(which, images, batch, precision, steps=steps)
        name = "DDPM++" if which is model else "UNet2DModel"
        print(f"    {name}, {describe(which, images)[0]}: {seen / seconds:.0f} images/s", flush=True)
        return Timed(None, seconds)

    return Case(
        f"DDPM++, {steps - WARM} steps",
        f"{size}, B={batch}",
        lambda: run(other),
        lambda: run(model),
        lambda _: math.nan,
        1,
        flops * seen,
    )
