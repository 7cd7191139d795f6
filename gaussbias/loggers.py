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
from gaussbias.files import complete, reason, sync
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
    """Rows in `history.csv`, one column per key, empty where a row has no value; on the disk at once.

    A new key rewrites the file with a column more. A run that continues drops the rows after its checkpoint: they are
    computed again. Rows that cannot be written are kept, and tried again with the next one; `failure` says why.

    Args:
        path: The file.
        from_kimg: Where the run continues; `None` starts anew.
        measured: Whether the measurement there is done; else its row is dropped too.
    """

    def __init__(self, path: Path, from_kimg: float | None = None, measured: bool = True) -> None:
        super().__init__()
        self.path, self.from_kimg, self.measured = path, from_kimg, measured
        self.failure: str | None = None
        self._keys: list[str] = []
        self._unwritten: list[dict[str, float]] = []

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        self._unwritten.append(dict(metrics))
        self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write what is not written."""
        if not self._unwritten:
            return
        try:
            self._append()
        except OSError as error:
            if self.failure is None:
                log.warning(
                    "%s could not be written (%s); its rows are kept until there is room, and no checkpoint is made "
                    "without them",
                    self.path,
                    reason(error),
                )
            self.failure = reason(error)
            return
        self._unwritten = []
        if self.failure is not None:
            log.warning("%s is whole again", self.path)
            self.failure = None

    def _append(self) -> None:
        keys, kept = self._keys or list(KEYS_FIRST), None
        if not self._keys:
            keys, kept = self._begin(keys)
        new = dict.fromkeys(key for row in self._unwritten for key in row if key not in keys)
        if new and kept is None:
            _, kept = read_rows(self.path)
        if kept is not None:
            self._write([*keys, *new], [*kept, *self._unwritten])
            self._keys = [*keys, *new]
            return
        size = self.path.stat().st_size
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, keys, lineterminator="\n").writerows(self._unwritten)
            sync(self.path)
        except OSError:
            os.truncate(self.path, size)
            raise

    def _begin(self, keys: list[str]) -> tuple[list[str], list[dict[str, str]]]:
        """The columns and rows to go on with."""
        if self.from_kimg is None or not self.path.exists():
            return keys, []
        stored, rows = read_rows(self.path)
        return stored or keys, [row for row in rows if self._stays(row, self.from_kimg)]

    def _stays(self, row: Mapping[str, str], kimg: float) -> bool:
        time = float(row["kimg"])
        return time < kimg or (time == kimg and (self.measured or not row.get("probes/seconds")))

    def _write(self, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        with complete(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, keys, lineterminator="\n")
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
    config: Config,
    folder: Path,
    from_kimg: float | None = None,
    measured: bool = True,
    hashes: Mapping[str, str] | None = None,
    attempt: int = 1,
) -> list[Logger]:
    """The loggers of a run in `folder`.

    Args:
        config: The configuration.
        folder: The run folder.
        from_kimg: Where the run continues; `None` begins it.
        measured: Whether the measurement there is done.
        hashes: Of the draws.
        attempt: Which attempt this is, from 1.
    """
    loggers: list[Logger] = [HistoryLogger(folder / "history.csv", from_kimg, measured), TerminalLogger()]
    if config.run.wandb != "disabled" and is_first():
        loggers.append(_wandb(config, folder, hashes or {}, attempt))
    return loggers


def finish(loggers: Sequence[Logger], failed: bool) -> None:
    """Close the W&B run, so that the next one in this process is another."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            try:
                logger.experiment.finish(exit_code=int(failed))
            except Exception as error:  # whatever it is, the rest of the run is to be saved
                log.warning("W&B could not finish (%s)", " ".join(str(error).split()))


def _wandb(config: Config, folder: Path, hashes: Mapping[str, str], attempt: int) -> PictureLogger:
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
