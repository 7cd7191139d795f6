"""Agreement with the Gaussian denoiser and with the memoriser, while a network trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchmetrics import Metric

from gaussbias.callbacks.base import ProbeCallback, by_level
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics.agreement import Agreement


class GaussianCallback(ProbeCallback):
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

    def every_metric(self) -> Iterable[Metric]:
        """Those of all pools."""
        return self.metrics.values()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        pool = outputs["pool"]
        if pool in self.metrics:
            self.metrics[pool].update(outputs["output"], *self.baselines.at(outputs), outputs["block"])

    def summarize(self) -> None:
        """Average over all ranks' blocks."""
        for pool, metric in self.metrics.items():
            metric.compute()
            for name, estimate in metric.estimates.items():
                self.put(pool, by_level(name, pool, estimate, self.bank.sigmas))
