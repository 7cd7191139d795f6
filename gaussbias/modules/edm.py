"""Training a network as a denoiser."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from gaussbias.data.images import to_unit
from gaussbias.denoisers import EDMDenoiser
from gaussbias.modules.evaluate import evaluate
from gaussbias.noise import training_sigmas
from gaussbias.seeding import derive, generator


class EDMModule(pl.LightningModule):
    """EDM's training of a denoiser (Karras et al. 2022, Section 5, arXiv 2206.00364).

    The loss is `weight(sigma) ||D(x0 + sigma eps, sigma) - x0||^2 / d`, with ln sigma ~ N(P_mean, P_std^2).
    Noise levels and noise of the whole global batch are functions of (seed, step), and each rank takes its
    rows: the number of ranks does not change a run. Dropout masks are functions of (seed, step, rank).

    Args:
        backbone: The network, called with (B, C, H, W) and c_noise (B,).
        sigma_data: Standard deviation of the data.
        batch_size: Images in one step, over all devices.
        lr: Adam's learning rate.
        lr_rampup_kimg: The learning rate grows linearly to `lr` over so many thousand images.
        P_mean: Mean of ln sigma.
        P_std: Standard deviation of ln sigma.
        seed: Of noise and dropout.
        compile: Compile the network's forward pass.
        config: Stored in checkpoints (plain dicts, lists and scalars), for rebuilding the network.
    """

    def __init__(
        self,
        backbone: nn.Module,
        sigma_data: float = 0.5,
        batch_size: int = 128,
        lr: float = 1e-3,
        lr_rampup_kimg: float = 0.0,
        P_mean: float = -1.2,
        P_std: float = 1.2,
        seed: int = 0,
        compile: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.denoiser = EDMDenoiser(backbone, sigma_data)
        self.batch_size, self.lr, self.lr_rampup_kimg = batch_size, lr, lr_rampup_kimg
        self.P_mean, self.P_std, self.seed = P_mean, P_std, seed
        if compile:
            backbone.compile()
        self.save_hyperparameters({"config": config or {}}, logger=False)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        result: Tensor = self.denoiser(x, sigma)
        return result

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss on a batch of `images` (b, C, H, W), this rank's rows of the global batch of `step`."""
        x0 = to_unit(batch["images"])
        step = int(batch["step"])
        rows = slice(self.global_rank * len(x0), (self.global_rank + 1) * len(x0))
        random = generator(self.seed, "noise", step, device=self.device)
        normal = torch.randn(self.batch_size, generator=random, device=self.device)[rows]
        eps = torch.randn(self.batch_size, *x0.shape[1:], generator=random, device=self.device)[rows]
        sigma = training_sigmas(normal, self.P_mean, self.P_std)
        torch.manual_seed(derive(self.seed, "dropout", step, self.global_rank))
        noisy = x0 + sigma[:, None, None, None] * eps
        error = (self.denoiser(noisy, sigma) - x0).square().flatten(1).mean(1)
        loss: Tensor = (self.denoiser.loss_weight(sigma) * error).mean()
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Evaluate the denoiser on a batch of the probe bank."""
        return evaluate(self.denoiser, batch)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm; Lightning's own way refuses fused optimizers under mixed precision, for the sake of fp16."""
        if gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, fused, with the learning rate's ramp-up; the first step has the first share of it, not 0."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)

        def factor(step: int) -> float:
            if self.lr_rampup_kimg == 0:
                return 1.0
            return min((step + 1) * self.batch_size / (1000 * self.lr_rampup_kimg), 1.0)

        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }
