"""The spectrum of the data and the error of its Gaussian denoiser, from a run of `module.kind=gaussian`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open

from gaussbias.figures.style import COLOURS, DPI, bare, save
from gaussbias.noise import SIGMA_MAX, SIGMA_MIN
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

LEVELS = (20.0, 5.0, 1.0, 0.25)
"""Noise levels whose shrinkage is shown."""


def has_spectrum(run: Path) -> bool:
    """Whether a run is one of the Gaussian baseline."""
    return RunFolder(run).gaussian.exists()


def draw_spectrum(run: Path, path: Path) -> Path:
    """Draw eigenvalues, shrinkage, and the optimal error of an affine denoiser against the noise level.

    Args:
        run: A folder with `moments.safetensors`.
        path: Where to write the picture.

    Raises:
        UserError: If there are no moments.
    """
    eigenvalues, d = _read(RunFolder(run).moments)
    figure = Figure(figsize=(13, 3.6), layout="constrained", dpi=DPI)
    spectrum, shrinkage, error = figure.subplots(1, 3)
    places = np.arange(1, len(eigenvalues) + 1)
    effective = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    spectrum.loglog(places, np.where(eigenvalues > 0, eigenvalues, np.nan), color=COLOURS[0])
    spectrum.set_title(f"eigenvalues of the covariance (effective rank {effective:.3g})", loc="left", fontsize=10)
    spectrum.set_ylabel("variance (data units squared)", fontsize=9)
    for colour, sigma in zip(COLOURS, LEVELS, strict=False):
        kept = eigenvalues / (eigenvalues + sigma**2)
        shrinkage.semilogx(places, kept, color=colour, label=f"$\\sigma = {sigma:g}$")
    shrinkage.set_title(r"shrinkage $\lambda / (\lambda + \sigma^2)$ of $D_G$", loc="left", fontsize=10)
    shrinkage.legend(frameon=False, fontsize=8)
    for axes in (spectrum, shrinkage):
        axes.set_xlabel("principal component", fontsize=9)
    sigmas = np.geomspace(SIGMA_MIN, SIGMA_MAX, 200)
    losses = [(eigenvalues * s**2 / (eigenvalues + s**2)).sum() / d for s in sigmas]
    error.loglog(sigmas, losses, color=COLOURS[0], label="$L_G / d$")
    error.axhline(eigenvalues.sum() / d, color="0.5", linestyle=":", label="variance of the data")
    error.set_title("error of $D_G$ on its own data", loc="left", fontsize=10)
    error.set_xlabel("noise level $\\sigma$ (data units)", fontsize=9)
    error.legend(frameon=False, fontsize=8)
    for axes in (spectrum, shrinkage, error):
        bare(axes)
    return save(figure, path)


def _read(file: Path) -> tuple[np.ndarray, int]:
    """Eigenvalues, and the dimension."""
    try:
        with safe_open(file, "numpy") as opened:
            d: int = opened.get_slice("mean").get_shape()[0]
            return opened.get_tensor("eigenvalues"), d
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"expected moments at {file}: {reason(error)}") from None
