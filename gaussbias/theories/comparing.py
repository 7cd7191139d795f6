"""Measures theories on held-out images, beside D_G and D_M."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gaussbias.config import Config, DataConfig
from gaussbias.config.theories import family, theory_name
from gaussbias.denoisers import Denoiser
from gaussbias.denoisers.theories import ALWAYS, bootstraps
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.known import KnownErrors
from gaussbias.modules import ImageDataModule, build_data
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.numerics.precision import full_precision
from gaussbias.probes import ProbeBank, References, evaluate
from gaussbias.probes.bank import SAMPLES, DrawValues, SampleValues
from gaussbias.probes.references import GAUSSIAN, SHOWN
from gaussbias.probes.shelf import clear
from gaussbias.system.bars import Advance
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import duration
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.others import FAMILY, make_theory, sides
from gaussbias.training.run import quieten

STEPS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
"""The h of D_h that stand for all of the family."""
CLUSTERS, WINDOWS, WIDTHS = (2, 5, 10, 20, 50), (3, 5, 7), (0.1, 0.3)
"""Of mixtures, of windows, and of what inputs are smoothed by, where none are asked for."""
WORK, SECONDS = 2e11, 5e-9
"""Products of draws, noise levels, images and their numbers above which local machines wait to be asked, and what one
takes."""
CUBES = 3e11
"""Components times the cube of the numbers of an image, up to which mixtures take minutes."""


@dataclass(frozen=True)
class Compared:
    """What was found.

    Attributes:
        images: The images, in words.
        sigmas: Noise levels.
        families: By name the family of each theory, and its number or name there; D_G and D_M are families alone.
        errors: Held-out error of each (S,), by name.
        best: The theory of each family whose error is least, in the mean of `error / error of D_G` over noise levels.
        samples: Pictures of samples of these from the same latents (n, C, H, W), by name, uint8.
        notes: What was left out, and why.
    """

    images: str
    sigmas: list[float]
    families: dict[str, tuple[str, str]]
    errors: dict[str, Estimate]
    best: list[str]
    samples: dict[str, Tensor]
    notes: list[str]


def compare(config: Config, out: Path, advance: Advance, tell: Callable[[str], None]) -> Compared:
    """Measure the theories of `probes.theories`, or several of each family.

    What is made of a theory before a command is interrupted is kept in `out`, and found again.

    Args:
        config: Images (`data`) and draws (`probes`).
        out: Where values are kept meanwhile.
        advance: Told how far it is.
        tell: Called with what is to be known, a line each.

    Raises:
        UserError: If there is no such theory, or it does not go with the images.
    """
    quieten()
    device = find_device(find_accelerator(config))
    probes = replace(config.probes, pools=["heldout"], samples=SHOWN)
    config = replace(config, data=replace(config.data, labels=False), probes=probes)
    data = build_data(config)
    bank, count = data.bank, len(data.images)
    mirrored = ", with their mirrored copies" if data.flip else ""
    images = (
        f"{count:,} training images of {sides(bank.shape)}{mirrored}, and {len(data.heldout):,} held-out ones; "
        f"{bank.blocks * bank.block:,} draws"
    )
    tell(images)
    notes: list[str] = []
    specs = config.probes.theories
    if not specs:
        specs, notes = _defaults(bank, count * (2 if data.flip else 1))
    for note in notes:
        tell(note)
    moments = estimate(data.images, data.flip, device)
    others, families = _make(specs, config.data, data, moments)
    shelf = RunFolder(out).theories
    references = References(bank, data.images, moments, True, device, data.heldout, others, shelf)
    references.to(device)
    errors = _errors(references, device, advance)
    sigmas = bank.sigmas
    best = _best(errors, families)
    samples = {name: references.display(value).cpu() for name, value in _samples(references, best, device).items()}
    clear(shelf)
    return Compared(images, sigmas, families, errors, best, samples, notes)


def _defaults(bank: ProbeBank, count: int) -> tuple[list[str], list[str]]:
    """Theories that go with the images, and why others do not."""
    draws, size = bank.blocks * bank.block, max(bank.shape[1:])
    windows = [window for window in WINDOWS if window < 2 * size - 1]
    work = draws * len(bank.sigmas) * count * math.prod(bank.shape)
    numbers = math.prod(bank.shape)
    affordable = [clusters for clusters in CLUSTERS if clusters * numbers**3 <= CUBES]
    specs = [FAMILY, *(f"mixture:{clusters}" for clusters in affordable if 2 * clusters <= count)]
    specs += [f"wiener:{window}" for window in windows] + [f"smoothed:{width:g}" for width in WIDTHS]
    notes = []
    if len(affordable) < len(CLUSTERS):
        left = ", ".join(str(clusters) for clusters in CLUSTERS if clusters not in affordable)
        notes.append(f"mixtures of {left} are left out: each component has a matrix of {numbers:,} x {numbers:,}")
    if work > WORK:
        told = f"local machines are left out: each takes about {duration(SECONDS * work)} on a CPU"
        notes.append(f"{told}; --theories local:3 with another --out asks for one, and fewer probes.draws take less")
        windows = []
    return specs + [f"local:{window}" for window in windows], notes


def _make(
    specs: Sequence[str], config: DataConfig, data: ImageDataModule, moments: Eigenmoments
) -> tuple[dict[str, Denoiser], dict[str, tuple[str, str]]]:
    """The theories by name, and the family of each, with its number or the name that it is given."""
    others: dict[str, Denoiser] = {}
    families = {name: (name, "") for name in ALWAYS}
    for spec in specs:
        if spec == FAMILY:
            made = bootstraps(data.images, moments, STEPS, data.flip)
            others |= {theory_name(f"{FAMILY}:{h:g}"): one for h, one in zip(STEPS, made, strict=True)}
            families |= {theory_name(f"{FAMILY}:{h:g}"): (FAMILY, f"{h:g}") for h in STEPS}
            continue
        name, numbered = theory_name(spec), family(spec)
        others[name] = make_theory(spec, config, data.bank, data.images, moments)
        given = spec.rpartition("=")[0]
        families[name] = (numbered[0], given or f"{numbered[1]:g}") if numbered else (name, "")
    return others, families


def _errors(references: References, device: torch.device, advance: Advance) -> dict[str, Estimate]:
    """The held-out error of each, over d, less the noise that D_G's own foretells."""
    bank, names = references.bank, list(references)
    metric = KnownErrors(bank.blocks, references.expected_mse("heldout"), names)
    total, done = bank.blocks * len(names), 0
    for number in bank.numbers("heldout"):
        with torch.no_grad(), full_precision(device):
            batch = evaluate(references.gaussian, bank.batch("heldout", number).to(device))
            assert isinstance(batch, DrawValues)
            errors = {}
            for name in names:
                errors[name] = references.errors(name, batch)
                done += 1
                advance("theories", done, total)
            metric.update(errors, errors[GAUSSIAN], number)
    metric.compute()
    return {name: metric.estimates[name] for name in names}


def _best(errors: Mapping[str, Estimate], families: Mapping[str, tuple[str, str]]) -> list[str]:
    """The best theory of each family, by the mean of its error over D_G's."""
    ratio = {name: float((error.value / errors[GAUSSIAN].value).mean()) for name, error in errors.items()}
    groups: dict[str, list[str]] = {}
    for name, (group, _) in families.items():
        groups.setdefault(group, []).append(name)
    return [min(members, key=lambda name: ratio[name]) for members in groups.values()]


def _samples(references: References, names: Sequence[str], device: torch.device) -> dict[str, Tensor]:
    """Samples from the same latents."""
    with torch.no_grad(), full_precision(device):
        batch = evaluate(references.gaussian, references.bank.batch(SAMPLES, 0).to(device))
        assert isinstance(batch, SampleValues)
        return {name: references.shown(name, batch)[0].cpu() for name in names}
