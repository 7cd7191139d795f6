"""LightningModules, and what their validation steps return."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from gaussbias import backbones
from gaussbias.config import Config, to_container
from gaussbias.data import sources
from gaussbias.data.images import LARGEST_MATRIX, largest_resolution
from gaussbias.denoisers import Denoiser
from gaussbias.modules.datamodule import ImageDataModule, build_data
from gaussbias.modules.edm import EDMModule
from gaussbias.modules.gaussian import GaussianModule
from gaussbias.modules.linear import LinearModule
from gaussbias.modules.summing import SummingModule, SummingStrategy
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.probes import evaluate
from gaussbias.system.errors import UserError

__all__ = [
    "EDMModule",
    "GaussianModule",
    "ImageDataModule",
    "LinearModule",
    "SummingModule",
    "SummingStrategy",
    "build",
    "build_data",
    "evaluate",
    "length",
    "surrogate_draws",
]

OF_IMAGES = 0.5
"""The standard deviation of the images for which EDM's recipe was made."""
OTHER = 2.0
"""A standard deviation so many times larger or smaller than `model.sigma_data` is said."""
DRAWS_PER_DIMENSION = {"exact": 16, "gradient": 1000}


def build(
    config: Config,
    data: ImageDataModule,
    moments: Eigenmoments,
    teacher: Denoiser | None = None,
    compile: bool = False,
    device: torch.device | None = None,
) -> EDMModule | LinearModule | GaussianModule:
    """The module that a configuration asks for.

    Args:
        config: The configuration.
        data: Its images.
        moments: Of the training images.
        teacher: The denoiser to distil, for `module.kind=linear`.
        compile: Whether the training step of a network is compiled.
        device: Where moments of other images are estimated, if not where those are.

    Raises:
        UserError: For a surrogate that cannot be fitted, and for matrices that no library decomposes.
    """
    _, *size = data.images.shape
    shape = (size[0], size[1], size[2])
    if config.module.kind != "edm" and math.prod(shape) > LARGEST_MATRIX:
        raise UserError(
            f"data.resolution: expected images of at most {LARGEST_MATRIX:,} numbers for module.kind="
            f"{config.module.kind}, which has matrices of so many rows, got {math.prod(shape):,}; set "
            f"data.resolution={largest_resolution(shape[0])} or less"
        )
    if config.module.kind == "gaussian":
        return _gaussian(config, data, shape)
    if config.module.kind == "linear":
        assert teacher is not None
        return _linear(config, data, moments, teacher, device)
    _tell_size(config, data, moments)
    return _edm(config, shape, moments, data.classes, compile)


def length(config: Config, module: EDMModule | LinearModule | GaussianModule) -> float:
    """The length of a run in kimg: of training, of one pass over the images, or of all draws."""
    if isinstance(module, GaussianModule):
        return module.count / 1000
    if isinstance(module, LinearModule):
        return len(module.levels) * module.steps_per_level * module.batch_size / 1000
    return config.train.kimg


def surrogate_draws(config: Config, d: int) -> int:
    """Evaluations of a teacher of images of d numbers, for each noise level."""
    return DRAWS_PER_DIMENSION[config.linear.method] * d if config.linear.draws is None else config.linear.draws


def _gaussian(config: Config, data: ImageDataModule, shape: tuple[int, int, int]) -> GaussianModule:
    return GaussianModule(
        shape,
        len(data.images),
        config.train.batch_size,
        data.flip,
        pixels=not data.images.is_floating_point(),
        config={**to_container(config), "shape": list(shape)},
    )


def _linear(
    config: Config, data: ImageDataModule, moments: Eigenmoments, teacher: Denoiser, device: torch.device | None
) -> LinearModule:
    linear, d, levels = config.linear, len(moments.mean), data.bank.sigmas
    if linear.lr is not None and len(linear.lr) != len(levels):
        raise UserError(f"linear.lr: expected {len(levels)} learning rates, one for each noise level, got {linear.lr}")
    draws = surrogate_draws(config, d)
    try:
        return LinearModule(
            teacher,
            moments,
            levels,
            draws,
            pool=estimate(data.batches, data.flip, device) if linear.pool == "heldout" else None,
            batch_size=config.train.batch_size,
            method=linear.method,
            shrink=linear.shrink,
            target_error=linear.target_error,
            learning_rates=linear.lr,
            seed=config.run.seed,
            config={**to_container(config), "shape": list(moments.shape)},
        )
    except ValueError as error:
        key = "linear.draws" if "draws" in str(error) else "linear.pool"
        raise UserError(f"{key}: {str(error)[0].lower()}{str(error)[1:]}") from None


def _tell_size(config: Config, data: ImageDataModule, moments: Eigenmoments) -> None:
    """Say of numbers that are no pixels if they have another size than the network is made for."""
    expected, found = config.model.sigma_data, moments.deviation
    if expected == "auto" or not data.images.is_floating_point() or 1 / OTHER <= found / expected <= OTHER:
        return
    sources.say_once(
        f"model.sigma_data: the training images have a standard deviation of {found:.3g}, and the network is made for "
        f"{expected:g}; model.sigma_data=auto makes it for these. Noise levels (probes.sigmas, 80 to 0.002) are in the "
        "same units"
    )


def _edm(config: Config, shape: tuple[int, int, int], moments: Eigenmoments, classes: int, compile: bool) -> EDMModule:
    train, noise, shift = config.train, config.noise, 0.0
    sigma_data = config.model.sigma_data
    if sigma_data == "auto":
        sigma_data = moments.deviation
        shift = math.log(sigma_data / OF_IMAGES)
        config = replace(config, model=replace(config.model, sigma_data=sigma_data))  # which rebuilds the network
    return EDMModule(
        backbones.build(config.model, shape, classes),
        sigma_data=sigma_data,
        batch_size=train.batch_size,
        lr=train.lr,
        lr_rampup_kimg=train.lr_rampup_kimg,
        P_mean=noise.P_mean + shift,
        P_std=noise.P_std,
        seed=config.run.seed,
        grad_clip=train.grad_clip,
        microbatch=train.microbatch,
        compile=compile,
        classes=classes,
        label_dropout=config.model.label_dropout,
        config={**to_container(config), "shape": list(shape), "classes": classes},
    )
