"""Where logged rows go: a local CSV file, the terminal, and Weights & Biases. All get every value."""

from __future__ import annotations

import csv
import logging
import os
import secrets
from argparse import Namespace
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from tqdm import tqdm

from gaussbias.config import Config, to_container
from gaussbias.files import complete
from gaussbias.history import plain, read_rows
from gaussbias.ranks import is_first
from gaussbias.terminal import say

log = logging.getLogger("gaussbias")

CONNECT_SECONDS = 30
KEYS_FIRST = ("kimg", "epoch")


class _LocalLogger(Logger):
    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is in config.yaml."""


class HistoryLogger(_LocalLogger):
    """Rows in `history.csv`, one column per key, empty where a row has no value; written at once.

    A new key rewrites the file with a column more. A run that continues drops the rows after its checkpoint:
    they are computed again.

    Args:
        path: The file.
        from_kimg: Where the run continues; `None` starts anew.
    """

    def __init__(self, path: Path, from_kimg: float | None = None) -> None:
        super().__init__()
        self.path, self.from_kimg = path, from_kimg
        self._keys: list[str] = []

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        if not self._keys:
            self._open()
        new = [key for key in metrics if key not in self._keys]
        if new:
            _, rows = read_rows(self.path)
            self._keys = [*self._keys, *new]
            self._write([*rows, dict(metrics)])
            return
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self._keys, lineterminator="\n").writerow(dict(metrics))

    def _open(self) -> None:
        self._keys = list(KEYS_FIRST)
        kept: list[dict[str, str]] = []
        if self.from_kimg is not None and self.path.exists():
            keys, rows = read_rows(self.path)
            self._keys = keys or self._keys
            kept = [row for row in rows if float(row["kimg"]) <= self.from_kimg]
        self._write(kept)

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with complete(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._keys, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


HEADLINES = {
    "generalization/gl_score": "GL",
    "generalization/memorized_fraction": "memorised",
    "samples/gaussian_cosine": "cosine",
    "gaussian/rmse/heldout": "to D_G",
    "empirical/rmse/heldout": "to D_M",
    "linearity/affine_cosine/heldout": "linearity",
    "denoising/mse/heldout": "error",
}
LEGEND = (
    "GL score and memorised share of samples; their cosine with the Gaussian's samples; on held-out images the rmse\n"
    "to the Gaussian denoiser D_G and to the memoriser D_M, the linearity (a cosine) and the mean squared error"
)


class TerminalLogger(_LocalLogger):
    """One line in the terminal for each measurement: the headline values, and the training loss before it."""

    def __init__(self) -> None:
        super().__init__()
        self._loss = "-"
        self._begun = False

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Print a measurement; before the first one, what its columns are."""
        self._loss = f"{metrics['train/loss']:.3f}" if "train/loss" in metrics else self._loss
        metrics = plain(metrics)
        if not HEADLINES.keys() & metrics.keys():
            return
        if not self._begun:
            say(LEGEND, tqdm.write)  # above a progress bar, if there is one
            say(_columns("kimg", "loss", list(HEADLINES.values())), tqdm.write)
            self._begun = True
        values = [f"{metrics[key]:.3f}" if key in metrics else "-" for key in HEADLINES]
        say(_columns(f"{metrics['kimg']:.2f}", self._loss, values), tqdm.write)


def _columns(kimg: str, loss: str, values: Sequence[str]) -> str:
    return f"{kimg:>10}{loss:>8}" + "".join(
        f"{value:>{len(title) + 2 if len(title) > 6 else 8}}"
        for title, value in zip(HEADLINES.values(), values, strict=True)
    )


class PictureLogger(WandbLogger):
    """W&B, with pictures."""

    def log_picture(self, key: str, path: Path) -> None:
        """Put a picture into the row that is logged next."""
        import wandb

        self.experiment.log({key: wandb.Image(str(path))}, commit=False)


def build(
    config: Config, folder: Path, from_kimg: float | None = None, hashes: Mapping[str, str] | None = None
) -> list[Logger]:
    """The loggers of a run in `folder`, which continues after `from_kimg` or begins; hashes are those of its draws."""
    loggers: list[Logger] = [HistoryLogger(folder / "history.csv", from_kimg), TerminalLogger()]
    if config.run.wandb != "disabled" and is_first():
        loggers.append(_wandb(config, folder, hashes or {}))
    return loggers


def finish(loggers: Sequence[Logger], failed: bool) -> None:
    """Close the W&B run, so that the next one in this process is another."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            try:
                logger.experiment.finish(exit_code=int(failed))
            except Exception as error:  # whatever it is, the rest of the run is to be saved
                log.warning("W&B could not finish (%s)", " ".join(str(error).split()))


def _wandb(config: Config, folder: Path, hashes: Mapping[str, str]) -> PictureLogger:
    """A W&B run with kimg as its x axis, the same one when the run is continued."""
    import wandb

    identity = folder / "wandb" / "run_id"
    identity.parent.mkdir(exist_ok=True)
    if not identity.exists():
        identity.write_text(secrets.token_hex(4))
    arguments: dict[str, Any] = {
        "name": config.run.name,
        "id": identity.read_text().strip(),
        "dir": folder,
        "project": config.run.project,
        "entity": config.run.entity,
        "group": config.run.group,
        "tags": config.run.tags,
        "config": {**to_container(config), "probe_hashes": dict(hashes)},
        "resume": "allow",
        "settings": wandb.Settings(silent=True, init_timeout=CONNECT_SECONDS),
    }
    run = None
    if config.run.wandb == "online":
        try:
            if not _has_key(wandb.setup().settings.base_url):
                raise wandb.errors.UsageError("no API key; `wandb login` stores one")
            run = wandb.init(mode="online", **arguments)
        except (wandb.errors.Error, OSError) as error:
            log.warning("W&B cannot be used online (%s); the run goes on offline", " ".join(str(error).split()))
            wandb.teardown()  # else the failed attempt still holds the run's id
    if run is None:
        run = wandb.init(mode="offline", **arguments)
    run.define_metric("kimg")
    run.define_metric("*", step_metric="kimg")
    return PictureLogger(experiment=run)


def _has_key(base_url: str) -> bool:
    """Whether W&B would find an API key; without one it would ask for it, and wait."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc(file).authenticators(urlparse(base_url).hostname or "") is not None
    except (OSError, NetrcParseError):
        return False
