"""A Weights & Biases run that neither waits for its server nor ends with it."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from gaussbias.config import Config, to_container
from gaussbias.loggers.series import TABLE, curves, is_shown, level_page
from gaussbias.system.files import reason, write
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.signals import TRY_AGAIN
from gaussbias.tables.summary import UNSENT, sync_command, wandb_id

log = logging.getLogger("gaussbias")

PAUSES = (1, 3, 10)
"""Seconds between tries to begin offline."""
CONNECT_SECONDS = 30
"""Without an answer after so many the run goes on offline."""
FINISH_SECONDS = 45
"""How long the end of a run waits for rows to be sent; docker/slurm.sbatch asks for three minutes in all."""


class WandbRun(WandbLogger):
    """Rows with kimg as their x axis and pictures, in a W&B run; what goes wrong there is said and ends nothing.

    Main values come first, in a section of their own (`gaussbias.loggers.series`). Other values are sent as well,
    without a chart until one is made of them; those of single noise levels are the rows of a table, one for each
    measurement, unless `levels` asks for curves of them too.

    Each row has the key `attempt`, from 1: W&B cannot rewind, so a run that was killed repeats the rows after its
    checkpoint there, with equal values.

    Args:
        experiment: The W&B run.
        folder: The run folder.
        attempt: Which attempt at the run this is.
        levels: Whether values of single noise levels are curves too.
    """

    def __init__(self, experiment: Any, folder: Path, attempt: int, levels: bool = False) -> None:
        super().__init__(experiment=experiment)
        self.folder, self.attempt, self.levels = folder, attempt, levels
        self.failed = False
        self._defined: set[str] = set()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log a row."""
        if self.failed:
            return
        try:
            shown = curves(metrics, self.levels)
            for key in shown.keys() - self._defined:
                if not is_shown(key):
                    self.experiment.define_metric(key, step_metric="kimg", hidden=True)
            self._defined |= shown.keys()
            super().log_metrics({**shown, "attempt": self.attempt}, step)
            self._log_levels(metrics)
        except Exception as error:  # its process is gone, the disk is full, ...
            self.fail(reason(error))

    def _log_levels(self, metrics: Mapping[str, float]) -> None:
        """Log the values of single noise levels as a table, in a row of its own."""
        import wandb

        page = level_page(metrics)
        if page:
            # a wandb.Table would be an artifact, a version of it for each measurement
            shown = wandb.Html(page, inject=False)
            self.experiment.log({TABLE: shown, "kimg": metrics["kimg"], "attempt": self.attempt})

    @rank_zero_only
    def log_picture(self, key: str, path: Path, kimg: float) -> None:
        """Log a picture of what was measured at `kimg`, as a row of its own."""
        import wandb

        if self.failed:
            return
        try:
            self.experiment.log({key: wandb.Image(str(path)), "kimg": kimg, "attempt": self.attempt})
        except Exception as error:  # its process is gone, the disk is full, ...
            self.fail(reason(error))

    def fail(self, why: str) -> None:
        """Say that W&B gets nothing from here on, once."""
        if not self.failed:
            log.warning("W&B takes no more rows (%s); the run goes on, and history.csv has them all", why)
        self.failed = True

    def finish(self, code: int) -> None:
        """Close the W&B run with an exit code, so that the next one in this process is another.

        What was not sent by then is there, and how to send it is said.
        """
        online = not self.experiment.offline
        try:
            if code == TRY_AGAIN:
                self.experiment.mark_preempting()
            self.experiment.finish(exit_code=code)
        except Exception as error:  # whatever it is, the rest of the run is to be saved
            self.failed = True
            log.warning("W&B could not finish (%s)", reason(error))
        if online and (self.failed or _has_errors(Path(self.experiment.dir).parent)):
            with suppress(OSError):
                (RunFolder(self.folder).wandb / UNSENT).touch()
            log.warning("W&B did not get all of this run; to send it later: %s", sync_command(self.folder))


def begin(config: Config, folder: Path, hashes: Mapping[str, str], attempt: int) -> WandbRun | None:
    """A W&B run, the same one when a run is continued; offline if it cannot be online, `None` if it cannot be at all.

    Args:
        config: The configuration.
        folder: The run folder.
        hashes: Of the draws.
        attempt: Which attempt at the run this is.
    """
    import wandb

    try:
        identity = _identity(folder)
    except OSError as error:
        log.warning("W&B cannot be used (%s); the run goes on without it", reason(error))
        return None
    settings = wandb.Settings(
        silent=True,
        init_timeout=CONNECT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=1.0,  # what a killed run loses of its file
    )
    arguments: dict[str, Any] = {
        "name": config.run.name,
        "id": identity,
        "dir": folder,
        "project": config.run.project,
        "entity": config.run.entity,
        "group": config.run.group,
        "tags": config.run.tags,
        "config": {**to_container(config), "probe_hashes": dict(hashes)},
        "resume": "allow",
        "settings": settings,
    }
    run = None
    if config.run.wandb == "online" and (RunFolder(folder).wandb / UNSENT).exists():
        log.warning("W&B lacks an earlier part of this run; this part is kept beside it, to be sent in order")
    elif config.run.wandb == "online":
        try:
            if not _has_key(wandb.setup().settings.base_url):
                raise wandb.errors.UsageError("no API key; `wandb login` stores one")
            run = wandb.init(mode="online", **arguments)
        except Exception as error:  # no key, no network, a service of another process that is gone, ...
            log.warning("W&B cannot be used online (%s); the run goes on offline", reason(error))
            wandb.teardown()  # else the failed attempt still holds the run's id
    try:
        run = _offline(arguments) if run is None else run
        run.define_metric("kimg")
        run.define_metric("*", step_metric="kimg")
        run.define_metric("trainer/global_step", hidden=True)  # Lightning's
    except Exception as error:  # whatever it is, it is no reason not to train
        log.warning("W&B cannot be used (%s); the run goes on without it", reason(error))
        return None
    return WandbRun(run, folder, attempt, config.run.wandb_levels)


def _offline(arguments: dict[str, Any]) -> Any:
    """An offline run. A failed attempt to be online may hold its id for some seconds."""
    import wandb

    for pause in PAUSES:
        try:
            return wandb.init(mode="offline", **arguments)
        except Exception as error:
            if "in use" not in str(error):
                raise
            wandb.teardown()
            time.sleep(pause)
    return wandb.init(mode="offline", **arguments)


def _identity(folder: Path) -> str:
    """The id of the W&B run of a run folder; another one for what is none."""
    identity = wandb_id(folder)
    if identity is None:
        # an agent of a sweep waits for the run that it named
        swept = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
        identity = swept or secrets.token_hex(4)
        RunFolder(folder).wandb.mkdir(exist_ok=True)
        write(RunFolder(folder).wandb_id, identity)
    return identity


def _has_errors(run: Path) -> bool:
    """Whether rows of a run that is finished were not taken: W&B does not say so but in its log."""
    try:
        lines = (run / "logs" / "debug-internal.log").read_text(errors="replace").splitlines()
    except OSError:
        return True
    return any('"level":"ERROR+' in line or ('"level":"ERROR"' in line and "filestream" in line) for line in lines)


def _has_key(base_url: str) -> bool:
    """Whether W&B would find an API key; without one it would ask for it, and wait."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc(file).authenticators(urlparse(base_url).hostname or "") is not None
    except (OSError, NetrcParseError):
        return False
