"""Agreement with the Gaussian denoiser and with the memoriser, while a network trains."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from gaussbias.callbacks.base import ProbeCallback, by_level, root_device
from gaussbias.data import ProbeBank
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics.agreement import Agreement, gaussian_mse
from gaussbias.moments import Eigenmoments, Projection, project

CACHE_BYTES = 2**29
"""D_G and D_M do not change while a network trains: their values on the probes are kept up to this size."""


class GaussianCallback(ProbeCallback):
    """Logs the distances of the denoiser to D_G, to D_M and to the clean images (`gaussbias.metrics.agreement`).

    Each key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`.
    All are 0 or more.

    | key | meaning |
    |---|---|
    | `gaussian/rmse` | mean of `sqrt(||D - D_G||^2 / d)`: small for a denoiser that generalises |
    | `gaussian/nmse` | mean of `||D - D_G|| / ||D||` |
    | `empirical/rmse` | mean of `sqrt(||D - D_M||^2 / d)`: small for one that memorises |
    | `denoising/mse` | mean of `||D - x0||^2 / d` |
    | `denoising/gaussian_mse` | the same for D_G, in closed form |
    | `denoising/empirical_mse` | the same for D_M |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        bank: The probe bank; its pool `train` holds the images that the moments were taken of.
        gaussian: D_G of the training data.
        moments: Of the training data.
        empirical: D_M of the training data.
    """

    def __init__(
        self,
        bank: ProbeBank,
        gaussian: GaussianDenoiser,
        moments: Eigenmoments,
        empirical: EmpiricalDenoiser,
    ) -> None:
        super().__init__(bank)
        self.gaussian, self.empirical = gaussian, empirical
        self.metrics = {pool: Agreement(bank.blocks, len(bank.sigmas)) for pool in bank.pools}
        self.expected: dict[str, float] = {}
        for pool, pool_images in bank.pools.items():
            seen = _itself(moments) if pool == "train" else project(moments, pool_images, bank.flip)
            errors = gaussian_mse(moments, seen, bank.sigmas)
            self.expected |= by_level("denoising/gaussian_mse", pool, errors, bank.sigmas)
        self._cache: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move the two denoisers and the metrics to the device."""
        device = root_device(trainer)
        for module in (self.gaussian, self.empirical, *self.metrics.values()):
            module.to(device)

    def reset(self) -> None:
        """Forget the last measurement."""
        for metric in self.metrics.values():
            metric.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        pool, block = outputs["pool"], outputs["block"]
        if pool in self.metrics:
            gaussian, empirical = self._baselines(pool, block, outputs)
            self.metrics[pool].update(outputs["output"], outputs["x0"], gaussian, empirical, block)

    def summarize(self) -> None:
        """Average over all ranks' blocks."""
        self.values = dict(self.expected)
        for pool, metric in self.metrics.items():
            for name, value in metric.compute().items():
                self.values |= by_level(name, pool, value, self.bank.sigmas)
            assert metric.gathered is not None
            self.blocks[f"agreement/{pool}"] = (metric.quantities, metric.gathered)

    def _baselines(self, pool: str, block: int, outputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        known = self._cache.get((pool, block))
        if known is not None:
            return known
        x0, eps, sigmas = outputs["x0"], outputs["eps"], outputs["sigma"].tolist()
        baselines = (
            self.gaussian.forward_grid(x0, eps, sigmas),
            self.empirical.forward_grid(x0, eps, sigmas),
        )
        if 2 * baselines[0].nbytes * self.bank.blocks * len(self.bank.pools) <= CACHE_BYTES:
            self._cache[pool, block] = baselines
        return baselines


def _itself(moments: Eigenmoments) -> Projection:
    """The data set along its own eigenvectors."""
    return Projection(torch.zeros_like(moments.eigenvalues), moments.eigenvalues, 0.0, 0.0)
