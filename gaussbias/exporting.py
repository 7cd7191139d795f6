"""What a run leaves for use elsewhere."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch

from gaussbias.checkpoints import load_checkpoint, save_denoiser, save_gaussian, save_linear
from gaussbias.config import Config, to_container
from gaussbias.data import ImageDataModule
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser, full_precision
from gaussbias.modules import GaussianModule, LinearModule
from gaussbias.moments import Eigenmoments
from gaussbias.surrogate import write_description

SHOWN = 2
"""Latents from which the sampling paths of a surrogate, its teacher and the baselines are drawn."""


def export(config: Config, folder: Path, module: pl.LightningModule, images: str, kimg: float) -> None:
    """The denoiser; that of a network from the last checkpoint, which holds the average whatever the module does."""
    if isinstance(module, GaussianModule):
        if module.moments is not None:  # else the run was finished already
            save_gaussian(module.moments, folder, images, kimg)
        return
    if isinstance(module, LinearModule):
        about = to_container(config)["linear"]
        save_linear(module.denoiser, folder, module.fits, kimg=kimg, **about)
        return
    denoiser, shape, _ = load_checkpoint(folder / "checkpoints" / "last.ckpt")
    weights = "raw" if config.train.ema_halflife_kimg is None else "ema"
    save_denoiser(denoiser, to_container(config)["model"], shape, folder, weights=weights, kimg=kimg)


def describe(
    trainer: pl.Trainer,
    module: LinearModule,
    datamodule: ImageDataModule,
    moments: Eigenmoments,
    folder: Path,
) -> None:
    """What the figures of a surrogate show."""
    device, bank = trainer.strategy.root_device, datamodule.bank
    others = {
        "network": module.teacher,
        "gaussian": GaussianDenoiser(moments),
        "empirical": EmpiricalDenoiser(datamodule.images, datamodule.flip),
    }
    for denoiser in (module.denoiser, *others.values()):
        denoiser.to(device)
    latents = bank.latents(0)[:SHOWN].to(device)
    with torch.no_grad(), full_precision(device):
        write_description(folder / "surrogate.safetensors", module.denoiser, others, moments, latents, bank.sampler)
