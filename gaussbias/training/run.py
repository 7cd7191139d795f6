"""One run, from images to the exported denoiser. Everything heavy is imported from here on."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors import SafetensorError

from gaussbias import callbacks, data, figures, loggers, modules
from gaussbias.callbacks.base import callbacks_of, safely
from gaussbias.config import Config
from gaussbias.data.images import fingerprint
from gaussbias.history.claiming import claim, finish, hold
from gaussbias.modules import EDMModule, GaussianModule, LinearModule
from gaussbias.moments import read_or_estimate, stored_fingerprint
from gaussbias.numerics.seeding import derive
from gaussbias.system.errors import TrainingError, UserError
from gaussbias.system.files import check_limit, reason
from gaussbias.system.ranks import end_at_once, end_with_parent, is_first, several
from gaussbias.system.signals import Stopped, StopRequest
from gaussbias.system.terminal import complain, listed, say
from gaussbias.tables.summary import summary
from gaussbias.training.devices import (
    find_compile,
    find_device,
    find_environment,
    find_precision,
    find_ranks,
    find_strategy,
    is_of_another_rank,
)
from gaussbias.training.exporting import export
from gaussbias.training.others import load_surrogate, load_teacher
from gaussbias.training.resuming import (
    Hardware,
    check_bank,
    check_beginning,
    check_history,
    check_images,
    check_places,
    find_restart,
    hardware_differs,
    prepare,
)

log = logging.getLogger("gaussbias")


def fit(
    config: Config,
    folder: Path,
    resume: bool = False,
    request: StopRequest | None = None,
    changed: Mapping[str, tuple[Any, Any]] | None = None,
) -> None:
    """Train as configured, and leave everything in `folder`.

    Args:
        config: The configuration.
        folder: The run folder.
        resume: Whether the run in it is continued.
        request: Notes signals; training stops when there is one.
        changed: Keys that differ from those that the run was configured with, for its record.

    Raises:
        UserError: For images, devices or a checkpoint that cannot be used.
        TrainingError: If the loss stops being finite, or what is left cannot be written.
        Stopped: If it was asked to.
    """
    quieten()
    end_with_parent()
    with ExitStack() as held:
        if resume and is_first():  # a new run holds its folder once all is read: a mistake leaves nothing
            held.enter_context(hold(folder))
        _fit(config, folder, resume, request or StopRequest(), changed or {}, held)


def _fit(
    config: Config,
    folder: Path,
    resume: bool,
    request: StopRequest,
    changed: Mapping[str, tuple[Any, Any]],
    held: ExitStack,
) -> None:
    accelerator, devices = find_ranks(config)
    world_size = devices * config.train.num_nodes
    datamodule = data.build(config)
    datamodule.check_shares(world_size)
    features = callbacks.load_features(config.probes.features, datamodule.images, config.run.seed)
    images = fingerprint(datamodule.images, datamodule.flip)
    surrogate = load_surrogate(config, datamodule.bank)
    teacher = load_teacher(config, datamodule.bank, images) if config.module.kind == "linear" else None
    if resume:
        check_images(folder, images)
        check_bank(folder, datamodule.bank)
        check_history(folder)
        check_places(folder)
    file = folder / "moments.safetensors"
    device = find_device(accelerator)
    # one rank for all that a launcher has started; Lightning starts others when the file is there
    wait = several() and not is_first()
    moments = read_or_estimate(file, datamodule.images, datamodule.flip, images, device, wait)
    torch.manual_seed(derive(config.run.seed, "weights"))
    _, channels, height, width = datamodule.images.shape
    compiled = find_compile(config, accelerator, (channels, height, width))
    module = modules.build(config, datamodule, moments, teacher, compiled, device)
    network = isinstance(module, EDMModule)
    precision = find_precision(config, accelerator) if network else "32-true"
    card = torch.cuda.get_device_name() if accelerator == "gpu" else ""
    copies = 4 if network else 1  # weights, their average, and Adam's two moments
    check_limit(copies * sum(value.nbytes for value in module.state_dict().values()), "checkpoints")
    restart = find_restart(folder, module, config.train.batch_size) if resume else None
    kimg = modules.length(config, module)
    steps = callbacks.total_steps(kimg, config.train.batch_size)
    reached = None if restart is None else restart.step * config.train.batch_size / 1000
    if restart is not None and restart.step > steps:
        raise UserError(f"train.kimg: expected at least {reached:g}, which the run in {folder} has, got {kimg:g}")
    if resume and restart is None:
        saved = callbacks.even_steps(kimg, config.train.checkpoint_every_kimg, config.train.batch_size)
        check_beginning(folder, min(saved) * config.train.batch_size / 1000)
    attempt = 1
    if is_first():
        if not resume:
            held.enter_context(hold(folder))
        about = {
            "from_kimg": reached,
            "devices": [world_size, accelerator],
            "card": card,
            "precision": precision,
            "compiled": compiled,
            "changed": dict(changed),
        }
        attempt = claim(config, folder, resume, about)
        try:
            prepare(folder, restart, -1.0 if reached is None else reached)
            if stored_fingerprint(file) != images:
                moments.save(file, images)
        except (OSError, SafetensorError) as error:
            raise UserError(f"run.root: cannot write to {folder}: {reason(error)}; --resume begins it") from None
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator=accelerator,
        devices=devices,
        num_nodes=config.train.num_nodes,
        strategy=find_strategy(config, module, world_size),
        precision=precision,
        benchmark=network and accelerator == "gpu",
        max_steps=steps,
        max_epochs=-1,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[callbacks.Streamed(), *find_environment(world_size)],
        logger=loggers.build(
            config, folder, reached, restart is None or restart.measured, datamodule.bank.hashes, attempt
        ),
        callbacks=[
            callbacks.Stopping(request),
            callbacks.OutOfMemory(),
            *callbacks.build(config, datamodule, moments, folder, module, features, surrogate, device),
        ],
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        sides = " x ".join(str(side) for side in moments.shape)
        say(
            f"{folder}: {len(datamodule.images)} training and {len(datamodule.heldout)} held-out images of {sides}, "
            f"{_what(config, module)} on {_where(config, world_size, card, precision, compiled)}"
            + (f", continued at {reached:g} kimg" if reached is not None else ", begun again" if resume else "")
        )
        if restart is not None:
            now = Hardware(trainer.world_size, trainer.strategy.root_device.type, card, precision)
            differs = hardware_differs(restart.hardware, now, config.model.dropout > 0)
            if differs is not None:
                say(differs)
            if changed:
                say(f"it goes on with {listed(changed)}")
    # Lightning's own handler has ranks do something together in the middle of whatever they do
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    # and ranks ask each other for it before each step, and wait for the answer of the device
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    request.patient = True
    _train(trainer, module, datamodule, None if restart is None else restart.file)
    request.answer = "training is done, and what is left is being written"
    if trainer.is_global_zero:
        try:
            kimg = trainer.global_step * config.train.batch_size / 1000
            export(config, folder, module, images, kimg)
            finish(folder, attempt, kimg)
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"the denoiser could not be written ({reason(error)}); training is done: --resume writes it"
            ) from None
        safely("the figures", figures.draw, [folder], folder / "figures")
        say(summary(folder))


def _train(
    trainer: pl.Trainer, module: pl.LightningModule, datamodule: data.ImageDataModule, checkpoint: Path | None
) -> None:
    code = 1
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
        _check_saved(trainer)
        code = 0
    except Stopped as stopped:
        code = stopped.code
        raise
    except SystemExit:
        if trainer.interrupted:  # what Lightning makes of a second Ctrl-C
            raise KeyboardInterrupt from None
        raise
    except Exception as error:
        full = [callback.said for callback in callbacks_of(trainer, callbacks.OutOfMemory) if callback.said]
        if full and trainer.world_size == 1:
            raise TrainingError(full[0]) from None
        if full:  # the others wait for this rank
            _finish(trainer, code)
            complain(f"gaussbias.fit: {full[0]}")
            end_at_once()
        if trainer.world_size > 1 and is_of_another_rank(error):
            raise TrainingError("another process of this job ended; what it said is above, or in its own log") from None
        if trainer.world_size > 1 and not isinstance(error, UserError):
            _finish(trainer, code)
            end_at_once(error)
        raise
    finally:
        _finish(trainer, code)


def _finish(trainer: pl.Trainer, code: int) -> None:
    for logger in trainer.loggers:
        if isinstance(logger, loggers.WandbRun):
            logger.finish(code)


def _check_saved(trainer: pl.Trainer) -> None:
    """Raise `TrainingError` if what a run ended with is not on the disk; every rank comes here."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, callbacks.Checkpoints) and callback.failure is not None:
            what = "the last checkpoint could not" if callback.is_any() else "no checkpoint could"
            raise TrainingError(
                f"{what} be written ({callback.failure}); once that is mended, the run {callback.remedy(trainer)}"
            )


def _what(config: Config, module: pl.LightningModule) -> str:
    """What a run does, in words."""
    if isinstance(module, GaussianModule):
        return "mean and covariance in one pass"
    if isinstance(module, LinearModule):
        each = f"{module.draws_per_level:,} draws for each of {len(module.levels)} noise levels"
        return f"a surrogate of {config.linear.teacher} by {config.linear.method}, {each}"
    size = sum(parameter.numel() for parameter in module.parameters())
    return f"{size / 1e6:.2f} M parameters, {config.train.kimg:g} kimg"


def _where(config: Config, world_size: int, card: str, precision: str, compiled: bool) -> str:
    """What a run computes on, in words, and what `auto` chose."""
    if not card:
        return f"{world_size} cpu"
    found = torch.cuda.device_count() * config.train.num_nodes
    count = f"{world_size} of {found}" if world_size < found else f"{world_size}"
    return f"{count} {card}, {precision}{', compiled' if compiled else ''}"


def quieten() -> None:
    """Leave the terminal to what a user needs."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", module="PIL")
