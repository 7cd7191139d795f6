"""Agreement with the Gaussian denoiser and with the memoriser, while a network trains."""

from __future__ import annotations

from typing import Any

from gaussbias.callbacks.base import PoolCallback
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics.agreement import Agreement


class GaussianCallback(PoolCallback):
    """Logs the distances of the denoiser to D_G and to D_M (`gaussbias.metrics.agreement`).

    Each key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`.
    All are 0 or more.

    | key | meaning |
    |---|---|
    | `gaussian/rmse` | mean of `sqrt(||D - D_G||^2 / d)`: small for a denoiser that generalises |
    | `gaussian/nmse` | mean of `||D - D_G|| / ||D||` |
    | `empirical/rmse` | mean of `sqrt(||D - D_M||^2 / d)`: small for one that memorises |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run.
        weights: `ema` or `raw`.
    """

    def __init__(self, baselines: Baselines, weights: str = "ema") -> None:
        super().__init__(baselines, weights)
        self.metrics = {pool: Agreement(self.bank.blocks, len(self.bank.sigmas)) for pool in self.bank.names}

    def measure_draws(self, metric: Agreement, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        metric.update(outputs["output"], *self.baselines.at(outputs), outputs["block"])
