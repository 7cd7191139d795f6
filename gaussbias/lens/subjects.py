"""The checkpoints that are looked at, and the noise levels that they have in common."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gaussbias.checkpoints import Loaded, TrainedOn, load
from gaussbias.checkpoints.conditional import network_labels
from gaussbias.denoisers import Denoiser, LinearDenoiser, PreconditionedDenoiser
from gaussbias.noise import SIGMA_MAX, SIGMA_MIN, karras_sigmas
from gaussbias.system.errors import UserError
from gaussbias.training.others import sides


@dataclass(frozen=True)
class Subject:
    """A checkpoint, without its weights.

    Attributes:
        name: Of its folder and in figures.
        path: Where it lies.
        kind: What it was read from.
        shape: (C, H, W) of its images.
        kimg: How long it was trained; `None` if that is not known.
        parameters: Number of weights.
        notes: What is of note.
        denoiser: What is left of it without the network: coefficients and noise levels.
        digest: A hash of its weights and of what it is.
        trained_on: What it says of its training images.
    """

    name: str
    path: Path
    kind: str
    shape: tuple[int, ...]
    kimg: float | None
    parameters: int
    notes: list[str]
    denoiser: Denoiser
    digest: str
    trained_on: TrainedOn

    def levels(self, sigmas: Sequence[float]) -> list[tuple[float, float, float | None]]:
        """For each noise level the one that it is taken for, and what the network is told (c_noise); for networks."""
        levels = []
        for sigma in sigmas:
            told = None
            if isinstance(self.denoiser, PreconditionedDenoiser):
                told = float(self.denoiser.coefficients(torch.tensor([sigma], dtype=torch.float64))[3])
            levels.append((sigma, self.denoiser.effective_sigma(sigma), told))
        return levels


def read_subjects(paths: Sequence[Path], labels: str | None) -> list[Subject]:
    """What is known of checkpoints before they are looked at; each is opened, so that a mistake is found at once.

    Raises:
        UserError: If one cannot be read, or is given twice.
    """
    subjects = []
    for path, name in zip(paths, _names(paths), strict=True):
        loaded = load(path, labels=network_labels(labels))
        if isinstance(loaded.denoiser, LinearDenoiser):
            raise UserError(f"{path}: expected a network, found a linear surrogate, which has its own levels alone")
        count, name_of_all = loaded.parameters, digest(loaded)
        if isinstance(loaded.denoiser, PreconditionedDenoiser):
            loaded.denoiser.backbone = nn.Identity()  # the weights may be large
        subjects.append(
            Subject(
                name,
                path,
                loaded.kind,
                tuple(loaded.shape),
                loaded.kimg,
                count,
                loaded.notes,
                loaded.denoiser,
                name_of_all,
                loaded.trained_on,
            )
        )
    for subject in subjects[1:]:
        if subject.shape != subjects[0].shape:
            raise UserError(
                f"expected checkpoints of images of one shape, found {sides(subjects[0].shape)} in "
                f"{subjects[0].path} and {sides(subject.shape)} in {subject.path}"
            )
    return subjects


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of folders: stems, with as much of what they lie in as tells them apart."""
    whole = [path.expanduser().resolve() for path in paths]
    for parts in range(1, max((len(path.parts) for path in whole), default=1)):
        names = ["_".join((*path.parent.parts[len(path.parts) - parts :], _stem(path))) for path in whole]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"expected different checkpoints, got one of {', '.join(map(str, paths))} twice")


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def common_range(subjects: Sequence[Subject]) -> tuple[float, float]:
    """The noise levels that all can denoise.

    Raises:
        UserError: If there are none.
    """
    low = max(subject.denoiser.sigma_range[0] for subject in subjects)
    high = min(subject.denoiser.sigma_range[1] for subject in subjects)
    if not low < high:
        ranges = ", ".join(f"{subject.name} ({subject.denoiser.told_range()})" for subject in subjects)
        raise UserError(f"expected checkpoints with noise levels in common, found {ranges}")
    return low, high


def grid(subjects: Sequence[Subject], steps: int) -> list[float]:
    """EDM's grid of noise levels within what all can denoise, at the levels that they know if these are the same."""
    low, high = common_range(subjects)
    sigmas = karras_sigmas(steps, max(SIGMA_MIN, low), min(SIGMA_MAX, high))
    known = [[subject.denoiser.effective_sigma(sigma) for sigma in sigmas] for subject in subjects]
    same = all(math.isclose(a, b, rel_tol=1e-9) for row in known for a, b in zip(row, known[0], strict=True))
    return known[0] if same and len(set(known[0])) == steps else sigmas


def check_levels(subjects: Sequence[Subject], sigmas: Sequence[float]) -> None:
    """Raise `UserError` for noise levels that a checkpoint cannot denoise."""
    for subject in subjects:
        low, high = subject.denoiser.sigma_range
        for sigma in sigmas:
            try:
                subject.denoiser.check_sigma(sigma)
            except ValueError:
                raise UserError(
                    f"probes.sigmas: expected noise levels from {low:.4g} to {high:.4g}, those of {subject.name}, got "
                    f"{sigma:g}"
                ) from None


def digest(loaded: Loaded) -> str:
    """A hash of the weights of a denoiser, and of what else it is made of."""
    constants = loaded.denoiser.sigma_range, getattr(loaded.denoiser, "sigma_data", None)
    hashed = hashlib.sha256(repr((loaded.kind, loaded.identity, constants)).encode())
    parts = [*loaded.denoiser.named_parameters(), *loaded.denoiser.named_buffers()]
    for name, value in sorted(parts, key=lambda part: part[0]):
        hashed.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        hashed.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()
