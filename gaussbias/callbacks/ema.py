"""The average of the weights over training."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Exponential moving average of the weights, with EDM's half-life in images (arXiv 2206.00364, Appendix F.2).

    After a step of B images the average keeps the share `2^(-B / halflife)`, with a half-life of at most
    `rampup_ratio` times the images seen before it. Validation and export use the average; checkpoints hold both.

    Args:
        batch_size: B, over all devices.
        halflife_kimg: Half-life in thousands of images.
        rampup_ratio: Share of the images seen so far; `None` is no limit.
    """

    def __init__(self, batch_size: int, halflife_kimg: float = 500.0, rampup_ratio: float | None = 0.05) -> None:
        super().__init__(use_buffers=False)
        self.batch_size, self.halflife_kimg, self.rampup_ratio = batch_size, halflife_kimg, rampup_ratio
        self._in_place = False

    def decay(self, step: int) -> float:
        """The share of the average that the update after zero-based `step` keeps."""
        halflife = 1000 * self.halflife_kimg
        if self.rampup_ratio is not None:
            halflife = min(halflife, self.rampup_ratio * step * self.batch_size)
        return 0.5 ** (self.batch_size / halflife) if halflife else 0.0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Make the average on the device, and count its updates on the CPU: none waits for a GPU's count."""
        self._device = trainer.strategy.root_device  # Lightning moves the module there only after this
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged = self._average_model.n_averaged.cpu()

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Never as `AveragedModel` does it, which copies its count to the device and waits."""
        return False

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update after every step, all weights at once; the first time the average becomes what the weights are."""
        if trainer.global_step <= self._latest_update_step:
            return
        average = self._average_model
        assert average is not None
        kept = self.decay(trainer.global_step - 1) if self._latest_update_step else 0.0
        torch._foreach_lerp_(list(average.module.parameters()), list(pl_module.parameters()), 1 - kept)
        average.n_averaged += 1
        self._latest_update_step = trainer.global_step

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the average in place."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._in_place = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the weights that are trained back."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._in_place = False

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Put the weights that are trained back, before a checkpoint is made of them."""
        if self._in_place:
            self.on_validation_epoch_end(trainer, pl_module)

    def stored(self, prefix: str) -> dict[str, Tensor]:
        """The parameters beside the module's, by their names after `prefix`: the raw ones while it is validated."""
        if self._average_model is None:
            raise ValueError("Expected a trainer that fits, for raw weights beside averaged ones, but got another.")
        parameters = self._average_model.module.named_parameters()
        return {name.removeprefix(prefix): value for name, value in parameters if name.startswith(prefix)}
