"""Averages of a run's weights of any length, made after the run of those that it kept, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from gaussbias.checkpoints import labels_of, load, newest, save_denoiser
from gaussbias.config import Config, to_container
from gaussbias.config.checks.labels import check_trained
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, EDMDenoiser
from gaussbias.history import kimg_name
from gaussbias.modules import build_data
from gaussbias.moments import read_or_estimate
from gaussbias.numerics.averages import coefficients, exponent
from gaussbias.probes import Measured, build
from gaussbias.probes.compared import compared
from gaussbias.probes.cost import counted, evaluations
from gaussbias.probes.instruments import EMA
from gaussbias.system.bars import Advance
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.others import load_further
from gaussbias.training.resuming import check_images
from gaussbias.training.run import quieten


@dataclass(frozen=True)
class Kept:
    """An average that a run wrote down.

    Attributes:
        file: Where.
        length: What it is called there, its length.
        step: After which step.
        kimg: That in thousands of images.
    """

    file: Path
    length: str
    step: int
    kimg: float


@dataclass(frozen=True)
class Rebuilt:
    """An average that was made of kept ones.

    Attributes:
        length: The standard deviation of its profile, over the time of training.
        missed: The distance of the profile that it has to that which it should have, over the size of the latter.
        weights: Of the denoiser, by name.
    """

    length: float
    missed: float
    weights: dict[str, Tensor]


def kept_in(folder: Path) -> list[Kept]:
    """The averages that a run kept, in the order of time.

    Raises:
        UserError: If there are none, or a file cannot be read.
    """
    found = []
    for file in sorted(RunFolder(folder).averages.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                about, names = opened.metadata(), {name.partition("/")[0] for name in opened.keys()}  # noqa: SIM118, it is no dict
            found += [Kept(file, name, int(about["step"]), float(about["kimg"])) for name in sorted(names, key=float)]
        except Exception as error:  # what a file from elsewhere leads to has no base class
            raise UserError(f"cannot read the averages {file}: {reason(error)}") from None
    if not found:
        raise UserError(
            f"expected averages of weights in {RunFolder(folder).averages}, found none; a run keeps them with "
            "train.ema_lengths=[0.05,0.1]"
        )
    return found


def rebuild(kept: Sequence[Kept], length: float, step: int) -> Rebuilt:
    """The average of a length after a step, of those that were kept until then (Karras et al. 2024, Section 3.2).

    Raises:
        UserError: If a file cannot be read.
    """
    until = [average for average in kept if average.step <= step]
    times, exponents = [average.step for average in until], [exponent(float(average.length)) for average in until]
    shares, missed = coefficients(times, exponents, step, exponent(length))
    total: dict[str, Tensor] = {}
    for average, share in zip(until, shares, strict=True):
        for name, value in _weights(average):
            total[name] = value.double() * share if name not in total else total[name].add_(value.double(), alpha=share)
    return Rebuilt(length, missed, {name: value.float() for name, value in total.items()})


def _weights(average: Kept) -> Iterator[tuple[str, Tensor]]:
    prefix = f"{average.length}/"
    try:
        with safe_open(average.file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118, it is no dict
                if name.startswith(prefix):
                    yield name.removeprefix(prefix), opened.get_tensor(name)
    except Exception as error:  # what a file from elsewhere leads to has no base class
        raise UserError(f"cannot read the averages {average.file}: {reason(error)}") from None


def with_weights(denoiser: Denoiser, rebuilt: Rebuilt) -> Denoiser:
    """A denoiser of the same kind with these weights.

    Raises:
        UserError: If they are not those of such a denoiser.
    """
    made = deepcopy(denoiser)
    parameters = dict(made.named_parameters())
    if parameters.keys() != rebuilt.weights.keys():
        other = min(parameters.keys() ^ rebuilt.weights.keys())
        raise UserError(f"expected averages of the weights of the run, found others ({other})")
    with torch.no_grad():
        for name, value in rebuilt.weights.items():
            parameters[name].copy_(value)
    return made


def export(
    denoiser: Denoiser, config: Config, shape: tuple[int, ...], folder: Path, rebuilt: Rebuilt, kimg: float
) -> Path:
    """Write a denoiser of averaged weights, for `gaussbias.load_denoiser` and all commands."""
    assert isinstance(denoiser, EDMDenoiser)
    folder.mkdir(parents=True, exist_ok=True)
    model, weights = to_container(config)["model"], f"ema_{rebuilt.length:g}"
    return save_denoiser(denoiser, model, shape, folder, weights=weights, kimg=kimg)


def measure_averages(
    config: Config,
    folder: Path,
    lengths: Sequence[float],
    kimg: float | None = None,
    advance: Advance = lambda name, done, total: None,
    save: bool = False,
) -> Iterator[tuple[Rebuilt, Measured, Path | None]]:
    """Make averages of some lengths, and measure each on the draws of `config.probes` and on samples.

    Args:
        config: The run's, with the probes to measure with.
        folder: The run's.
        lengths: Standard deviations of the profiles, over the time of training.
        kimg: Of what time; the last one at which averages were kept by then is taken, `None`: the last of all.
        advance: Told how far it is.
        save: Whether to write each, into `averages/<kimg>_<length>/`.

    Returns:
        For each length the average, what was measured, and where it was written.

    Raises:
        UserError: If the run kept none, or has other images.
    """
    quieten()
    check_trained(config)
    kept = kept_in(folder)
    steps = [average for average in kept if kimg is None or average.kimg <= kimg * (1 + 1e-9)]
    if not steps:
        raise UserError(f"--kimg: expected at least {kept[0].kimg:g}, when the first averages were kept, got {kimg:g}")
    last = steps[-1]
    device = find_device(find_accelerator(config))
    loaded = load(newest(folder), labels=labels_of(config))
    images = build_data(config)
    name = fingerprint(images.images, images.flip)
    check_images(folder, name)
    moments = read_or_estimate(RunFolder(folder).moments, images.images, images.flip, name, device)
    others, also = load_further(replace(config, probes=replace(config.probes, surrogate=None)), images.bank)
    guidance = config.probes.guidance
    known = compared(images.set, moments, others, device=device)
    instruments = known.instruments(lambda references: {EMA: build(references, also, guidance=guidance)})
    instruments.to(device)
    total = evaluations(images.bank, guidance=guidance)
    for length in lengths:
        rebuilt = rebuild(kept, length, last.step)
        denoiser = with_weights(loaded.denoiser, rebuilt)
        denoiser.to(device).at_once = config.train.microbatch
        with ExitStack() as told:
            told.enter_context(counted(denoiser, partial(advance, f"length {length:g}"), total))
            for _ in instruments.measure({EMA: denoiser}, device):
                pass
        measured = instruments.result(last.kimg)
        place = None
        if save:
            target = RunFolder(folder).averages / f"{kimg_name(last.kimg)}_{length:g}"
            place = export(denoiser.cpu(), config, loaded.shape, target, rebuilt, last.kimg)
        yield rebuilt, measured, place
