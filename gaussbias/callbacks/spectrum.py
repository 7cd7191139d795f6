"""The spectrum of the data, as a `GaussianModule` sees it."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from gaussbias.callbacks.base import ProbeCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics.ladder import gaussian_mse
from gaussbias.modules import GaussianModule
from gaussbias.moments import Projection
from gaussbias.noise import sigma_name

PLACES = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))


class SpectrumCallback(ProbeCallback):
    """Logs the moments of a `GaussianModule`, of the images that it has seen so far.

    | key | meaning |
    |---|---|
    | `spectrum/count` | images, mirrored copies included |
    | `spectrum/effective_rank` | `(sum lam)^2 / sum lam^2` of the eigenvalues lam of the covariance |
    | `spectrum/variance` | `sum lam / d` |
    | `spectrum/eigenvalue_<i>` | the i-th largest one, i = 1, 2, 5, 10, 20, 50, ... |
    | `spectrum/gaussian_mse/sigma_<s>` | `L_G / d`, `L_G = sum lam sigma^2 / (lam + sigma^2)`: D_G's error on them |

    Args:
        baselines: Of the run.
    """

    def __init__(self, baselines: Baselines) -> None:
        super().__init__(baselines)
        self._module: GaussianModule | None = None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the module down, whose moments are estimated now."""
        super().on_validation_start(trainer, pl_module)
        assert isinstance(pl_module, GaussianModule)
        self._module = pl_module

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Nothing: the moments are known."""

    def summarize(self) -> None:
        """Set the values."""
        assert self._module is not None
        moments = self._module.moments
        assert moments is not None
        eigenvalues = moments.eigenvalues
        self.values = {
            "spectrum/count": float(moments.count),
            "spectrum/effective_rank": moments.effective_rank,
            "spectrum/variance": float(eigenvalues.sum()) / len(moments.mean),
        }
        self.values |= {
            f"spectrum/eigenvalue_{place}": float(eigenvalues[place - 1])
            for place in PLACES
            if place <= len(eigenvalues)
        }
        errors = gaussian_mse(moments, Projection.itself(moments), self.bank.sigmas)
        self.values |= {
            f"spectrum/gaussian_mse/sigma_{sigma_name(sigma)}": error
            for sigma, error in zip(self.bank.sigmas, errors.tolist(), strict=True)
        }
