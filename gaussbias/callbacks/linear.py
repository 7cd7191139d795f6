"""The linear surrogate: how its fit goes, level by level."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from tqdm import tqdm

from gaussbias import catalogue
from gaussbias.callbacks.base import log_row
from gaussbias.catalogue import SE
from gaussbias.modules import LinearModule
from gaussbias.system.terminal import say, with_error
from gaussbias.tables.columns import line

FITS = {
    "draws": catalogue.FIT_DRAWS,
    "error": catalogue.FIT_ERROR,
    "weight_error": catalogue.FIT_WEIGHT_ERROR,
    "heldout_error": catalogue.FIT_HELDOUT_ERROR,
    "nonlinear_share": catalogue.FIT_NONLINEAR,
    "weight_nmse": catalogue.FIT_WEIGHT_NMSE,
    "weight_nmse_floor": catalogue.FIT_FLOOR,
}
"""The entries of what is known of a fit."""
TITLES = ("sigma", "draws", "error of W", "error of D", "held-out", "nonlinear", "W_L to W_G", "(W)")
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
            say(f"{legend}\n{line(TITLES, WIDTHS)}", tqdm.write)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the level that this batch ended, if it did."""
        assert isinstance(pl_module, LinearModule)
        for fit in pl_module.fits[self._shown :]:
            row = {
                FITS[key.removesuffix(SE)].at(fit["sigma"]) + (SE if key.endswith(SE) else ""): value
                for key, value in fit.items()
                if key != "sigma" and value == value
            }
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
    return line(cells, WIDTHS)
