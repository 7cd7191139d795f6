"""A step of training."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from benchmarks.harness import Case, Timed, clock
from benchmarks.networks import describe, images_for, make, model_for
from gaussbias.callbacks import EMA, Stopping
from gaussbias.callbacks.training import TrainingLog
from gaussbias.config import ModelConfig
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EDMDenoiser
from gaussbias.modules import EDMModule, ImageDataModule
from gaussbias.modules.datamodule import TrainingBatches
from gaussbias.noise import training_sigmas
from gaussbias.numerics.seeding import generator
from gaussbias.probes import ProbeBank
from gaussbias.system.signals import StopRequest

BATCH = {"cpu": 128, "cuda": 256}
WARM, STEPS = 5, 25
"""Steps that are not timed, and all of them."""
LR, HALFLIFE_KIMG = 1e-3, 500.0
JUDGED = 512


def cases(images: Tensor) -> Iterator[Case]:
    """Against a plain loop in float32 as EDM has it: Adam and the average weight by weight, gradients cleaned."""
    small, device = images_for(images), images.device
    model, batch = model_for(device), BATCH[device.type]
    size, flops = describe(model, small)
    reference: list[float] = []

    def usual() -> Timed:
        denoiser = make(model, small)
        seconds = plain_loop(denoiser, small, batch)
        return Timed(judge(denoiser, small), seconds)

    def ours() -> Timed:
        module, seconds = fit(model, small, batch)
        return Timed(judge(module.denoiser, small), seconds)

    def error(loss: float) -> float:
        """The relative difference of the loss after the same images to that of the plain loop."""
        reference.append(loss)
        return abs(loss / reference[0] - 1)

    steps = STEPS - WARM
    yield Case(f"training, {steps} steps", f"{size}, B={batch}", usual, ours, error, 1, flops * batch * steps)


def plain_loop(
    denoiser: EDMDenoiser, images: Tensor, batch: int, amp: torch.dtype | None = None, steps: int = STEPS
) -> float:
    """Train, and return the seconds that all but the first steps took; `amp` runs the network in half precision."""
    average = copy.deepcopy(denoiser)
    adam = torch.optim.Adam(denoiser.parameters(), lr=LR, foreach=False)
    device, start = images.device, 0.0
    for number, part in zip(range(steps), TrainingBatches(images, batch), strict=False):
        if number == WARM:
            start = clock(device)
        x0 = to_unit(part["images"])
        random = generator(0, "noise", number, device=device)
        sigma = training_sigmas(torch.randn(batch, generator=random, device=device), -1.2, 1.2)
        eps = torch.randn(x0.shape, generator=random, device=device)
        adam.zero_grad()
        with torch.autocast(device.type, amp, enabled=amp is not None):
            denoised = denoiser(x0 + sigma[:, None, None, None] * eps, sigma)
        error = (denoised - x0).square().flatten(1).mean(1)
        (denoiser.loss_weight(sigma) * error).mean().backward()
        for group in adam.param_groups:
            group["lr"] = LR
        for parameter in denoiser.parameters():
            if parameter.grad is not None:
                torch.nan_to_num(parameter.grad, nan=0, posinf=1e5, neginf=-1e5, out=parameter.grad)
        adam.step()
        kept = 0.5 ** (batch / max(min(1000 * HALFLIFE_KIMG, 0.05 * number * batch), 1e-8))
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), denoiser.parameters(), strict=True):
                mean.copy_(parameter.lerp(mean, kept))
    return clock(device) - start


class _Clock(pl.Callback):
    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, index: int) -> None:
        if trainer.global_step == WARM:
            self.start = clock(module.device)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.seconds = clock(module.device) - self.start


def fit(
    model: ModelConfig,
    images: Tensor,
    batch: int,
    precision: Any = "32-true",
    compile: bool = False,
    prepare: Callable[[nn.Module], object] = lambda network: None,
    steps: int = STEPS,
    microbatch: int | None = None,
    callbacks: Sequence[pl.Callback] = (),
) -> tuple[EDMModule, float]:
    """Train as `gaussbias.fit` does, without measurements; the module with the weights trained, and the seconds.

    `prepare` may change the network, such as the layout of its weights; `callbacks` come last.
    """
    warnings.filterwarnings("ignore", module="lightning.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    bank = ProbeBank({"train": images[:2]}, 2, [1.0], block=2)
    data = ImageDataModule(images, images[:2], bank, batch)
    network = make(model, images).backbone
    prepare(network)
    module = EDMModule(network, batch_size=batch, lr=LR, microbatch=microbatch, compile=compile)
    timer = _Clock()
    trained: dict[str, Tensor] = {}

    class Keep(pl.Callback):
        def on_train_end(
            self, trainer: pl.Trainer, kept: pl.LightningModule
        ) -> None:  # before the average replaces them
            trained.update({name: value.clone() for name, value in module.state_dict().items()})

    gpu = images.device.type == "cuda"
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=1,
        precision=precision,
        benchmark=gpu,
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[timer, Keep(), Stopping(StopRequest()), EMA(batch, HALFLIFE_KIMG), TrainingLog({steps}), *callbacks],
    )
    trainer.fit(module, data)
    module.load_state_dict(trained)
    return module.to(images.device), timer.seconds


@torch.no_grad()
def judge(denoiser: EDMDenoiser, images: Tensor) -> float:
    """The loss on the same noisy images, without mixed precision."""
    random = torch.Generator().manual_seed(9)
    x0 = to_unit(images[:JUDGED])
    sigma = training_sigmas(torch.randn(len(x0), generator=random).to(x0), -1.2, 1.2)
    eps = torch.randn(x0.shape, generator=random).to(x0)
    error = (denoiser(x0 + sigma[:, None, None, None] * eps, sigma) - x0).square().flatten(1).mean(1)
    return float((denoiser.loss_weight(sigma) * error).double().mean())
