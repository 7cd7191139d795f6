"""Linearity, while a network trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchmetrics import Metric

from gaussbias.callbacks.base import PoolCallback, by_level
from gaussbias.callbacks.baselines import Baselines
from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.metrics.linearity import Linearity


class LinearityCallback(PoolCallback):
    """Logs how nearly linear the denoiser is (`gaussbias.metrics.linearity`), per pool.

    Each key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`. x1 and
    x2 are two noisy images of one level, a = b = 1/sqrt 2, and the mean is that of the training images.

    | key | meaning | range | linear |
    |---|---|---|---|
    | `linearity/cosine` | cosine of `D(a x1 + b x2)` and `a D(x1) + b D(x2)`, without its sign | 0..1 | 1 |
    | `linearity/cosine_signed` | the same with its sign | -1..1 | 1 |
    | `linearity/nmse` | their distance over the norm of the first | 0.. | 0 |
    | `linearity/affine_cosine` | `cosine_signed` about the mean: perfect for any affine map | -1..1 | 1 |
    | `linearity/affine_nmse` | `nmse` about the mean | 0.. | 0 |
    | `linearity/gaussian_cosine` | `cosine` of D_G | | |
    | `linearity/gaussian_cosine_signed` | `cosine_signed` of D_G | | |
    | `linearity/gaussian_nmse` | `nmse` of D_G | | |

    D_G is affine, so its values are what the plain forms give for a perfectly affine denoiser. An untrained
    network is nearly linear as well: read these beside the loss.

    The module needs a `denoiser`, and a `validation_step` that returns `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run.
        weights: `ema` or `raw`.
    """

    def __init__(self, baselines: Baselines, weights: str = "ema") -> None:
        super().__init__(baselines, weights)
        sizes = self.bank.blocks, len(self.bank.sigmas)
        self.metrics = {pool: Linearity(*sizes, baselines.mean) for pool in self.bank.names}
        self.gaussian = {pool: Linearity(*sizes, baselines.mean) for pool in self.bank.names}
        self.constants: dict[str, dict[str, Estimate]] = {}

    def every_metric(self) -> Iterable[Metric]:
        """Those of all pools, and of D_G."""
        return [*self.metrics.values(), *self.gaussian.values()]

    def logged(self, quantity: str) -> str:
        """In a group of its own."""
        return f"linearity/{quantity}"

    def measure_draws(self, metric: Linearity, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        x, sigmas, block, pool = outputs["x"], outputs["sigma"], outputs["block"], outputs["pool"]
        metric.update(denoiser, x, outputs["output"], sigmas, block)
        if pool not in self.constants:
            gaussian, _ = self.baselines.at(outputs)
            self.gaussian[pool].update(self.baselines.gaussian, x, gaussian, sigmas, block)

    def summarize_pool(self, pool: str, metric: BlockMetric) -> None:
        """Set the values of one pool, and D_G's."""
        super().summarize_pool(pool, metric)
        reference = self.constants[pool] if pool in self.constants else self._reference(pool)
        fixed = pool != "trajectory"  # elsewhere D_G and the draws stay what they are, whatever the weights
        if fixed:
            self.constants[pool] = reference
        for name, estimate in reference.items():
            named = by_level(f"linearity/gaussian_{name}", pool, estimate, self.bank.sigmas)
            self.put(pool, named, reference=fixed)

    def _reference(self, pool: str) -> dict[str, Estimate]:
        self.gaussian[pool].compute()
        estimates = self.gaussian[pool].estimates
        return {name: estimate for name, estimate in estimates.items() if not name.startswith("affine")}
