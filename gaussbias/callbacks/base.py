"""What the measuring callbacks share: names of logged values, and one logged row for all of them."""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import save_file
from torch import Tensor

from gaussbias.data import ProbeBank
from gaussbias.denoisers import GaussianDenoiser, full_precision
from gaussbias.noise import in_band, sigma_name
from gaussbias.sampling import sample_gaussian

log = logging.getLogger("gaussbias")


def progress(trainer: pl.Trainer) -> dict[str, float]:
    """How far training is: `kimg`, thousands of images seen, and `epoch`, passes over the training images."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    images = trainer.global_step * data.batch_size
    return {"kimg": images / 1000, "epoch": images / len(data.images)}


def safely(what: str, write: Callable[..., object], *arguments: Any) -> None:
    """Write what a run can do without; what goes wrong is said, and never ends the run."""
    try:
        write(*arguments)
    except Exception as error:  # the disk is full, matplotlib finds no fonts, W&B is away, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("%s could not be written (%s); the run goes on", what, reason)


def kimg_name(kimg: float) -> str:
    """A time as the name of a file; a step is a whole number of images."""
    return f"{kimg:.3f}".rstrip("0").rstrip(".")


def log_row(trainer: pl.Trainer, values: dict[str, float]) -> None:
    """Give one row, with `kimg` and `epoch`, to every logger."""
    row = progress(trainer) | values
    for logger in trainer.loggers:
        logger.log_metrics(row, step=trainer.global_step)


def by_level(name: str, pool: str, values: Tensor, sigmas: Sequence[float]) -> dict[str, float]:
    """Values (S,) by their logged names: the mean over the intermediate band, then each level."""
    values = values.reshape(-1)  # torchmetrics squeezes a single level away
    keys = {f"{name}/{pool}/sigma_{sigma_name(s)}": float(v) for s, v in zip(sigmas, values, strict=True)}
    band = in_band(sigmas)
    return ({f"{name}/{pool}": float(values[band].mean())} if band else {}) | keys


class ProbeCallback(pl.Callback, ABC):
    """Measures on the batches of a probe bank, and sets `values` at the end of validation.

    The first such callback of a trainer logs one row for all of them, with

    | key | meaning |
    |---|---|
    | `probes/seconds` | cost of this measurement |
    | `probes/share` | cost of all measurements, as a share of the time since training began |

    and writes the blocks that the values were averaged from to `probes/<kimg>.safetensors` in the trainer's
    `default_root_dir`.

    Args:
        bank: The probe bank whose loaders are the validation loaders.
    """

    def __init__(self, bank: ProbeBank) -> None:
        self.bank = bank
        self.values: dict[str, float] = {}
        self.blocks: dict[str, tuple[Sequence[str], Tensor]] = {}
        self._begun = self._started = time.perf_counter()
        self._spent = 0.0

    def _leads(self, trainer: pl.Trainer) -> bool:
        return probe_callbacks(trainer)[0] is self

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._begun = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of a measurement."""
        self._started = time.perf_counter()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Measure one batch; Lightning's sanity check, which sees only some of them, is no measurement."""
        if not trainer.sanity_checking:
            with full_precision(root_device(trainer)):
                self.measure(pl_module.denoiser, outputs)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last measurement."""
        self.reset()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Average over all ranks."""
        if not trainer.sanity_checking:
            self.summarize()

    @abstractmethod
    def reset(self) -> None:
        """Forget the last measurement."""

    @abstractmethod
    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Update the metrics with one batch; no collectives here, since ranks may have unequal numbers of them.

        Args:
            denoiser: The module's, for points beyond those of the batch.
            outputs: What its `validation_step` returned (`gaussbias.modules.evaluate`).
        """

    @abstractmethod
    def summarize(self) -> None:
        """Set `values` and `blocks` from the metrics of all ranks; every rank comes here."""

    def publish(self, trainer: pl.Trainer) -> None:
        """Write what is not a number; on the first rank, before the row is logged."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what all probe callbacks measured, as one row."""
        if trainer.sanity_checking or not self._leads(trainer):
            return
        everyone = probe_callbacks(trainer)
        values = {key: value for callback in everyone for key, value in callback.values.items()}
        if trainer.is_global_zero:
            for callback in everyone:
                safely("pictures", callback.publish, trainer)
        now = time.perf_counter()
        self._spent += now - self._started
        values["probes/seconds"] = now - self._started
        values["probes/share"] = self._spent / (now - self._begun)
        if trainer.is_global_zero:
            blocks = {k: v for callback in everyone for k, v in callback.blocks.items()}
            safely("the blocks of a measurement", self._write, trainer, blocks)
        log_row(trainer, values)

    def _write(self, trainer: pl.Trainer, blocks: dict[str, tuple[Sequence[str], Tensor]]) -> None:
        kimg = progress(trainer)["kimg"]
        metadata = {
            "format": "gaussbias.probes/1",
            "kimg": repr(kimg),
            "sigmas": json.dumps(self.bank.sigmas),
            "block": str(self.bank.block),
            "seed": str(self.bank.seed),
            **{f"hash/{pool}": self.bank.hash(pool) for pool in self.bank.pools},
            **{f"quantities/{name}": json.dumps(list(quantities)) for name, (quantities, _) in blocks.items()},
        }
        folder = Path(trainer.default_root_dir) / "probes"
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: rows.cpu().contiguous() for name, (_, rows) in blocks.items()}
        temporary = folder / f"{kimg_name(kimg)}.tmp"
        save_file(tensors, temporary, metadata)
        temporary.replace(folder / f"{kimg_name(kimg)}.safetensors")


def probe_callbacks(trainer: pl.Trainer) -> list[ProbeCallback]:
    """All measuring callbacks of a trainer."""
    return [c for c in trainer.callbacks if isinstance(c, ProbeCallback)]  # type: ignore[attr-defined]


def gaussian_samples(gaussian: GaussianDenoiser, outputs: dict[str, Any]) -> Tensor:
    """D_G's samples from the latents of a batch, with its sampler."""
    return sample_gaussian(gaussian, outputs["latents"], outputs["sigma"].tolist(), outputs["method"])


def root_device(trainer: pl.Trainer) -> torch.device:
    """The device that this rank computes on."""
    return trainer.strategy.root_device
