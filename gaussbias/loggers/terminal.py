"""One line in the terminal for each measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from gaussbias import catalogue
from gaussbias.history import plain
from gaussbias.loggers.base import LocalLogger
from gaussbias.system.terminal import say
from gaussbias.tables.columns import line

HEADLINES = {
    catalogue.GL_SCORE.name: catalogue.GL_SCORE,
    catalogue.MEMORIZED_FRACTION.name: catalogue.MEMORIZED_FRACTION,
    catalogue.SAMPLE_COSINE.name: catalogue.SAMPLE_COSINE,
    **{
        entry.on("heldout"): entry
        for entry in (catalogue.GAUSSIAN_RMSE, catalogue.EMPIRICAL_RMSE, catalogue.AFFINE_COSINE, catalogue.MSE)
    },
}
LEGEND = (
    "GL score and memorised share of samples; their cosine with the Gaussian's samples; on held-out images the rmse\n"
    "to the Gaussian denoiser D_G and to the memoriser D_M, the linearity (a cosine) and the mean squared error"
)


class TerminalLogger(LocalLogger):
    """One line in the terminal for each measurement: the headline values, and the training loss before it."""

    def __init__(self) -> None:
        super().__init__()
        self._loss = "-"
        self._begun = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Print a measurement; before the first one, what its columns are."""
        self._loss = f"{metrics[catalogue.LOSS.name]:.3f}" if catalogue.LOSS.name in metrics else self._loss
        metrics = plain(metrics)
        if not HEADLINES.keys() & metrics.keys():
            return
        if not self._begun:
            say(LEGEND, tqdm.write)  # above a progress bar, if there is one
            say(_columns("kimg", "loss", [entry.head for entry in HEADLINES.values()]), tqdm.write)
            self._begun = True
        values = [f"{metrics[key]:.3f}" if key in metrics else "-" for key in HEADLINES]
        say(_columns(f"{metrics['kimg']:.2f}", self._loss, values), tqdm.write)


def _columns(kimg: str, loss: str, values: Sequence[str]) -> str:
    heads = [entry.head for entry in HEADLINES.values()]
    return line([kimg, loss, *values], [10, 8, *(len(head) + 2 if len(head) > 6 else 8 for head in heads)])
