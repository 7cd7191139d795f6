"""LightningModules, and what their validation steps return."""

from __future__ import annotations

from gaussbias import backbones
from gaussbias.config import Config, to_container
from gaussbias.modules.edm import EDMModule
from gaussbias.modules.evaluate import evaluate

__all__ = ["EDMModule", "build", "evaluate"]


def build(config: Config, shape: tuple[int, int, int]) -> EDMModule:
    """The module that a configuration asks for, for images of `shape` (C, H, W)."""
    train, noise = config.train, config.noise
    return EDMModule(
        backbones.build(config.model, shape),
        sigma_data=config.model.sigma_data,
        batch_size=train.batch_size,
        lr=train.lr,
        lr_rampup_kimg=train.lr_rampup_kimg,
        P_mean=noise.P_mean,
        P_std=noise.P_std,
        seed=config.run.seed,
        compile=train.compile,
        config={**to_container(config), "shape": list(shape)},
    )
