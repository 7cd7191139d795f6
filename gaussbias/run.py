"""One run, from images to the exported denoiser. Everything heavy is imported from here on."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Literal

import lightning.pytorch as pl
import torch

from gaussbias import callbacks, data, figures, loggers, modules
from gaussbias.callbacks.base import safely
from gaussbias.checkpoints import load_checkpoint, save_denoiser
from gaussbias.config import Config, to_container, to_yaml
from gaussbias.data.images import fingerprint
from gaussbias.errors import UserError
from gaussbias.history import is_number, measurement_files, read_measurement
from gaussbias.moments import estimate_once, stored_fingerprint
from gaussbias.ranks import is_first
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
    accelerator, devices = _devices(config)
    datamodule = data.build(config)
    datamodule.check_shares(devices * config.train.num_nodes)
    features = callbacks.load_features(config.probes.features, datamodule.images, config.run.seed)
    _, *shape = datamodule.images.shape
    torch.manual_seed(derive(config.run.seed, "weights"))
    module = modules.build(config, (shape[0], shape[1], shape[2]))
    checkpoint = _last_checkpoint(folder) if resume else None
    done = 0 if checkpoint is None else _load(checkpoint, module)
    steps = callbacks.total_steps(config.train.kimg, config.train.batch_size)
    if done > steps:
        reached = done * config.train.batch_size / 1000
        raise UserError(
            f"train.kimg: expected at least {reached:g}, which the run in {folder} has, got {config.train.kimg:g}"
        )
    if checkpoint is not None:
        check_images(folder, datamodule)
        _check_bank(folder, datamodule.bank)
    if is_first():
        _claim(config, folder, resume)
        if checkpoint is not None:
            _forget_after(folder, done * config.train.batch_size / 1000)
    moments = estimate_once(datamodule.images, datamodule.flip, folder / "moments.safetensors", write=is_first())
    from_kimg = None if checkpoint is None else done * config.train.batch_size / 1000
    size = sum(parameter.numel() for parameter in module.parameters())
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator=accelerator,
        devices=devices,
        num_nodes=config.train.num_nodes,
        strategy=config.train.strategy,
        precision=_precision(config, accelerator),
        gradient_clip_val=config.train.grad_clip,
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=loggers.build(config, folder, from_kimg, datamodule.bank.hashes) or False,
        callbacks=callbacks.build(config, datamodule, moments, folder, features),
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        say(
            f"{folder}: {len(datamodule.images)} training and {len(datamodule.heldout)} held-out images of "
            f"{shape[0]} x {shape[1]} x {shape[2]}, {size / 1e6:.2f} M parameters, {config.train.kimg:g} kimg on "
            f"{trainer.world_size} {accelerator}" + ("" if from_kimg is None else f", continued at {from_kimg:g} kimg")
        )
    _train(trainer, module, datamodule, checkpoint)
    if trainer.is_global_zero:
        _export(config, folder, steps * config.train.batch_size / 1000)
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


def _export(config: Config, folder: Path, kimg: float) -> None:
    """The denoiser of the last checkpoint, which holds the average whatever state the module was left in."""
    denoiser, shape, _ = load_checkpoint(folder / "checkpoints" / "last.ckpt")
    weights = "raw" if config.train.ema_halflife_kimg is None else "ema"
    save_denoiser(denoiser, to_container(config)["model"], shape, folder, weights=weights, kimg=kimg)


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


def _forget_after(folder: Path, kimg: float) -> None:
    """Remove what was measured after the checkpoint: it is measured again, as the rows of history.csv are."""
    for place in ("probes", "samples", "figures/samples"):
        for file in (folder / place).glob("*.*"):
            if is_number(file.stem) and float(file.stem) > kimg + 1e-6:
                file.unlink()


def _last_checkpoint(folder: Path) -> Path | None:
    path = folder / "checkpoints" / "last.ckpt"
    return path if path.exists() else None


def _load(file: Path, module: pl.LightningModule) -> int:
    """The step of a checkpoint, whose weights have to fit the module; before anything in the folder changes."""
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        step, weights = int(checkpoint["global_step"]), checkpoint["state_dict"]
    except Exception:  # torch.load has no base class for what a damaged file raises
        raise UserError(
            f"--resume: {file} is damaged or not a checkpoint; copy one of the numbered ones beside it over it"
        ) from None
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--resume: {file} is of another network than this configuration's ({reason}); begin another run.name"
        ) from None
    return step


def check_images(folder: Path, datamodule: data.ImageDataModule) -> None:
    """Raise `UserError` unless the images are those of the run in a folder, whatever lies at their path now."""
    before = stored_fingerprint(folder / "moments.safetensors")
    if before not in (None, fingerprint(datamodule.images, datamodule.flip)):
        raise UserError(
            f"data.path: the run in {folder} was trained on other images than are there now; "
            "put those back, or begin another run.name"
        )


def _check_bank(folder: Path, bank: data.ProbeBank) -> None:
    """A run goes on with the draws that it began with: else its curves would move without the network."""
    files = measurement_files(folder)
    if not files:
        return
    before, now = read_measurement(files[-1], ()).hashes, bank.hashes
    changed = [pool for pool in before if now.get(pool) != before[pool]]
    if changed:
        raise UserError(
            f"probes: the run in {folder} was measured on other draws of {', '.join(changed)} than there are now "
            "(their hashes differ: other held-out images, or another version of torch); begin another run.name"
        )


def _devices(config: Config) -> tuple[str, int]:
    """`cpu` or `gpu`, and how many on a node."""
    train, accelerator = config.train, find_accelerator(config)
    if accelerator == "cpu":
        if train.precision == "bf16-mixed":
            raise UserError(
                f"train.precision: expected 32-true on a CPU, got {train.precision}, which is far slower there"
            )
        return "cpu", 1 if train.devices == "auto" else train.devices
    found = torch.cuda.device_count()
    if train.devices != "auto" and train.devices > found:
        raise UserError(f"train.devices: expected at most {found} GPUs, got {train.devices}")
    return "gpu", found if train.devices == "auto" else train.devices


def find_accelerator(config: Config) -> str:
    """`cpu` or `gpu`; Apple's GPUs lack the float64 that the measurements need.

    Raises:
        UserError: If a GPU is asked for and there is none.
    """
    wanted = config.train.accelerator
    if wanted == "gpu" and not torch.cuda.is_available():
        raise UserError("train.accelerator: expected a CUDA or ROCm GPU for gpu, found none; use cpu or auto")
    return "gpu" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def _precision(config: Config, accelerator: str) -> Literal["32-true", "bf16-mixed"]:
    if config.train.precision != "auto":
        return config.train.precision
    able = accelerator == "gpu" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if able else "32-true"


def quieten() -> None:
    """Leave the terminal to what a user needs."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", module="PIL")
