"""The spectrum of the data, as a `GaussianModule` sees it."""

from __future__ import annotations

from collections.abc import Sequence

import lightning.pytorch as pl

from gaussbias import catalogue
from gaussbias.callbacks.base import RowCallback
from gaussbias.metrics.errors import gaussian_mse
from gaussbias.modules import GaussianModule
from gaussbias.moments import Projection


class SpectrumCallback(RowCallback):
    """Adds the moments of a `GaussianModule`, of the images that it has seen so far, to the row of a measurement.

    Args:
        sigmas: Noise levels at which the Gaussian's error is logged.
    """

    entries = (
        catalogue.SPECTRUM_COUNT,
        catalogue.EFFECTIVE_RANK,
        catalogue.VARIANCE,
        catalogue.EIGENVALUE,
        catalogue.SPECTRUM_MSE,
    )

    def __init__(self, sigmas: Sequence[float]) -> None:
        self.sigmas = list(sigmas)
        self.values: dict[str, float] = {}

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the values."""
        assert isinstance(pl_module, GaussianModule)
        moments = pl_module.moments
        assert moments is not None
        eigenvalues = moments.eigenvalues
        self.values = {
            catalogue.SPECTRUM_COUNT.name: float(moments.count),
            catalogue.EFFECTIVE_RANK.name: moments.effective_rank,
            catalogue.VARIANCE.name: float(eigenvalues.sum()) / len(moments.mean),
        }
        self.values |= {
            catalogue.numbered(catalogue.EIGENVALUE, place): float(eigenvalues[place - 1])
            for place in catalogue.component_places(len(eigenvalues))
        }
        errors = gaussian_mse(moments, Projection.itself(moments), self.sigmas)
        self.values |= {
            catalogue.SPECTRUM_MSE.at(sigma): error for sigma, error in zip(self.sigmas, errors.tolist(), strict=True)
        }
