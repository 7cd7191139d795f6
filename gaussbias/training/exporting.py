"""What a run leaves for use elsewhere."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from gaussbias.checkpoints import load_checkpoint, save_denoiser, save_gaussian, save_linear
from gaussbias.config import Config, to_container
from gaussbias.modules import GaussianModule, LinearModule
from gaussbias.system.run_folder import RunFolder


def export(config: Config, folder: Path, module: pl.LightningModule, images: str, kimg: float) -> None:
    """The denoiser; that of a network from the last checkpoint, which holds the average whatever the module does."""
    if isinstance(module, GaussianModule):
        if module.moments is None and RunFolder(folder).gaussian.exists():  # the run was finished already
            return
        # one that was killed since its last checkpoint has measured nothing now; the first rank has the sums of all
        moments = module.sums.eigenmoments(module.flip) if module.moments is None else module.moments
        save_gaussian(moments, folder, images, kimg)
        return
    if isinstance(module, LinearModule):
        about = to_container(config)["linear"]
        save_linear(module.denoiser, folder, module.fits, kimg=kimg, **about)
        return
    denoiser, shape, _ = load_checkpoint(RunFolder(folder).last)
    weights = "raw" if config.train.ema_halflife_kimg is None else "ema"
    save_denoiser(denoiser, to_container(config)["model"], shape, folder, weights=weights, kimg=kimg)
