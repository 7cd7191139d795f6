"""Looks at checkpoints, one after another, on the same draws and latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from gaussbias.checkpoints import Loaded, load
from gaussbias.checkpoints.conditional import DATA, MIXTURE, network_labels
from gaussbias.config import Config
from gaussbias.data import training_labels
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, LinearDenoiser, MixedClasses
from gaussbias.denoisers.theories import mixture_of
from gaussbias.lens.images import about_images
from gaussbias.lens.results import ABOUT, REMEDY, Looked, key_of, read_looked, write_looked
from gaussbias.lens.subjects import Subject
from gaussbias.lens.surrogate import fit_surrogate
from gaussbias.modules import ImageDataModule, build_data, surrogate_draws
from gaussbias.moments import Eigenmoments, read_or_estimate, stored_fingerprint
from gaussbias.probes import (
    Instruments,
    Make,
    Measured,
    PicturesProbe,
    Probe,
    ProbeBank,
    References,
    SurrogateProbe,
    build,
)
from gaussbias.probes.audit import KeepSamples
from gaussbias.probes.compared import Compared, Others, compared
from gaussbias.probes.cost import counted, evaluations, path_evaluations, seconds_per_image
from gaussbias.probes.shelf import clear
from gaussbias.system.bars import Advance
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import duration, say
from gaussbias.training.auditing import Audits, audit
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.others import check_fits, load_further, sides
from gaussbias.training.run import quieten

LONG = 600
"""Seconds from which on it is said what makes a lens shorter."""


@dataclass(frozen=True)
class Options:
    """How to look.

    Attributes:
        labels: Of class-conditional networks.
        surrogate: Whether to fit the linear surrogate of each network.
        sampler_sigmas: Noise levels of the sampler, descending.
        audits: Which audits of samples.
    """

    labels: str | None
    surrogate: bool
    sampler_sigmas: Sequence[float]
    audits: Audits = field(default_factory=partial(Audits, leaks=True))


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
    bench = _prepare(config, subjects, out, options, tell)
    looked = [_look_at(bench, subject, advance) for subject in subjects]
    clear(RunFolder(out).theories)
    return looked


@dataclass(frozen=True)
class _Bench:
    """What every checkpoint is looked at with.

    Attributes:
        images: Images and draws.
        name: The fingerprint of the training images.
    """

    config: Config
    options: Options
    out: Path
    device: torch.device
    images: ImageDataModule
    name: str
    moments: Eigenmoments

    @cached_property
    def further(self) -> tuple[Others, list[Make]]:
        """Denoisers and probes beside those that there always are."""
        return load_further(self.config, self.images.bank)

    @cached_property
    def compared(self) -> Compared:
        """What all of them are compared with; not made if all were looked at before."""
        place = RunFolder(self.out).theories
        return compared(self.images.set, self.moments, self.further[0], place, self.device)

    @cached_property
    def labels(self) -> Tensor:
        """The classes of the training images, for networks that are told them."""
        return training_labels(self.config.data)

    @property
    def class_numbers(self) -> list[int]:
        """The classes that networks are told: none, or those of the training images."""
        told = network_labels(self.options.labels) == DATA
        numbers: list[int] = self.labels.unique().tolist() if told else []
        return numbers


def _prepare(
    config: Config, subjects: Sequence[Subject], out: Path, options: Options, tell: Callable[[str], None]
) -> _Bench:
    """Read the images, and say what is to be known of them; raises `UserError` if they do not fit."""
    device = find_device(find_accelerator(config))
    images = build_data(config, options.sampler_sigmas)
    name, apart = fingerprint(images.images, images.flip), config.data.heldout_path is not None
    data, guided = config.data, bool(config.probes.guidance)
    for line in about_images(images, name, subjects, options.labels, apart, data.classes, guided):
        tell(line)
    if subjects and subjects[0].shape != images.bank.shape:
        raise UserError(
            f"{subjects[0].path} denoises images of {sides(subjects[0].shape)}, but those of data.* are "
            f"{sides(images.bank.shape)}; give its data set, or data.resolution"
        )
    return _Bench(config, options, out, device, images, name, _moments(out, images, name, device))


def _look_at(bench: _Bench, subject: Subject, advance: Advance) -> Looked:
    """Measure a checkpoint, or take what was found of it before."""
    config, options, bank, device = bench.config, bench.options, bench.images.bank, bench.device
    folder = bench.out / subject.name
    key = key_of(subject, bank, bench.name, config, options.surrogate, options.audits)
    if (folder / ABOUT).is_file():
        return read_looked(subject, folder, key)
    loaded = _loaded(bench, subject)
    check_fits(loaded, bank, str(subject.path))
    loaded.denoiser.to(device)
    _check_finite(loaded.denoiser, bank, subject, device)
    say(_how_long(loaded.denoiser, config, bank, subject, options, device))
    fitted = fit_surrogate(config, subject, folder, options.labels, key) if options.surrogate else None
    count, guidance = config.probes.theory_samples, config.probes.guidance

    def make(references: References) -> dict[str, list[Probe]]:
        probes = build(references, bench.further[1], theory_samples=count, guidance=guidance)
        pictures = PicturesProbe(references, theories=count > 0, guidance=guidance)
        return {"ema": [*probes, *_of_surrogate(fitted, references), pictures, KeepSamples(references)]}

    instruments = bench.compared.instruments(make, config.probes.per_class)
    instruments.to(device)
    measured = _measure(loaded.denoiser, instruments, device, subject, advance, guidance)
    named = partial(_named, advance, subject.name)
    samples = torch.cat([probe.all for probe in instruments.all() if isinstance(probe, KeepSamples)])
    whole = instruments.references
    audited = audit(loaded.denoiser, whole, config, folder, subject.kimg, options.audits, samples, named)
    del loaded
    pictures, *others = (probe for probe in instruments.all() if isinstance(probe, PicturesProbe))
    pictures.join(others)
    return write_looked(config, subject, folder, key, measured, pictures, instruments.entries, fitted, audited.lines)


def _loaded(bench: _Bench, subject: Subject) -> Loaded:
    """A checkpoint with the labels that are asked for, which have to be those of the images."""
    labels, images = bench.options.labels, bench.images
    loaded = load(subject.path, labels=network_labels(labels))
    loaded.denoiser.at_once = bench.config.train.microbatch  # of the network, whatever is made of it
    known = bench.class_numbers
    if known and max(known) >= loaded.denoiser.classes:
        raise UserError(
            f"--labels {labels}: expected images with classes from 0 to {loaded.denoiser.classes - 1}, those of "
            f"{subject.path}, got {max(known)}"
        )
    if bench.config.probes.guidance and not loaded.denoiser.knows_none:
        raise UserError(
            f"--guidance: {subject.path} cannot be told no class, and guidance needs that; leave out --guidance"
        )
    if labels != MIXTURE:
        return loaded
    mixture = mixture_of(images.images, bench.labels, images.flip)
    return replace(loaded, denoiser=MixedClasses(loaded.denoiser, mixture, known))


def _named(advance: Advance, name: str, what: str, done: int, total: int) -> None:
    advance(f"{what} of {name}", done, total)


def _moments(out: Path, images: ImageDataModule, name: str, device: torch.device) -> Eigenmoments:
    """The moments of the training images, which `out` keeps; it holds what was found with these images alone."""
    file = RunFolder(out).moments
    if stored_fingerprint(file) not in (None, name):
        raise UserError(f"--out: {out} holds what was found with other images; {REMEDY}")
    moments = read_or_estimate(file, images.images, images.flip, name, device)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if stored_fingerprint(file) is None:
            moments.save(file, name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    return moments


def _how_long(
    denoiser: Denoiser,
    config: Config,
    bank: ProbeBank,
    subject: Subject,
    options: Options,
    device: torch.device,
) -> str:
    """How long a checkpoint will take, in a line; the baselines, which take as long for any network, are not in it."""
    each = seconds_per_image(denoiser, bank, device)
    count = evaluations(bank, guidance=config.probes.guidance)
    count += options.audits.cycles * bank.samples * path_evaluations(bank, bank.sampler_sigmas)
    if options.surrogate:
        count += len(bank.sigmas) * surrogate_draws(config, math.prod(bank.shape))
    text = f"{subject.name}: about {duration(each * count)} on a {device.type} for {count:,} images to denoise"
    if each * count < LONG:
        return text
    fewer = "probes.draws, probes.samples, probes.sampler_steps" + (", linear.draws" if options.surrogate else "")
    return f"{text}, {each:.2g} s each; fewer {fewer} or noise levels (probes.sigmas) take less"


def _check_finite(denoiser: Denoiser, bank: ProbeBank, subject: Subject, device: torch.device) -> None:
    """Try a network on noise of each level: some give no numbers where they were not trained."""
    noise = bank.latents(0)[:1].to(device)
    for sigma in {*bank.sigmas, *bank.sampler_sigmas}:
        with torch.no_grad():
            if not bool(torch.isfinite(denoiser.given(0)(sigma * noise, sigma)).all()):
                raise UserError(f"{subject.path}: expected finite images, got others at sigma {sigma:g}")


def _measure(
    denoiser: Denoiser,
    instruments: Instruments,
    device: torch.device,
    subject: Subject,
    advance: Advance,
    guidance: Sequence[float],
) -> Measured:
    total = evaluations(instruments.bank, guidance=guidance)
    with counted(denoiser, partial(advance, subject.name), total):
        for _ in instruments.measure({"ema": denoiser}, device):
            pass
    advance(subject.name, total, total)
    return instruments.result(subject.kimg)


def _of_surrogate(fitted: Path | None, references: References) -> list[SurrogateProbe]:
    """What measures the distance to a surrogate."""
    if fitted is None:
        return []
    surrogate = load(fitted).denoiser
    assert isinstance(surrogate, LinearDenoiser)
    return [SurrogateProbe(references, surrogate)]
