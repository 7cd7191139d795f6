"""Linearity, while a network trains."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from gaussbias.callbacks.base import ProbeCallback, by_level, root_device
from gaussbias.data import ProbeBank
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.metrics.linearity import Linearity


class LinearityCallback(ProbeCallback):
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
        bank: The probe bank.
        gaussian: D_G of the training data.
    """

    def __init__(self, bank: ProbeBank, gaussian: GaussianDenoiser) -> None:
        super().__init__(bank)
        self.gaussian = gaussian
        mean = gaussian.mean.view(gaussian.shape)
        self.metrics = {pool: Linearity(bank.blocks, len(bank.sigmas), mean) for pool in bank.pools}
        self.constants: dict[str, float] = {}
        self.references = {pool: Linearity(bank.blocks, len(bank.sigmas), mean) for pool in bank.pools}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move the metrics to the device."""
        self.gaussian.to(root_device(trainer))
        for metric in [*self.metrics.values(), *self.references.values()]:
            metric.to(root_device(trainer))

    def reset(self) -> None:
        """Forget the last measurement."""
        for metric in [*self.metrics.values(), *self.references.values()]:
            metric.reset()

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        pool = outputs["pool"]
        if pool not in self.metrics:
            return
        x, sigmas, block = outputs["x"], outputs["sigma"], outputs["block"]
        self.metrics[pool].update(denoiser, x, outputs["output"], sigmas, block)
        if not self.constants:  # D_G and the draws stay what they are
            reference = self.gaussian.forward_grid(outputs["x0"], outputs["eps"], sigmas.tolist())
            self.references[pool].update(self.gaussian, x, reference, sigmas, block)

    def summarize(self) -> None:
        """Average over all ranks' blocks."""
        if not self.constants:
            for pool, reference in self.references.items():
                for name, value in reference.compute().items():
                    if not name.startswith("affine"):
                        self.constants |= by_level(f"linearity/gaussian_{name}", pool, value, self.bank.sigmas)
        self.values = dict(self.constants)
        for pool, metric in self.metrics.items():
            for name, value in metric.compute().items():
                self.values |= by_level(f"linearity/{name}", pool, value, self.bank.sigmas)
            assert metric.gathered is not None
            self.blocks[f"linearity/{pool}"] = (metric.quantities, metric.gathered)
