"""One run, from images to the exported denoiser. Everything heavy is imported from here on."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors import SafetensorError

from gaussbias import callbacks, figures, loggers, modules
from gaussbias.callbacks import Further
from gaussbias.callbacks.base import callbacks_of
from gaussbias.callbacks.private import without_signal_handlers
from gaussbias.catalogue import write_extra
from gaussbias.checkpoints import labels_of, load
from gaussbias.config import Config
from gaussbias.config.checks.labels import check_trained
from gaussbias.data.images import fingerprint
from gaussbias.history.claiming import claim, finish, hold
from gaussbias.modules import EDMModule, GaussianModule, ImageDataModule, LinearModule, build_data
from gaussbias.moments import Eigenmoments, read_or_estimate, stored_fingerprint
from gaussbias.numerics.seeding import derive
from gaussbias.probes.audit import samples_of
from gaussbias.probes.frechet import load_features
from gaussbias.probes.shelf import clear
from gaussbias.system.errors import TrainingError, UserError, safely
from gaussbias.system.files import check_limit, reason
from gaussbias.system.ranks import end_at_once, end_with_parent, is_first, several
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.signals import Stopped, StopRequest
from gaussbias.system.terminal import complain, listed, say
from gaussbias.tables.summary import summary, watch_command
from gaussbias.training.auditing import Audits, audit
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
from gaussbias.training.others import load_further, load_teacher, sides
from gaussbias.training.resuming import (
    Hardware,
    Restart,
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


@dataclass(frozen=True)
class Machine:
    """What a run computes on.

    Attributes:
        accelerator: Lightning's name of the kind of device.
        devices: On each node.
        world_size: In all.
        device: That of this rank while nothing is placed yet.
        card: Name of the GPU; empty for CPUs.
        precision: Of training.
        compiled: Whether the training step is compiled.
    """

    accelerator: str
    devices: int
    world_size: int
    device: torch.device
    card: str
    precision: str
    compiled: bool


@dataclass(frozen=True)
class Materials:
    """What a run is made of.

    Attributes:
        datamodule: Images and draws.
        images: The fingerprint of the training images.
        moments: Of the training images.
        module: What is trained.
        callbacks: What measures it, and what else happens while it runs.
        machine: What it computes on.
        kimg: Its length.
        restart: Where it goes on; `None` if it begins.
    """

    datamodule: ImageDataModule
    images: str
    moments: Eigenmoments
    module: EDMModule | LinearModule | GaussianModule
    callbacks: list[pl.Callback]
    machine: Machine
    kimg: float
    restart: Restart | None

    @property
    def reached(self) -> float | None:
        """How far it had come, in kimg."""
        return None if self.restart is None else self.restart.step * self.datamodule.batch_size / 1000


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
    run = _gather(config, folder, resume)
    attempt = 1
    if is_first():
        if not resume:
            held.enter_context(hold(folder))
        attempt = _begin(config, folder, run, resume, changed)
    trainer = _trainer(config, folder, run, request, attempt)
    if trainer.is_global_zero:
        _announce(config, folder, run, trainer, resume, changed)
    request.patient = True
    _train(trainer, run.module, run.datamodule, None if run.restart is None else run.restart.file)
    request.answer = "training is done, and what is left is being written"
    if trainer.is_global_zero:
        _end(config, folder, run, trainer, attempt)


def _gather(config: Config, folder: Path, resume: bool) -> Materials:
    """Read and check all that a run needs; nothing is written."""
    check_trained(config)
    accelerator, devices = find_ranks(config)
    world_size = devices * config.train.num_nodes
    datamodule = build_data(config)
    datamodule.check_shares(world_size)
    features = load_features(config.probes.features, datamodule.images, config.run.seed)
    images = fingerprint(datamodule.images, datamodule.flip)
    teacher = load_teacher(config, datamodule.bank, images) if config.module.kind == "linear" else None
    if resume:
        check_images(folder, images)
        check_bank(folder, datamodule.bank)
        check_history(folder)
        check_places(folder)
    device = find_device(accelerator)
    # one rank for all that a launcher has started; Lightning starts others when the file is there
    wait = several() and not is_first()
    file = RunFolder(folder).moments
    moments = read_or_estimate(file, datamodule.images, datamodule.flip, images, device, wait)
    others, probes = load_further(config, datamodule.bank)
    torch.manual_seed(derive(config.run.seed, "weights"))
    _, channels, height, width = datamodule.images.shape
    compiled = find_compile(config, accelerator, (channels, height, width))
    module = modules.build(config, datamodule, moments, teacher, compiled, device)
    network = isinstance(module, EDMModule)
    precision = find_precision(config, accelerator) if network else "32-true"
    card = torch.cuda.get_device_name() if accelerator == "gpu" else ""
    copies = 4 + len(config.train.ema_lengths) if network else 1  # weights, averages, and Adam's two moments
    check_limit(copies * sum(value.nbytes for value in module.state_dict().values()), "checkpoints")
    kimg = modules.length(config, module)
    restart = _restart(config, folder, module, kimg) if resume else None
    machine = Machine(accelerator, devices, world_size, device, card, precision, compiled)
    further = Further(features, probes, others, config.probes.theory_samples, config.probes.guidance)
    built = callbacks.build(config, datamodule, moments, folder, module, further, device)
    return Materials(datamodule, images, moments, module, built, machine, kimg, restart)


def _restart(config: Config, folder: Path, module: pl.LightningModule, kimg: float) -> Restart | None:
    """Where a run goes on; `None` if it has no checkpoint and begins again."""
    batch_size = config.train.batch_size
    restart = find_restart(folder, module, batch_size)
    if restart is None:
        saved = callbacks.even_steps(kimg, config.train.checkpoint_every_kimg, batch_size)
        check_beginning(folder, min(saved) * batch_size / 1000)
    elif restart.step > callbacks.total_steps(kimg, batch_size):
        reached = restart.step * batch_size / 1000
        raise UserError(f"train.kimg: expected at least {reached:g}, which the run in {folder} has, got {kimg:g}")
    return restart


def _begin(config: Config, folder: Path, run: Materials, resume: bool, changed: Mapping[str, tuple[Any, Any]]) -> int:
    """Take the folder, and write what a run begins with; which attempt it is."""
    machine = run.machine
    about = {
        "from_kimg": run.reached,
        "devices": [machine.world_size, machine.accelerator],
        "card": machine.card,
        "precision": machine.precision,
        "compiled": machine.compiled,
        "changed": dict(changed),
    }
    attempt = claim(config, folder, resume, about)
    file = RunFolder(folder).moments
    try:
        prepare(folder, run.restart, -1.0 if run.reached is None else run.reached)
        if stored_fingerprint(file) != run.images:
            run.moments.save(file, run.images)
    except (OSError, SafetensorError) as error:
        raise UserError(f"run.root: cannot write to {folder}: {reason(error)}; --resume begins it") from None
    return attempt


def _trainer(config: Config, folder: Path, run: Materials, request: StopRequest, attempt: int) -> pl.Trainer:
    machine, network = run.machine, isinstance(run.module, EDMModule)
    measured = run.restart is None or run.restart.measured
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=config.train.num_nodes,
        strategy=find_strategy(config, run.module, machine.world_size),
        precision=machine.precision,  # type: ignore[arg-type]
        benchmark=network and machine.accelerator == "gpu",
        max_steps=callbacks.total_steps(run.kimg, config.train.batch_size),
        max_epochs=-1,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[callbacks.Streamed(), *find_environment(machine.world_size)],
        logger=loggers.build(config, folder, run.reached, measured, run.datamodule.bank.hashes, attempt),
        callbacks=[
            callbacks.Stopping(request),
            callbacks.OutOfMemory(),
            *run.callbacks,
        ],
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    without_signal_handlers(trainer)
    if trainer.is_global_zero:
        for callback in callbacks_of(trainer, callbacks.ProbeCallback):
            safely("catalogue.json", write_extra, folder, callback.instruments.entries)
    return trainer


def _announce(
    config: Config,
    folder: Path,
    run: Materials,
    trainer: pl.Trainer,
    resume: bool,
    changed: Mapping[str, tuple[Any, Any]],
) -> None:
    """Say what runs, on what, and what is other than before."""
    images, heldout = len(run.datamodule.images), len(run.datamodule.heldout)
    begun = ", begun again" if resume else ""
    say(
        f"{folder}: {images} training and {heldout} held-out images of {sides(run.moments.shape)}, "
        f"{_what(config, run.module)} on {_where(config, run.machine)}"
        + (begun if run.reached is None else f", continued at {run.reached:g} kimg")
    )
    command = watch_command(folder)
    if command is not None:
        say(f"its curves, live, in another terminal: {command}")
    if run.restart is None:
        return
    device = trainer.strategy.root_device.type
    now = Hardware(trainer.world_size, device, run.machine.card, run.machine.precision)
    differs = hardware_differs(run.restart.hardware, now, config.model.dropout > 0)
    if differs is not None:
        say(differs)
    if changed:
        say(f"it goes on with {listed(changed)}")


def _end(config: Config, folder: Path, run: Materials, trainer: pl.Trainer, attempt: int) -> None:
    """Write what a run ends with, draw it, and say what it came to."""
    try:
        kimg = trainer.global_step * config.train.batch_size / 1000
        export(config, folder, run.module, run.images, kimg)
        finish(folder, attempt, kimg)
        clear(RunFolder(folder).theories)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"the denoiser could not be written ({reason(error)}); training is done: --resume writes it"
        ) from None
    if config.probes.cycles and isinstance(run.module, EDMModule):
        safely("the audit", _audit, config, folder, trainer, kimg)
    if config.run.pictures != "none":
        safely("the figures", figures.draw, [folder], RunFolder(folder).figures)
    say(summary(folder))


def _audit(config: Config, folder: Path, trainer: pl.Trainer, kimg: float) -> None:
    """Look for copies below the surface; the first rank does, with all samples."""
    device = trainer.strategy.root_device
    denoiser = load(RunFolder(folder).denoiser, labels=labels_of(config)).denoiser.to(device)
    references = callbacks_of(trainer, callbacks.ProbeCallback)[0].references
    audits = Audits(config.probes.cycles, config.probes.cycle_sigma)
    samples = samples_of(denoiser, references.bank, device)
    for line in audit(denoiser, references, config, folder, kimg, audits, samples).lines:
        say(line)


def _train(
    trainer: pl.Trainer, module: pl.LightningModule, datamodule: ImageDataModule, checkpoint: Path | None
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
    for callback in callbacks_of(trainer, callbacks.ProbeCallback):
        callback.end_pictures(trainer)
    for logger in trainer.loggers:
        if isinstance(logger, loggers.WandbRun):
            logger.finish(code)


def _check_saved(trainer: pl.Trainer) -> None:
    """Raise `TrainingError` if what a run ended with is not on the disk; every rank comes here."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, callbacks.Checkpoints) and callback.failure is not None:
            what = "the last checkpoint could not" if callback.is_any() else "no checkpoint could"
            raise TrainingError(
                f"{what} be written ({callback.failure}); after that is repaired, the run {callback.remedy(trainer)}"
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


def _where(config: Config, machine: Machine) -> str:
    """What a run computes on, in words, and what `auto` chose."""
    count = f"{machine.world_size}"
    if not machine.card:
        return f"{count} cpu"
    there = torch.cuda.device_count() * config.train.num_nodes
    if machine.world_size < there:
        count = f"{count} of {there}"
    return f"{count} {machine.card}, {machine.precision}{', compiled' if machine.compiled else ''}"


def quieten() -> None:
    """Leave the terminal to what a user needs."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", module="PIL")
