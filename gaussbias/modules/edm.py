"""Training a network as a denoiser."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from gaussbias.data.images import to_unit
from gaussbias.denoisers import EDMDenoiser
from gaussbias.noise import training_sigmas
from gaussbias.numerics.seeding import Normals, derive, generator
from gaussbias.probes import Batch, evaluate

log = logging.getLogger("gaussbias")


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
        grad_clip: Largest norm of the gradient.
        microbatch: Images that a device evaluates at once; gradients of the parts of its share are added up, for the
            same step as that of the whole (masks of dropout apart). `None`: all of its share. Measurements and samples
            take no more at once.
        compile: Compile the loss, network included; where that fails, training goes on without. Measurements run the
            network as it is, in float32.
        classes: Number of classes that the network is told; batches then have `labels`.
        label_dropout: Share of images whose class it is not told, for guidance.
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
        grad_clip: float | None = None,
        microbatch: int | None = None,
        compile: bool = False,
        classes: int = 0,
        label_dropout: float = 0.0,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.denoiser = EDMDenoiser(backbone, sigma_data, classes)
        self.denoiser.at_once = microbatch  # what fits the memory in training has to fit it in measurements
        self.batch_size, self.lr, self.lr_rampup_kimg = batch_size, lr, lr_rampup_kimg
        self.P_mean, self.P_std, self.seed = P_mean, P_std, seed
        self.grad_clip, self.microbatch, self.label_dropout = grad_clip, microbatch, label_dropout
        self._loss_of = _compiled(self._loss) if compile else self._loss
        self.save_hyperparameters({"config": config or {}}, logger=False)

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,)."""
        result: Tensor = self.denoiser(x, sigma)
        return result

    def on_train_start(self) -> None:
        """Give a run that goes on the learning rate of this configuration, not that of its checkpoint."""
        for scheduler in (config.scheduler for config in self.trainer.lr_scheduler_configs):
            assert isinstance(scheduler, LambdaLR)
            scheduler.base_lrs = [self.lr]
            for group in scheduler.optimizer.param_groups:
                group["initial_lr"], group["lr"] = self.lr, self.lr * self._warmth(scheduler.last_epoch)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Tensor]:
        """A step on a batch of `images` (b, C, H, W), this rank's rows of the global batch of `step`."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        parts = self._parts(len(batch["images"]))
        for i, loss in enumerate(self.losses(batch), 1):
            with nullcontext() if i == parts else self._without_sync():
                self.manual_backward(loss)
            total += loss.detach()
        if self.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.grad_clip)
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()
        return {"loss": total}

    def losses(self, batch: dict[str, Any]) -> Iterator[Tensor]:
        """The loss on this rank's rows, as what each part of them adds to it."""
        x0 = to_unit(batch["images"])
        step, count = int(batch["step"]), len(x0)
        rows = slice(self.global_rank * count, (self.global_rank + 1) * count)
        random = Normals(self.seed, "noise", step, device=self.device)
        normal = random(self.batch_size, rows=rows)
        eps = random(self.batch_size, *x0.shape[1:], rows=rows)
        sigma = training_sigmas(normal, self.P_mean, self.P_std)
        torch.manual_seed(derive(self.seed, "dropout", step, self.global_rank))
        noisy = x0 + sigma[:, None, None, None] * eps
        given = (x0, noisy, sigma, *((self._told(batch["labels"], step),) if self.denoiser.classes else ()))
        parts = (values.tensor_split(self._parts(count)) for values in given)
        for part in zip(*parts, strict=True):
            try:
                loss = self._loss_of(*part)
            except TorchDynamoException as error:
                log.warning("train.compile: the network trains without: %s", str(error).strip().partition("\n")[0])
                loss = self._loss(*part)
                self._loss_of = self._loss
            yield loss / count

    def _told(self, labels: Tensor, step: int) -> Tensor:
        """The classes of this rank's rows that the network is told, -1 where it is told none."""
        if not self.label_dropout:
            return labels
        rows = slice(self.global_rank * len(labels), (self.global_rank + 1) * len(labels))
        drawn = torch.rand(self.batch_size, generator=generator("labels dropped", self.seed, step))[rows]
        return labels.masked_fill((drawn < self.label_dropout).to(labels.device, non_blocking=True), -1)

    def _loss(self, clean: Tensor, x: Tensor, sigma: Tensor, labels: Tensor | None = None) -> Tensor:
        told = () if labels is None else (labels,)
        error = (self.denoiser(x, sigma, *told) - clean).square().flatten(1).mean(1)
        loss: Tensor = (self.denoiser.loss_weight(sigma) * error).sum()
        return loss

    def _parts(self, count: int) -> int:
        return 1 if self.microbatch is None else -(-count // self.microbatch)

    def _without_sync(self) -> AbstractContextManager[None]:
        """Gradients of all but the last part stay on their rank, which adds them up."""
        model = self.trainer.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Evaluate the denoiser on a batch of the probe bank."""
        return evaluate(self.denoiser, batch)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, fused, with the learning rate's ramp-up; the first step has the first share of it, not 0."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._warmth)}}

    def _warmth(self, step: int) -> float:
        """The share of the learning rate that a zero-based step takes."""
        if self.lr_rampup_kimg == 0:
            return 1.0
        return min((step + 1) * self.batch_size / (1000 * self.lr_rampup_kimg), 1.0)


def _compiled(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss whose backward graph is compiled with the forward one: else that fails, if it does, in a backward pass."""
    compiled = torch.compile(loss)

    def call(*given: Tensor) -> Tensor:
        with functorch.patch(force_non_lazy_backward_lowering=True):
            return compiled(*given)

    return call
