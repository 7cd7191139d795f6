"""Other denoisers that a run needs: what it distils, and the surrogate that it is compared with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gaussbias.catalogue import LINEAR
from gaussbias.checkpoints import Loaded, load
from gaussbias.config import Config, DataConfig
from gaussbias.config.theories import family, names_function, theory_name
from gaussbias.data import training_labels
from gaussbias.denoisers import THEORIES, Denoiser, LinearDenoiser
from gaussbias.denoisers.theories import ALWAYS, FAMILIES, mixture_of
from gaussbias.denoisers.theories import theory as numbered_theory
from gaussbias.moments import Eigenmoments, stored_fingerprint
from gaussbias.numerics.seeding import derive
from gaussbias.probes import BetweenProbe, Make, Probe, ProbeBank, References, SurrogateProbe
from gaussbias.probes.compared import Others
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, run_of
from gaussbias.system.functions import call, failed, load_function
from gaussbias.system.run_folder import RunFolder

CLASSES = "classes"
"""The theory that takes the labels of images which the network is not told."""
FAMILY = "bootstrap"
"""The theory that stands for all of its family: where between its ends a denoiser is."""


def load_teacher(config: Config, bank: ProbeBank, images: str) -> Denoiser:
    """The denoiser to distil, which has to fit the images.

    Raises:
        UserError: If it cannot be read, is of other images, or lacks a noise level.
    """
    path = Path(str(config.linear.teacher)).expanduser()
    run = run_of(path)
    if run is not None and stored_fingerprint(RunFolder(run).moments) not in (None, images):
        raise UserError(
            f"linear.teacher: {path} was trained on other images than data.* gives here; leave data.* out of the "
            "configuration, and they are those of the teacher"
        )
    try:
        teacher = load(path, labels=config.linear.labels)
    except UserError as error:
        raise UserError(f"linear.teacher: {error}") from None
    check_fits(teacher, bank, f"linear.teacher: {path}")
    if teacher.denoiser.classes:
        raise UserError("linear.labels: expected average, none or the number of a class, got data")
    teacher.denoiser.at_once = config.train.microbatch
    return teacher.denoiser


def load_surrogate(config: Config, bank: ProbeBank) -> LinearDenoiser | None:
    """The surrogate to measure the distance to."""
    if config.probes.surrogate is None:
        return None
    path = Path(config.probes.surrogate).expanduser()
    try:
        loaded = load(path)
    except UserError as error:
        raise UserError(f"probes.surrogate: {error}") from None
    if not isinstance(loaded.denoiser, LinearDenoiser):
        raise UserError(f"probes.surrogate: expected a linear surrogate at {path}, found another denoiser")
    check_fits(loaded, bank, f"probes.surrogate: {path}")
    return loaded.denoiser


def load_further(config: Config, bank: ProbeBank) -> tuple[Others, list[Make]]:
    """What a run is compared with and measured by beside what always is.

    Args:
        config: The configuration: `probes.surrogate`, `probes.theories` and `probes.also`.
        bank: The draws, whose noise levels they have to denoise.

    Returns:
        What makes further denoisers by name, which raises `UserError` if one cannot be made, and makers of further
        probes.

    Raises:
        UserError: If one cannot be read.
    """
    probes = [_maker(spec) for spec in config.probes.also]
    surrogate = load_surrogate(config, bank)
    if surrogate is not None:
        probes = [partial(SurrogateProbe, surrogate=surrogate), *probes]
    formulas = []
    for theory in config.probes.theories:
        if theory.rpartition("=")[2] != FAMILY:
            formulas.append(theory)
            continue
        if theory != FAMILY:
            raise UserError(f"probes.theories: {FAMILY} is logged as between/..., and takes no name, got {theory}")
        probes.append(BetweenProbe)

    def others(bank: ProbeBank, images: Tensor, moments: Eigenmoments) -> dict[str, Denoiser]:
        fitted = {LINEAR: surrogate} if surrogate is not None and config.probes.theories else {}
        return fitted | {
            theory_name(theory): make_theory(theory, config.data, bank, images, moments) for theory in formulas
        }

    return others, probes


def make_theory(theory: str, data: DataConfig, bank: ProbeBank, images: Tensor, moments: Eigenmoments) -> Denoiser:
    """A theory as `probes.theories` writes it, `name`, `family:number` or `[name=]package.module:function`.

    Args:
        theory: In the configuration's words.
        data: Where the images come from, for their labels.
        bank: The draws, whose noise levels it has to denoise.
        images: Training images (N, C, H, W).
        moments: Of the training images.

    Raises:
        UserError: If there is none, or it cannot be made.
    """
    key, name = "probes.theories", theory_name(theory)
    _, _, spec = theory.rpartition("=")
    numbered, own = family(theory), names_function(theory)
    known = own or (numbered[0] in FAMILIES if numbered else spec in (CLASSES, *THEORIES))
    if name in (*ALWAYS, LINEAR) or not known:
        there = "".join(f", {name}" for name in (FAMILY, CLASSES, *THEORIES) if name not in ALWAYS)
        there += "".join(f", {name}:NUMBER" for name in FAMILIES)
        raise UserError(
            f"{key}: expected package.module:function{there}, beside {' and '.join(ALWAYS)}, which are always compared "
            f"with, and the name {LINEAR} of probes.surrogate; got {theory}"
        )
    if spec == CLASSES:
        if data.labels:
            raise UserError(f"{key}: expected others than {CLASSES} with data.labels=true, which tells the class")
        return mixture_of(images, training_labels(data), bank.flip)
    arguments = (images, moments, bank.flip)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(bank.seed, "theory", name))  # all ranks, and a run that goes on, get the same
        if own:
            denoiser = call(spec, key, *arguments)
        else:
            make = THEORIES[spec] if numbered is None else numbered_theory(*numbered)
            try:
                denoiser = make(*arguments)
            except ValueError as error:
                raise UserError(f"{key}: {theory}: {error}") from None
    if not isinstance(denoiser, Denoiser):
        raise UserError(
            f"{key}: expected {spec}() to give a gaussbias.denoisers.Denoiser, got {type(denoiser).__name__}"
        )
    _check_levels(denoiser, bank, f"{key}: {name}")
    return denoiser


def _maker(spec: str) -> Make:
    key = "probes.also"
    make = load_function(spec, key)

    def made(references: References) -> Probe:
        try:
            probe = make(references)
        except Exception as error:  # it is the user's code
            raise failed(spec, key, error) from None
        if not isinstance(probe, Probe):
            raise UserError(f"{key}: expected {spec}() to give a gaussbias.probes.Probe, got {type(probe).__name__}")
        return probe

    for need in ("needs_samples", "needs_pools"):
        if hasattr(make, need):
            setattr(made, need, getattr(make, need))
    return made


def check_fits(loaded: Loaded, bank: ProbeBank, what: str) -> None:
    """Try a denoiser on an image at each noise level of a probe bank.

    Raises:
        UserError: If its images have another shape, or it fails.
    """
    if tuple(loaded.shape) != bank.shape:
        raise UserError(f"{what} denoises images of {sides(loaded.shape)}, but those of data.* are {sides(bank.shape)}")
    _check_levels(loaded.denoiser, bank, what)


def _check_levels(denoiser: Denoiser, bank: ProbeBank, what: str) -> None:
    for sigma in bank.sigmas:
        why = try_denoiser(denoiser, bank.shape, sigma)
        if why is not None:
            raise UserError(f"{what} cannot denoise images of {sides(bank.shape)} at sigma {sigma:g} ({why})")


def sides(shape: tuple[int, ...]) -> str:
    """The shape of images, in words."""
    return " x ".join(str(side) for side in shape)


def try_denoiser(denoiser: Denoiser, shape: tuple[int, ...], sigma: float) -> str | None:
    """Why a denoiser cannot denoise images of a shape at a noise level; `None` if it can."""
    try:
        with torch.no_grad():
            denoiser.given(0)(torch.zeros(1, *shape), torch.full((1,), sigma))
    except (RuntimeError, ValueError) as error:
        return reason(error)
    return None
