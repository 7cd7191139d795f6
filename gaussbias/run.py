"""One run, from images to the exported denoiser. Everything heavy is imported from here on."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch

from gaussbias import callbacks, data, figures, loggers, modules
from gaussbias.callbacks.base import safely
from gaussbias.config import Config, to_yaml
from gaussbias.data.images import fingerprint
from gaussbias.devices import find_devices, find_precision, find_strategy
from gaussbias.errors import UserError
from gaussbias.exporting import export
from gaussbias.modules import EDMModule, GaussianModule, LinearModule
from gaussbias.moments import read_or_estimate, stored_fingerprint
from gaussbias.ranks import is_first
from gaussbias.references import load_surrogate, load_teacher
from gaussbias.resuming import check_bank, check_images, forget_after, last_checkpoint, load_step
from gaussbias.seeding import derive
from gaussbias.summary import summary
from gaussbias.terminal import say

log = logging.getLogger("gaussbias")


def fit(config: Config, folder: Path, resume: bool = False) -> None:
    """Train as configured, and leave everything in `folder`.

    Raises:
        UserError: For images, devices or a checkpoint that cannot be used.
        TrainingError: If the loss stops being finite.
    """
    quieten()
    accelerator, devices = find_devices(config)
    datamodule = data.build(config)
    datamodule.check_shares(devices * config.train.num_nodes)
    features = callbacks.load_features(config.probes.features, datamodule.images, config.run.seed)
    images = fingerprint(datamodule.images, datamodule.flip)
    surrogate = load_surrogate(config, datamodule.bank)
    teacher = load_teacher(config, datamodule.bank, images) if config.module.kind == "linear" else None
    checkpoint = last_checkpoint(folder) if resume else None
    if checkpoint is not None:
        check_images(folder, images)
        check_bank(folder, datamodule.bank)
    file = folder / "moments.safetensors"
    moments = read_or_estimate(file, datamodule.images, datamodule.flip, images)
    torch.manual_seed(derive(config.run.seed, "weights"))
    module = modules.build(config, datamodule, moments, teacher)
    done = 0 if checkpoint is None else load_step(checkpoint, module)
    kimg = modules.length(config, module)
    steps = callbacks.total_steps(kimg, config.train.batch_size)
    if done > steps:
        reached = done * config.train.batch_size / 1000
        raise UserError(f"train.kimg: expected at least {reached:g}, which the run in {folder} has, got {kimg:g}")
    if is_first():
        _claim(config, folder, resume)
        if checkpoint is not None:
            forget_after(folder, done * config.train.batch_size / 1000)
        if stored_fingerprint(file) != images:
            moments.save(file, images)
    from_kimg = None if checkpoint is None else done * config.train.batch_size / 1000
    network = isinstance(module, EDMModule)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator=accelerator,
        devices=devices,
        num_nodes=config.train.num_nodes,
        strategy=find_strategy(config, module, devices * config.train.num_nodes),
        precision=find_precision(config, accelerator) if network else "32-true",
        gradient_clip_val=config.train.grad_clip if network else None,
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[callbacks.Streamed()],
        logger=loggers.build(config, folder, from_kimg, datamodule.bank.hashes) or False,
        callbacks=callbacks.build(config, datamodule, moments, folder, module, features, surrogate),
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        sides = " x ".join(str(side) for side in moments.shape)
        say(
            f"{folder}: {len(datamodule.images)} training and {len(datamodule.heldout)} held-out images of {sides}, "
            f"{_what(config, module)} on {trainer.world_size} {accelerator}"
            + ("" if from_kimg is None else f", continued at {from_kimg:g} kimg")
        )
    _train(trainer, module, datamodule, checkpoint)
    if trainer.is_global_zero:
        export(config, folder, module, images, trainer.global_step * config.train.batch_size / 1000)
        safely("the figures", figures.draw, [folder], folder / "figures")
        say(summary(folder))


def _train(
    trainer: pl.Trainer, module: pl.LightningModule, datamodule: data.ImageDataModule, checkpoint: Path | None
) -> None:
    failed = True
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
        failed = False
    except SystemExit:
        if trainer.interrupted:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
        raise
    finally:
        loggers.finish(trainer.loggers, failed)


def _what(config: Config, module: pl.LightningModule) -> str:
    """What a run does, in words."""
    if isinstance(module, GaussianModule):
        return "mean and covariance in one pass"
    if isinstance(module, LinearModule):
        each = f"{module.draws_per_level:,} draws for each of {len(module.levels)} noise levels"
        return f"a surrogate of {config.linear.teacher} by {config.linear.method}, {each}"
    size = sum(parameter.numel() for parameter in module.parameters())
    return f"{size / 1e6:.2f} M parameters, {config.train.kimg:g} kimg"


def _claim(config: Config, folder: Path, resume: bool) -> None:
    """Make the folder and write config.yaml; not before the images are read, so that a mistake leaves nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "config.yaml").open("w" if resume else "x") as file:
            file.write(to_yaml(config))
    except FileExistsError:
        raise UserError(f"run.name: another run has just begun in {folder}; choose another run.name") from None
    except OSError as error:
        raise UserError(f"run.root: cannot write to {folder}: {error.strerror}") from None


def quieten() -> None:
    """Leave the terminal to what a user needs."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", module="PIL")
