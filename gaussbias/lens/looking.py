"""Looks at checkpoints, one after another, on the same draws and latents."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from gaussbias import data
from gaussbias.callbacks import Baselines, LinearCallback, PicturesCallback, ProbeCallback, measurements
from gaussbias.checkpoints import load
from gaussbias.config import Config, to_yaml
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, LinearDenoiser
from gaussbias.history.claiming import is_finished
from gaussbias.lens.images import about_images
from gaussbias.lens.subjects import Subject
from gaussbias.modules import surrogate_draws
from gaussbias.moments import read_or_estimate, stored_fingerprint
from gaussbias.system.bars import Advance
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.terminal import duration, say
from gaussbias.tables.levels import write_csv
from gaussbias.training import run
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.measuring import Measured, collect, counted, evaluations, measure_batch, seconds_per_image
from gaussbias.training.others import check_fits, sides
from gaussbias.training.run import quieten

ABOUT = "checkpoint.json"
MARK = "surrogate.key"
REMEDY = "give another --out, or remove it"
FORMAT = "gaussbias.lens/1"
LONG = 600
"""Seconds from which on it is said what makes a lens shorter."""


@dataclass(frozen=True)
class Options:
    """How to look.

    Attributes:
        labels: Of class-conditional networks.
        surrogate: Whether to fit the linear surrogate of each network.
        sampler_sigmas: Noise levels of the sampler, descending.
    """

    labels: str | None
    surrogate: bool
    sampler_sigmas: Sequence[float]


@dataclass(frozen=True)
class Looked:
    """What was found about a checkpoint.

    Attributes:
        subject: The checkpoint.
        folder: Where it lies.
        values: By logged name.
        measurement: File of the blocks of each value.
        samples: File of its samples.
        surrogate: Run folder of its linear surrogate, if there is one.
    """

    subject: Subject
    folder: Path
    values: dict[str, float]
    measurement: Path
    samples: Path
    surrogate: Path | None


def look(
    config: Config,
    subjects: Sequence[Subject],
    out: Path,
    options: Options,
    advance: Advance = lambda name, done, total: None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Looked]:
    """Measure checkpoints as a run is measured: ladder, linearity, distances, samples, GL score, memorised fraction.

    What was found of a checkpoint before, on the same images and draws, is taken as it is.

    Args:
        config: Images (`data`) and draws (`probes`).
        subjects: The checkpoints.
        out: A folder for each goes in here.
        options: How to look.
        advance: Told how far it is.
        tell: Called with what is to be known of the images, a line each.

    Raises:
        UserError: If the images do not fit, or results of something else are in the way.
    """
    quieten()
    device = find_device(find_accelerator(config))
    images = data.build(config, options.sampler_sigmas)
    bank, name = images.bank, fingerprint(images.images, images.flip)
    for line in about_images(images, name, subjects, options.labels, config.data.heldout_path is not None):
        tell(line)
    if subjects and subjects[0].shape != bank.shape:
        raise UserError(
            f"{subjects[0].path} denoises images of {sides(subjects[0].shape)}, but those of data.* are "
            f"{sides(bank.shape)}; give its data set, or data.resolution"
        )
    file = out / "moments.safetensors"
    if stored_fingerprint(file) not in (None, name):
        raise UserError(f"--out: {out} holds what was found with other images; {REMEDY}")
    moments = read_or_estimate(file, images.images, images.flip, name, device)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if stored_fingerprint(file) is None:
            moments.save(file, name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    shared: list[ProbeCallback] = []
    found = []
    for subject in subjects:
        folder = out / subject.name
        key = _key(subject, bank, name, config if options.surrogate else None)
        if (folder / ABOUT).is_file():
            found.append(_read(subject, folder, key))
            continue
        if not shared:
            shared = measurements(bank, images.images, images.heldout, moments, device=device)
            for callback in shared:
                callback.place(device)
        loaded = load(subject.path, labels=options.labels)
        check_fits(loaded, bank, str(subject.path))
        loaded.denoiser.to(device).at_once = config.train.microbatch
        _check_finite(loaded.denoiser, bank, subject, device)
        say(_how_long(loaded.denoiser, config, bank, subject, options, device))
        fitted = _fit_surrogate(config, subject, folder, options, key) if options.surrogate else None
        callbacks = [*shared, *_of_surrogate(fitted, shared[0].baselines, device)]
        measured = _measure(loaded.denoiser, callbacks, bank, device, subject, advance)
        del loaded
        found.append(_write(config, subject, folder, key, measured, callbacks, fitted))
    return found


def _how_long(
    denoiser: Denoiser,
    config: Config,
    bank: data.ProbeBank,
    subject: Subject,
    options: Options,
    device: torch.device,
) -> str:
    """How long a checkpoint will take, in a line; the baselines, which take as long for any network, are not in it."""
    each = seconds_per_image(denoiser, bank, device)
    count = evaluations(bank)
    if options.surrogate:
        count += len(bank.sigmas) * surrogate_draws(config, math.prod(bank.shape))
    text = f"{subject.name}: about {duration(each * count)} on a {device.type} for {count:,} images to denoise"
    if each * count < LONG:
        return text
    fewer = "probes.draws, probes.samples, probes.sampler_steps" + (", linear.draws" if options.surrogate else "")
    return f"{text}, {each:.2g} s each; fewer {fewer} or noise levels (probes.sigmas) take less"


def _check_finite(denoiser: Denoiser, bank: data.ProbeBank, subject: Subject, device: torch.device) -> None:
    """Try a network on noise of each level: some give no numbers where they were not trained."""
    noise = bank.latents(0)[:1].to(device)
    for sigma in {*bank.sigmas, *bank.sampler_sigmas}:
        with torch.no_grad():
            if not bool(torch.isfinite(denoiser(sigma * noise, sigma)).all()):
                raise UserError(f"{subject.path}: expected finite images, got others at sigma {sigma:g}")


def _measure(
    denoiser: Any,
    callbacks: Sequence[ProbeCallback],
    bank: data.ProbeBank,
    device: torch.device,
    subject: Subject,
    advance: Advance,
) -> Measured:
    for callback in callbacks:
        callback.clear()
    total = evaluations(bank)
    with counted(denoiser, partial(advance, subject.name), total):
        for loader in bank.loaders():
            for batch in loader:
                measure_batch({"": denoiser}, {"": callbacks}, batch, device)
    advance(subject.name, total, total)
    return collect(callbacks, bank, subject.kimg, bank.blocks * bank.block)


def _of_surrogate(fitted: Path | None, baselines: Baselines, device: torch.device) -> list[ProbeCallback]:
    """What measures the distance to a surrogate."""
    if fitted is None:
        return []
    surrogate = load(fitted).denoiser
    assert isinstance(surrogate, LinearDenoiser)
    callback = LinearCallback(baselines, surrogate)
    callback.place(device)
    return [callback]


def _fit_surrogate(config: Config, subject: Subject, folder: Path, options: Options, key: str) -> Path:
    """Distil a checkpoint, as `module.kind=linear` does, or take what was distilled before; its run folder."""
    place, mark = folder / "surrogate", folder / MARK
    try:
        if not place.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write(mark, f"{key}\n")
        if not mark.is_file() or mark.read_text().strip() != key:
            raise UserError(f"--out: {place} is of another checkpoint, images, draws or options; {REMEDY}")
    except OSError as error:
        raise UserError(f"--out: cannot write to {folder}: {reason(error)}") from None
    if is_finished(place):
        return place
    linear = replace(config.linear, teacher=str(subject.path.absolute()), labels=options.labels)
    own = replace(
        config,
        module=replace(config.module, kind="linear"),
        linear=linear,
        train=replace(config.train, devices=1),
        run=replace(config.run, name="surrogate", root=str(folder), wandb="disabled"),
    )
    run.fit(own, place, resume=(place / "config.yaml").exists())
    return place


def _key(subject: Subject, bank: data.ProbeBank, images: str, fitted: Config | None) -> str:
    """What results depend on, as a hash; with the configuration of a surrogate, if there is one."""
    surrogate = None if fitted is None else (repr(fitted.linear), fitted.train.batch_size, fitted.run.seed)
    about = (FORMAT, subject.digest, sorted(bank.hashes.items()), images, surrogate)
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _write(
    config: Config,
    subject: Subject,
    folder: Path,
    key: str,
    measured: Measured,
    callbacks: Sequence[ProbeCallback],
    fitted: Path | None,
) -> Looked:
    """Write what was found; what says that it is whole comes last."""
    measurement = folder / "measured" / f"{measured.name}.safetensors"
    samples = folder / "samples" / f"{measured.name}.safetensors"
    kimg = float("nan") if subject.kimg is None else subject.kimg
    try:
        measured.write(measurement)
        write_csv(measurement.with_suffix(".csv"), config, measured.values)
        for callback in callbacks:
            if isinstance(callback, PicturesCallback):
                callback.write(samples, kimg)
        write(folder / "config.yaml", to_yaml(config))
        about = {
            "format": FORMAT,
            "key": key,
            "path": str(subject.path.absolute()),
            "kind": subject.kind,
            "kimg": subject.kimg,
            "parameters": subject.parameters,
            "notes": subject.notes,
            "name": measured.name,
            "surrogate": fitted is not None,
            "values": {name: value for name, value in measured.values.items() if value == value},
        }
        write(folder / ABOUT, json.dumps(about, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out: cannot write to {folder}: {reason(error)}") from None
    return Looked(subject, folder, dict(measured.values), measurement, samples, fitted)


def _read(subject: Subject, folder: Path, key: str) -> Looked:
    """What was found before."""
    try:
        about: Mapping[str, Any] = json.loads((folder / ABOUT).read_text())
        same = about["key"] == key
        values = {str(name): float(value) for name, value in about["values"].items()}
        name, fitted = str(about["name"]), bool(about["surrogate"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--out: cannot read {folder / ABOUT}: {reason(error)}; remove {folder}") from None
    if not same:
        raise UserError(
            f"--out: {folder} holds what was found with another checkpoint, images, draws or options; {REMEDY}"
        )
    measurement, samples = (folder / kind / f"{name}.safetensors" for kind in ("measured", "samples"))
    return Looked(subject, folder, values, measurement, samples, folder / "surrogate" if fitted else None)
