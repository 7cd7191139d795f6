"""The error ladder, while a network trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from gaussbias import figures
from gaussbias.callbacks.base import PoolCallback, by_level
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.ladder import Ladder

ELSEWHERE = {
    "weight_nmse": "linear/weight_nmse",
    "mse": "denoising/mse",
    "empirical_mse": "denoising/empirical_mse",
}
"""Rungs that do not belong to the group `ladder`."""


class LadderCallback(PoolCallback):
    """Logs the denoiser's distance to D_G in its nonlinear and affine part, and errors (`gaussbias.metrics.ladder`).

    Each key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`; D_L is
    the affine map closest to D on the pool, of weights W_L. Parts are unbiased, and small ones may come out below 0.
    `ladder/r2` is left out where that variance is not clear of its error, `ladder/position` where D_G and D_M are
    alike (`L_G - L_M` at most 5 % of L_G); the mean over the band is then over the other levels.

    | key | meaning | pools |
    |---|---|---|
    | `ladder/total` | `E||D - D_G||^2 / d` | all |
    | `ladder/affine` | `E||D_L - D_G||^2 / d` | not `trajectory` |
    | `ladder/nonlinear` | `E||D - D_L||^2 / d`; both parts add up to `ladder/total` | not `trajectory` |
    | `ladder/weight_gap` | `||W_L - W_G||_F^2` | not `trajectory` |
    | `linear/weight_nmse` | the same over `||W_G||_F^2` | not `trajectory` |
    | `ladder/r2` | share of the variance of D that D_L explains: 1 for an affine map | not `trajectory` |
    | `ladder/position` | `(L_G - L) / (L_G - L_M)` of denoising errors: 0 at D_G, 1 at D_M | `train` |
    | `denoising/mse` | L, `E||D - x0||^2 / d` | of images |
    | `denoising/gaussian_mse` | L_G, that of D_G, in closed form | of images |
    | `denoising/empirical_mse` | L_M, that of D_M | of images |

    L and L_M are means over draws less the noise that D_G's error on the same draws foretells. At each measurement
    `figures/ladder_kimg.png` shows both parts over time; it goes to W&B as `ladder/parts`.

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run.
        weights: `ema` or `raw`.
        leads: Whether it draws the picture, which has one kind of weights; of several one leads.
    """

    references = ("empirical_mse",)

    def __init__(self, baselines: Baselines, weights: str = "ema", leads: bool = True) -> None:
        super().__init__(baselines, weights)
        self.leads = leads
        self.expected = {pool: baselines.expected_mse(pool) for pool in self.bank.pools}
        self.metrics = {pool: self._metric(pool) for pool in self.bank.names}

    def _metric(self, pool: str) -> Ladder:
        return Ladder(
            self.bank.blocks,
            self.bank.sigmas,
            self.baselines.moments,
            pool=self.baselines.pools.get(pool),
            expected=self.expected.get(pool),
            position=pool == "train",
        )

    def logged(self, quantity: str) -> str:
        """Of the group `ladder`, but for some."""
        return ELSEWHERE.get(quantity, f"ladder/{quantity}")

    def measure_draws(self, metric: Ladder, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        gaussian, empirical = self.baselines.at(outputs)
        clean: dict[str, Tensor] = {}
        if outputs["pool"] in self.bank.pools:
            clean = {"x0": outputs["x0"], "empirical": empirical}
        pairs = self.baselines.pairs(outputs)
        metric.update(outputs["output"], gaussian, outputs["block"], pairs, **clean)

    def summarize(self) -> None:
        """Average over all ranks' blocks, and set D_G's expected errors."""
        super().summarize()
        for pool, errors in self.expected.items():
            exact = Estimate(errors, errors[None], torch.ones_like(errors, dtype=torch.bool))
            found = by_level("denoising/gaussian_mse", pool, exact, self.bank.sigmas)
            self.values |= {key: float(value.value) for key, value in found.items()}

    def publish(self, trainer: pl.Trainer) -> None:
        """Draw the parts over time, and give the picture to the loggers."""
        if not self.leads:
            return
        root = Path(trainer.default_root_dir)
        picture = figures.draw_ladder_times([root], root / "figures" / "ladder_kimg.png")
        for logger in trainer.loggers:
            if hasattr(logger, "log_picture"):
                logger.log_picture("ladder/parts", picture)
