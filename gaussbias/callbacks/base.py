"""What the measuring callbacks share: names of logged values, and one logged row for all of them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from safetensors import SafetensorError
from torch.func import functional_call
from torchmetrics import Metric

from gaussbias import history
from gaussbias.callbacks.baselines import Baselines
from gaussbias.callbacks.ema import EMA
from gaussbias.data import ProbeBank
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import BlockMetric, Estimate
from gaussbias.modules.evaluate import evaluate
from gaussbias.noise import in_band, sigma_name
from gaussbias.numerics.blocks import BLOCKS
from gaussbias.numerics.precision import full_precision
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason

log = logging.getLogger("gaussbias")
Kind = TypeVar("Kind", bound=pl.Callback)


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
        why = " ".join(str(error).split()) or type(error).__name__
        log.warning("%s could not be written (%s); the run goes on", what, why)


def kimg_name(kimg: float) -> str:
    """A time as the name of a file; a step is a whole number of images."""
    return f"{kimg:.3f}".rstrip("0").rstrip(".")


def log_row(trainer: pl.Trainer, values: dict[str, float]) -> None:
    """Give one row, with `kimg` and `epoch`, to every logger."""
    row = progress(trainer) | values
    for logger in trainer.loggers:
        logger.log_metrics(row, step=trainer.global_step)


def by_level(name: str, pool: str, estimate: Estimate, sigmas: Sequence[float]) -> dict[str, Estimate]:
    """An estimate (S,) by its logged names: the mean over the intermediate band, then each level.

    Levels where the value has no meaning are left out, of the mean too.
    """
    defined = [i for i in range(len(sigmas)) if estimate.defined[i]]
    band = [i for i in in_band(sigmas) if i in defined]
    keys = {f"{name}/{pool}/sigma_{sigma_name(sigmas[i])}": estimate.at(i) for i in defined}
    return ({f"{name}/{pool}": estimate.mean(band)} if band else {}) | keys


class RowCallback(pl.Callback):
    """Adds `values` to the row of a measurement, set by the end of the validation epoch on every rank."""

    values: dict[str, float]


class ProbeCallback(RowCallback, ABC):
    """Measures on the batches of a probe bank, and sets `values` at the end of validation.

    The first such callback of a trainer logs one row for all of them, with

    | key | meaning |
    |---|---|
    | `probes/seconds` | cost of this measurement |
    | `probes/share` | cost of all measurements, as a share of the time since training began |
    | `probes/blocks` | blocks of draws: intervals of denoisers' values are Student's t with one fewer |

    and writes what the blocks contribute to each value to `probes/<kimg>.safetensors` in the trainer's
    `default_root_dir` (`gaussbias.history.compare` reads it).

    Args:
        baselines: With the probe bank whose loaders are the validation loaders.
        weights: `ema`, the weights that validation runs with, or `raw`: those that are trained, where the trainer has
            an `EMA` that swaps its average in; their values have the prefix `raw/`.
    """

    def __init__(self, baselines: Baselines, weights: str = "ema") -> None:
        if weights not in ("ema", "raw"):
            raise ValueError(f"Expected `weights` to be ema or raw but got {weights}.")
        self.baselines, self.bank, self.weights = baselines, baselines.bank, weights
        self.values: dict[str, float] = {}
        self.estimates: dict[str, tuple[str, Estimate]] = {}
        self._begun = self._started = time.perf_counter()
        self._spent = 0.0
        self._unwritten: dict[Path, history.Measurement] = {}

    def put(self, pool: str, estimates: Mapping[str, Estimate], reference: bool = False) -> None:
        """Set measured values, each with its standard error if it has blocks enough.

        Args:
            pool: What they were measured on.
            estimates: Of a number each, by logged name.
            reference: Whether they belong to a baseline, whatever the weights.
        """
        prefix = history.RAW if self.weights == "raw" and not reference else ""
        for name, estimate in estimates.items():
            self.estimates[prefix + name] = (pool, estimate)
            self.values[prefix + name] = float(estimate.value)
            if len(estimate.pseudo) >= BLOCKS:
                self.values[f"{prefix}{name}_se"] = float(estimate.se)

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
        if trainer.sanity_checking:
            return
        denoiser: Any = pl_module.denoiser
        if self.weights == "raw":
            if "raw" not in outputs:  # for all callbacks that measure these weights
                raw = raw_denoiser(trainer, pl_module)
                outputs["raw"] = raw, evaluate(raw, batch)
            denoiser, outputs = outputs["raw"]
        with full_precision(root_device(trainer)):
            self.measure(denoiser, outputs)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Move to the device; raise `UserError` for one of Apple's, which have no float64."""
        device = root_device(trainer)
        if device.type == "mps":
            raise UserError(
                "accelerator: expected cpu or cuda for measurements in float64, got mps, which has none; give the "
                "Trainer accelerator='cpu'"
            )
        self.place(device)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last measurement."""
        self.clear()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Average over all ranks.

        Raises:
            UserError: If blocks are missing: the values would be those of other draws than the bank's.
        """
        if trainer.sanity_checking:
            return
        self.summarize()
        missing = max((m.missing for m in self.every_metric() if isinstance(m, BlockMetric)), default=0)
        if missing and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            raise UserError(
                f"expected every block of the probe bank in a measurement, but {missing} did not come; give the "
                "Trainer an ImageDataModule, or the bank's loaders() as they are, and limit_val_batches=1.0"
            )

    def clear(self) -> None:
        """Forget the last measurement."""
        self.values, self.estimates = {}, {}
        self.reset()

    def every_metric(self) -> Iterable[Metric]:
        """The metrics that are moved and emptied together."""
        return ()

    def place(self, device: torch.device) -> None:
        """Move the baselines and the metrics to the device."""
        self.baselines.to(device)
        for metric in self.every_metric():
            metric.to(device)

    def reset(self) -> None:
        """Empty the metrics."""
        for metric in self.every_metric():
            metric.reset()

    @abstractmethod
    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Update the metrics with one batch; no collectives here, since ranks may have unequal numbers of them.

        Args:
            denoiser: The module's, for points beyond those of the batch.
            outputs: What its `validation_step` returned (`gaussbias.modules.evaluate`).
        """

    @abstractmethod
    def summarize(self) -> None:
        """Set `values` from the metrics of all ranks (`put`); every rank comes here."""

    def publish(self, trainer: pl.Trainer) -> None:
        """Write what is not a number; on the first rank, before the row is logged."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what all probe callbacks measured, as one row."""
        if trainer.sanity_checking or not self._leads(trainer):
            return
        everyone = probe_callbacks(trainer)
        values = {
            key: value for callback in callbacks_of(trainer, RowCallback) for key, value in callback.values.items()
        }
        if trainer.is_global_zero:
            estimates = {key: value for callback in everyone for key, value in callback.estimates.items()}
            self._keep(trainer, estimates, values)
            for callback in everyone:
                safely("pictures", callback.publish, trainer)
        now = time.perf_counter()
        self._spent += now - self._started
        values["probes/seconds"] = now - self._started
        values["probes/share"] = self._spent / (now - self._begun)
        values["probes/blocks"] = float(self.bank.blocks)
        log_row(trainer, values)

    def _keep(
        self, trainer: pl.Trainer, estimates: Mapping[str, tuple[str, Estimate]], values: Mapping[str, float]
    ) -> None:
        """Write what the blocks contribute, or keep it until it can be written."""
        kimg = progress(trainer)["kimg"]
        file = Path(trainer.default_root_dir) / "probes" / f"{kimg_name(kimg)}.safetensors"
        self._unwritten[file] = measurement(kimg, self.bank, estimates, values)
        failure = self.rewrite()
        if failure is not None:
            log.warning("%s could not be written (%s); it is kept until there is room", file, failure)

    def rewrite(self) -> str | None:
        """Write what is not written; why that failed, if it did."""
        try:
            for file in list(self._unwritten):
                history.write_measurement(file, self._unwritten[file])
                del self._unwritten[file]
        except (OSError, SafetensorError) as error:
            return reason(error)
        return None


class PoolCallback(ProbeCallback):
    """Measures each pool of draws with a metric of its own (`metrics`), at each noise level."""

    metrics: Mapping[str, BlockMetric]
    references: Collection[str] = ()
    """Quantities that belong to a baseline, whatever the weights."""

    def every_metric(self) -> Iterable[Metric]:
        """Those of all pools."""
        return self.metrics.values()

    def logged(self, quantity: str) -> str:
        """The logged name of a quantity of the metrics."""
        return quantity

    def measure(self, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block of draws."""
        if outputs["pool"] in self.metrics:
            self.measure_draws(self.metrics[outputs["pool"]], denoiser, outputs)

    @abstractmethod
    def measure_draws(self, metric: Any, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Update the metric of the pool with one block."""

    def summarize(self) -> None:
        """Average over all ranks' blocks."""
        for pool, metric in self.metrics.items():
            self.summarize_pool(pool, metric)

    def summarize_pool(self, pool: str, metric: BlockMetric) -> None:
        """Set the values of one pool."""
        metric.compute()
        for name, estimate in metric.estimates.items():
            found = by_level(self.logged(name), pool, estimate, self.bank.sigmas)
            self.put(pool, found, reference=name in self.references)


def measurement(
    kimg: float, bank: ProbeBank, estimates: Mapping[str, tuple[str, Estimate]], values: Mapping[str, float]
) -> history.Measurement:
    """What was measured on the draws of a bank, as `gaussbias.history` has it.

    Args:
        kimg: When.
        bank: The draws.
        estimates: The pool and the estimate of each measured value, by logged name.
        values: All values by logged name.
    """
    return history.Measurement(
        kimg,
        bank.sigmas,
        {name: value for name, value in values.items() if not name.endswith("_se")},
        {name: pool for name, (pool, _) in estimates.items()},
        bank.hashes,
        {name: estimate.pseudo.cpu().numpy() for name, (_, estimate) in estimates.items()},
    )


def raw_denoiser(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Evaluate:
    """The module's denoiser with the weights that are trained, while the average stands in for them.

    Raises:
        ValueError: Without an average.
    """
    averages = callbacks_of(trainer, EMA)
    if not averages:
        raise ValueError("Expected an `EMA` callback, for raw weights beside averaged ones, but got none.")
    weights = averages[0].stored("denoiser.")
    module: Any = pl_module.denoiser
    return lambda x, sigma: functional_call(module, weights, (x, sigma))


def probe_callbacks(trainer: pl.Trainer) -> list[ProbeCallback]:
    """All measuring callbacks of a trainer."""
    return callbacks_of(trainer, ProbeCallback)  # type: ignore[type-abstract]


def callbacks_of(trainer: pl.Trainer, kind: type[Kind]) -> list[Kind]:
    """The callbacks of a trainer that are of a kind."""
    return [c for c in trainer.callbacks if isinstance(c, kind)]  # type: ignore[attr-defined]


def root_device(trainer: pl.Trainer) -> torch.device:
    """The device that this rank computes on."""
    return trainer.strategy.root_device
