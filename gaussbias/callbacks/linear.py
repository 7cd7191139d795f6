"""The linear surrogate: how its fit goes, its distance to its teacher, and as a reference for other denoisers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from tqdm import tqdm

from gaussbias.callbacks.base import PoolCallback, log_row, root_device
from gaussbias.callbacks.baselines import Baselines
from gaussbias.denoisers import Denoiser, LinearDenoiser, at_levels
from gaussbias.metrics.agreement import Distances
from gaussbias.modules import LinearModule
from gaussbias.noise import sigma_name
from gaussbias.numerics.precision import full_precision
from gaussbias.surrogate import write_description
from gaussbias.system.terminal import say, with_error

TITLES = ("sigma", "draws", "error of W", "error of D", "held-out", "nonlinear", "W_L to W_G", "(W)")
SHOWN = 2
"""Latents from which the sampling paths of a surrogate, its teacher and the baselines are drawn."""
WIDTHS = (8, 11, 13, 14, 10, 11, 13, 9)
LEGEND = (
    "predicted errors of the fit (W, D): ||W - W_L||^2 / ||W||^2 and E||D - D_L||^2 / d; held-out mean squared error\n"
    "of fits to half the draws; share of the teacher's variance that no affine map explains; the unbiased\n"
    "||W_L - W_G||^2 / ||W_G||^2, and the error of W in the same units"
)
GRADIENT = (
    "held-out mean squared error: the loss of new batches in the last quarter; ||W - W_G||^2 / ||W_G||^2 of this W"
)


class SurrogateLog(pl.Callback):
    """Logs the fit of each level of a `LinearModule` when it is done, and prints a line.

    | key | meaning |
    |---|---|
    | `surrogate/draws/sigma_<s>` | evaluations of the teacher |
    | `surrogate/error/sigma_<s>` | predicted `E||D_fit - D_L||^2 / d`; with its standard error |
    | `surrogate/weight_error/sigma_<s>` | predicted `||W_fit - W_L||_F^2 / ||W_fit||_F^2`; with its standard error |
    | `surrogate/heldout_error/sigma_<s>` | `E||D - D_fit||^2 / d` of fits to half the draws, on the other half |
    | `surrogate/nonlinear_share/sigma_<s>` | `E||D - D_L||^2` as a share of the variance of D |
    | `surrogate/weight_nmse/sigma_<s>` | `||W_L - W_G||_F^2 / ||W_G||_F^2`, unbiased; with its standard error |
    | `surrogate/weight_nmse_floor/sigma_<s>` | the predicted error of W_fit in the same units |

    D is the teacher, D_L the affine map closest to it on noisy images of `linear.pool`. Predictions are unbiased, and
    small ones may come out below 0. With `linear.method=gradient` there are none, the held-out error is the loss in the
    last quarter of a level, of batches that are new when they are seen, and `weight_nmse` is that of W_fit.
    """

    def __init__(self) -> None:
        self._shown = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A run that goes on has shown what it has."""
        assert isinstance(pl_module, LinearModule)
        self._shown = len(pl_module.fits)
        if trainer.is_global_zero and self._shown < len(pl_module.levels):
            legend = LEGEND if pl_module.method == "exact" else GRADIENT
            say(f"{legend}\n{_columns(TITLES)}", tqdm.write)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the level that this batch ended, if it did."""
        assert isinstance(pl_module, LinearModule)
        for fit in pl_module.fits[self._shown :]:
            name = sigma_name(fit["sigma"])
            row = {}
            for key, value in fit.items():
                if key != "sigma" and value == value:
                    place = f"{key.removesuffix('_se')}/sigma_{name}" + ("_se" if key.endswith("_se") else "")
                    row[f"surrogate/{place}"] = value
            log_row(trainer, row)
            if trainer.is_global_zero:
                say(_line(fit), tqdm.write)
        self._shown = len(pl_module.fits)


def _line(fit: dict[str, float]) -> str:
    def both(name: str) -> str:
        return with_error(fit[name], fit.get(f"{name}_se", 0.0)) if name in fit else "-"

    def one(name: str, form: str = ".3g") -> str:
        return format(fit[name], form) if name in fit else "-"

    cells = (
        f"{fit['sigma']:.3g}",
        f"{fit['draws']:,.0f}",
        both("weight_error"),
        both("error"),
        *(one(name) for name in ("heldout_error", "nonlinear_share")),
        both("weight_nmse"),
        one("weight_nmse_floor", ".2g"),
    )
    return _columns(cells)


def _columns(cells: Sequence[str]) -> str:
    return "".join(f"{f' {cell}':>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


class TeacherCallback(PoolCallback):
    """Logs how far the teacher of a surrogate is from it and from the baselines (Fig. 2, left, of arXiv 2410.24060).

    Each key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`; T is
    the teacher.

    | key | meaning |
    |---|---|
    | `teacher/linear_rmse` | mean of `sqrt(||T - D_L||^2 / d)` |
    | `teacher/gaussian_rmse` | the same to D_G |
    | `teacher/empirical_rmse` | the same to D_M |

    At each measurement `surrogate.safetensors`, in the trainer's `default_root_dir`, gets what the figures of the
    module's `denoiser`, a `LinearDenoiser`, show.

    Args:
        baselines: Of the run; the probe bank needs sampling latents.
        teacher: What the module distils.
    """

    def __init__(self, baselines: Baselines, teacher: Denoiser) -> None:
        super().__init__(baselines)
        self.teacher = teacher
        names = ("linear", "gaussian", "empirical")
        self.metrics = {pool: Distances(self.bank.blocks, len(self.bank.sigmas), names) for pool in self.bank.names}

    def logged(self, quantity: str) -> str:
        """In a group of its own."""
        return f"teacher/{quantity}_rmse"

    def measure_draws(self, metric: Distances, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        gaussian, empirical = self.baselines.at(outputs)
        others = {"linear": outputs["output"], "gaussian": gaussian, "empirical": empirical}
        values = at_levels(self.teacher, outputs["x"], outputs["sigma"])
        metric.update(values, others, outputs["block"])

    def publish(self, trainer: pl.Trainer) -> None:
        """Write what the figures of a surrogate show."""
        module: Any = trainer.lightning_module
        others = {
            "network": self.teacher,
            "gaussian": self.baselines.gaussian,
            "empirical": self.baselines.empirical,
        }
        device = root_device(trainer)
        with full_precision(device):
            write_description(
                Path(trainer.default_root_dir) / "surrogate.safetensors",
                module.denoiser,
                others,
                self.baselines.moments,
                self.bank.latents(0)[:SHOWN].to(device),
                self.bank.sampler,
            )


class LinearCallback(PoolCallback):
    """Logs the distance of the denoiser to a linear surrogate that was fitted before (`probes.surrogate`).

    The key has the mean over the intermediate band, `<key>/<pool>`, and every level, `<key>/<pool>/sigma_<s>`.

    | key | meaning |
    |---|---|
    | `linear/rmse` | mean of `sqrt(||D - D_L||^2 / d)`, to the surrogate D_L |

    The module's `validation_step` has to return `gaussbias.modules.evaluate`.

    Args:
        baselines: Of the run; the surrogate has to have the noise levels of its probe bank.
        surrogate: D_L.
        weights: `ema` or `raw`.
    """

    def __init__(self, baselines: Baselines, surrogate: LinearDenoiser, weights: str = "ema") -> None:
        super().__init__(baselines, weights)
        for sigma in self.bank.sigmas:
            surrogate.level(sigma)  # raises ValueError for one that it does not have
        self.surrogate = surrogate
        self.metrics = {
            pool: Distances(self.bank.blocks, len(self.bank.sigmas), ("linear/rmse",)) for pool in self.bank.names
        }

    def measure_draws(self, metric: Distances, denoiser: Any, outputs: dict[str, Any]) -> None:
        """Measure one block."""
        surrogate = self.surrogate.to(outputs["x"].device)
        values = at_levels(surrogate, outputs["x"], outputs["sigma"])
        metric.update(outputs["output"], {"linear/rmse": values}, outputs["block"])
