"""Other denoisers that a run needs: what it distils, and the surrogate that it is compared with."""

from __future__ import annotations

from pathlib import Path

import torch

from gaussbias.checkpoints import Loaded, load
from gaussbias.config import Config
from gaussbias.data import ProbeBank
from gaussbias.denoisers import Denoiser, LinearDenoiser
from gaussbias.moments import stored_fingerprint
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, run_of


def load_teacher(config: Config, bank: ProbeBank, images: str) -> Denoiser:
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
        teacher = load(path, labels=config.linear.labels)
    except UserError as error:
        raise UserError(f"linear.teacher: {error}") from None
    check_fits(teacher, bank, f"linear.teacher: {path}")
    teacher.denoiser.at_once = config.train.microbatch
    return teacher.denoiser


def load_surrogate(config: Config, bank: ProbeBank) -> LinearDenoiser | None:
    """The surrogate to measure the distance to."""
    if config.probes.surrogate is None:
        return None
    path = Path(config.probes.surrogate).expanduser()
    try:
        found = load(path)
    except UserError as error:
        raise UserError(f"probes.surrogate: {error}") from None
    if not isinstance(found.denoiser, LinearDenoiser):
        raise UserError(f"probes.surrogate: expected a linear surrogate at {path}, found another denoiser")
    check_fits(found, bank, f"probes.surrogate: {path}")
    return found.denoiser


def check_fits(loaded: Loaded, bank: ProbeBank, what: str) -> None:
    """Try a denoiser on an image at each noise level of a probe bank.

    Raises:
        UserError: If its images have another shape, or it fails.
    """
    if tuple(loaded.shape) != bank.shape:
        raise UserError(f"{what} denoises images of {sides(loaded.shape)}, but those of data.* are {sides(bank.shape)}")
    for sigma in bank.sigmas:
        why = try_denoiser(loaded.denoiser, bank.shape, sigma)
        if why is not None:
            raise UserError(f"{what} cannot denoise images of {sides(bank.shape)} at sigma {sigma:g} ({why})")


def sides(shape: tuple[int, ...]) -> str:
    """The shape of images, in words."""
    return " x ".join(str(side) for side in shape)


def try_denoiser(denoiser: Denoiser, shape: tuple[int, ...], sigma: float) -> str | None:
    """Why a denoiser cannot denoise images of a shape at a noise level; `None` if it can."""
    try:
        with torch.no_grad():
            denoiser(torch.zeros(1, *shape), torch.full((1,), sigma))
    except (RuntimeError, ValueError) as error:
        return reason(error)
    return None
