"""`python -m gaussbias.figures RUN...`: curves, samples and error ladders of runs, from what their folders hold.

Nothing is computed again: curves come from `history.csv`, ladders from `probes/*.safetensors` and samples from
`samples/*.safetensors`, so figures can be drawn while a run goes on, and without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussbias import config as configuration
from gaussbias.figures.curves import draw_curves
from gaussbias.figures.guidance import draw_guidance, draw_guidance_now, has_guidance
from gaussbias.figures.ladder import draw_ladder, draw_ladder_times, has_ladder
from gaussbias.figures.samples import draw_samples, newest_samples
from gaussbias.figures.spectrum import draw_spectrum, has_spectrum
from gaussbias.figures.surrogate import draw_surrogate, has_surrogate
from gaussbias.figures.theories import draw_theories, draw_theories_now, draw_theory_times, has_theories
from gaussbias.history import measurement_files
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder

__all__ = [
    "draw",
    "draw_curves",
    "draw_guidance",
    "draw_guidance_now",
    "draw_ladder",
    "draw_ladder_times",
    "draw_samples",
    "draw_spectrum",
    "draw_surrogate",
    "draw_theories",
    "draw_theories_now",
    "draw_theory_times",
    "newest_samples",
]


def draw(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Draw `curves.png` of runs into a folder, and `samples.png`, `ladder.png` and `ladder_kimg.png` if they have any.

    `theories.png` and `theories_kimg.png` show the theories that runs are compared with, `guidance.png` the term of
    guidance. For one run also what its
    module has: `surrogate.png` and `surrogate_paths.png`, or `spectrum.png`.

    Raises:
        UserError: If a run folder holds no history.
    """
    pictures = []
    if any(_kind(run) != "linear" for run in runs):  # a surrogate is measured once
        pictures.append(draw_curves(runs, folder / "curves.png"))
    samples = [file for run in runs if (file := newest_samples(run)) is not None]
    if samples:
        pictures.append(draw_samples(samples, folder / "samples.png"))
    measured = {run: files[-1] for run in runs if (files := measurement_files(run)) and has_ladder(files[-1])}
    if measured:
        pictures.append(draw_ladder(list(measured.values()), folder / "ladder.png"))
        pictures.append(draw_ladder_times(list(measured), folder / "ladder_kimg.png"))
    compared = {run: file for run, file in measured.items() if has_theories(file)}
    if compared:
        pictures.append(draw_theories(list(compared.values()), folder / "theories.png"))
        pictures.append(draw_theory_times(list(compared), folder / "theories_kimg.png"))
    guided = [file for file in measured.values() if has_guidance(file)]
    if guided:
        pictures.append(draw_guidance(guided, folder / "guidance.png"))
    if len(runs) == 1 and has_surrogate(runs[0]):
        pictures += draw_surrogate(runs[0], folder)
    if len(runs) == 1 and has_spectrum(runs[0]):
        pictures.append(draw_spectrum(runs[0], folder / "spectrum.png"))
    return pictures


def _kind(run: Path) -> str:
    """Which module a run is of; a network, if it does not say."""
    try:
        return configuration.load(RunFolder(run).config).module.kind
    except UserError:
        return "edm"
