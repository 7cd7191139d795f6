"""Audits of a denoiser, written into its folder: copies below the surface, and which training images leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gaussbias.config import Config
from gaussbias.data import origins
from gaussbias.denoisers import Evaluate
from gaussbias.figures.audit import draw_cycles, draw_leaks
from gaussbias.history import kimg_name
from gaussbias.probes.audit import Cycles, Leaks, find_leaks, run_cycles
from gaussbias.probes.references import References
from gaussbias.system.bars import Advance
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write_rows
from gaussbias.system.run_folder import RunFolder

FOUND = 0.05
"""False discovery rate at which a training image counts as one that leaks."""


@dataclass(frozen=True)
class Audits:
    """What is asked for.

    Attributes:
        cycles: How often noise is added to samples and they are sampled back; 0 for not.
        sigma: The noise of each cycle, in data units.
        leaks: Whether to list the training images that samples come closest to.
    """

    cycles: int = 0
    sigma: float = 0.5
    leaks: bool = False

    def __bool__(self) -> bool:
        return self.cycles > 0 or self.leaks


@dataclass(frozen=True)
class Audited:
    """What was found.

    Attributes:
        lines: In words.
        files: Tables and pictures.
    """

    lines: list[str]
    files: list[Path]


def audit(
    denoiser: Evaluate,
    references: References,
    config: Config,
    folder: Path,
    kimg: float | None,
    audits: Audits,
    samples: Tensor,
    advance: Advance = lambda name, done, total: None,
) -> Audited:
    """Look at samples as asked: tables go to `measured`, pictures to `figures` of a folder.

    Args:
        denoiser: The denoiser.
        references: With its training and held-out images, and a bank with latents.
        config: With the data set, for the names of images.
        folder: A run folder, or that of a checkpoint.
        kimg: How long the denoiser was trained; `None` if that is not known.
        audits: Which ones.
        samples: Of the denoiser, from the latents of the bank (n, C, H, W), where the denoiser is.
        advance: Told how far it is.

    Raises:
        UserError: If something cannot be written.
    """
    references.to(samples.device)
    name = "unknown" if kimg is None else kimg_name(kimg)
    lines: list[str] = []
    files: list[Path] = []
    try:
        RunFolder(folder).measured.mkdir(parents=True, exist_ok=True)
        if audits.cycles:
            told = partial(advance, "cycles")
            cycles = run_cycles(denoiser, references, samples, audits.cycles, audits.sigma, told)
            lines.append(_told_cycles(cycles))
            files += _write_cycles(cycles, folder, name)
        if audits.leaks:
            leaks = find_leaks(references, samples)
            names = origins(config.data)
            lines += _told_leaks(leaks, names, len(samples))
            files += _write_leaks(leaks, names, folder, name)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}") from None
    return Audited(lines, files)


def _told_cycles(cycles: Cycles) -> str:
    _, first, *_ = cycles.rows()[0]
    last, share, low, high = cycles.rows()[-1]
    return (
        f"memorised: {first:.3f} of {cycles.samples} samples, {share:.3f} (95 %: {low:.3f} to {high:.3f}) after {last} "
        f"cycles of adding noise of {cycles.sigma:g} and sampling back"
    )


def _write_cycles(cycles: Cycles, folder: Path, name: str) -> list[Path]:
    head = ("cycle", "memorized_fraction", "memorized_fraction_low", "memorized_fraction_high")
    table = RunFolder(folder).measured / f"{name}_cycles.csv"
    write_rows(table, head, cycles.rows())
    picture = draw_cycles(cycles.rows(), _arrays(cycles.stages), cycles.sigma, RunFolder(folder).figures / "cycles.png")
    return [table, picture]


def _told_leaks(leaks: Leaks, names: Sequence[str], samples: int) -> list[str]:
    sure = [leak for leak in leaks.found if leak.q <= FOUND]
    if not sure:
        return [f"no training image leaks into {samples} samples beyond what held-out images show"]
    first = ", ".join(f"{names[leak.place]} ({leak.samples} samples, d1/d2 {leak.ratio:.2f})" for leak in sure[:3])
    return [f"{len(sure)} training images leak into {samples} samples, at a false discovery rate of {FOUND:g}: {first}"]


def _write_leaks(leaks: Leaks, names: Sequence[str], folder: Path, name: str) -> list[Path]:
    head = ("image", "place", "samples", "sample", "distance", "ratio", "p", "q")
    rows = ((names[leak.place], *vars(leak).values()) for leak in leaks.found)
    table = RunFolder(folder).measured / f"{name}_leaks.csv"
    write_rows(table, head, rows)
    told = [f"{leak.ratio:.2f}\np = {leak.p:.2g}" for leak in leaks.found[: len(leaks.pictures["samples"])]]
    if not told:
        return [table]
    return [table, draw_leaks(_arrays(leaks.pictures), told, RunFolder(folder).figures / "leaks.png")]


def _arrays(pictures: dict[str, Tensor]) -> dict[str, Any]:
    return {name: part.cpu().numpy() for name, part in pictures.items()}
