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
from gaussbias.checkpoints import load_at, load_checkpoint, newest, save_denoiser, save_gaussian, save_linear
from gaussbias.config import Config, to_container, to_yaml
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, EmpiricalDenoiser, GaussianDenoiser, LinearDenoiser, full_precision
from gaussbias.errors import UserError
from gaussbias.files import run_of
from gaussbias.history import is_number, measurement_files, read_measurement
from gaussbias.modules import EDMModule, GaussianModule, LinearModule
from gaussbias.moments import Eigenmoments, read_or_estimate, stored_fingerprint
from gaussbias.ranks import is_first
from gaussbias.seeding import derive
from gaussbias.summary import summary
from gaussbias.surrogate import write_description
from gaussbias.terminal import say

log = logging.getLogger("gaussbias")

SHOWN = 2
"""Latents from which the sampling paths of a surrogate, its teacher and the baselines are drawn."""


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
    images = fingerprint(datamodule.images, datamodule.flip)
    surrogate = _surrogate(config, datamodule.bank)
    teacher = _teacher(config, datamodule.bank, images) if config.module.kind == "linear" else None
    checkpoint = _last_checkpoint(folder) if resume else None
    if checkpoint is not None:
        check_images(folder, images)
        _check_bank(folder, datamodule.bank)
    file = folder / "moments.safetensors"
    moments = read_or_estimate(file, datamodule.images, datamodule.flip, images)
    torch.manual_seed(derive(config.run.seed, "weights"))
    module = modules.build(config, datamodule, moments, teacher)
    done = 0 if checkpoint is None else _load(checkpoint, module)
    kimg = modules.length(config, module)
    steps = callbacks.total_steps(kimg, config.train.batch_size)
    if done > steps:
        reached = done * config.train.batch_size / 1000
        raise UserError(f"train.kimg: expected at least {reached:g}, which the run in {folder} has, got {kimg:g}")
    if is_first():
        _claim(config, folder, resume)
        if checkpoint is not None:
            _forget_after(folder, done * config.train.batch_size / 1000)
        if stored_fingerprint(file) != images:
            moments.save(file, images)
    from_kimg = None if checkpoint is None else done * config.train.batch_size / 1000
    network = isinstance(module, EDMModule)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator=accelerator,
        devices=devices,
        num_nodes=config.train.num_nodes,
        strategy=_strategy(config, module, devices * config.train.num_nodes),
        precision=_precision(config, accelerator) if network else "32-true",
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
        _export(config, folder, module, images, trainer.global_step * config.train.batch_size / 1000)
        if isinstance(module, LinearModule):
            safely("the description of the surrogate", _describe, trainer, module, datamodule, moments, folder)
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


def _strategy(config: Config, module: pl.LightningModule, world_size: int) -> str | modules.SummingStrategy:
    several = world_size > 1 or config.train.strategy == "ddp"
    summing = several and isinstance(module, modules.SummingModule)
    return modules.SummingStrategy() if summing else config.train.strategy


def _teacher(config: Config, bank: data.ProbeBank, images: str) -> Denoiser:
    """The denoiser to distil, which has to fit the images.

    Raises:
        UserError: If it cannot be read, is of other images, or lacks a noise level.
    """
    path = Path(str(config.linear.teacher)).expanduser()
    run = run_of(path)
    if run is not None and stored_fingerprint(run / "moments.safetensors") not in (None, images):
        raise UserError(
            f"linear.teacher: {path} was trained on other images than data.* gives here; leave data.* out of the "
            "configuration, and they are those of the teacher"
        )
    try:
        teacher, _ = load_at(newest(path) if path.is_dir() else path)
    except UserError as error:
        raise UserError(f"linear.teacher: {error}") from None
    _try(teacher, bank, f"linear.teacher: {path}")
    return teacher


def _surrogate(config: Config, bank: data.ProbeBank) -> LinearDenoiser | None:
    """The surrogate to measure the distance to."""
    if config.probes.surrogate is None:
        return None
    path = Path(config.probes.surrogate).expanduser()
    try:
        found, _ = load_at(newest(path) if path.is_dir() else path)
    except UserError as error:
        raise UserError(f"probes.surrogate: {error}") from None
    if not isinstance(found, LinearDenoiser):
        raise UserError(f"probes.surrogate: expected a linear surrogate at {path}, found another denoiser")
    _try(found, bank, f"probes.surrogate: {path}")
    return found


def _try(denoiser: Denoiser, bank: data.ProbeBank, what: str) -> None:
    """Try a denoiser on an image of the run at each noise level."""
    for sigma in bank.sigmas:
        reason = try_denoiser(denoiser, bank.shape, sigma)
        if reason is not None:
            sides = " x ".join(str(side) for side in bank.shape)
            raise UserError(f"{what} cannot denoise images of {sides} at sigma {sigma:g} ({reason})")


def try_denoiser(denoiser: Denoiser, shape: tuple[int, ...], sigma: float) -> str | None:
    """Why a denoiser cannot denoise images of a shape at a noise level; `None` if it can."""
    try:
        with torch.no_grad():
            denoiser(torch.zeros(1, *shape), torch.full((1,), sigma))
    except (RuntimeError, ValueError) as error:
        return " ".join(str(error).split())[:200]
    return None


def _export(config: Config, folder: Path, module: pl.LightningModule, images: str, kimg: float) -> None:
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


def _describe(
    trainer: pl.Trainer,
    module: LinearModule,
    datamodule: data.ImageDataModule,
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
    if isinstance(module, LinearModule) and checkpoint["progress"]["teacher"] != module.teacher_hash:
        raise UserError(
            "linear.teacher: the surrogate was begun with other weights than the teacher has now (it was trained on?); "
            "begin another run.name"
        )
    return step


def check_images(folder: Path, images: str) -> None:
    """Raise `UserError` unless images of this fingerprint are those that the run in a folder began with."""
    before = stored_fingerprint(folder / "moments.safetensors")
    if before not in (None, images):
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
