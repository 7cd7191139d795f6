"""Where logged rows go: a local CSV file, which gets every value, the terminal, and what shows curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch.loggers import Logger

from gaussbias.config import Config
from gaussbias.loggers.history import HistoryLogger
from gaussbias.loggers.tensorboard import begin_tensorboard
from gaussbias.loggers.terminal import TerminalLogger
from gaussbias.loggers.wandb_run import WandbRun, begin
from gaussbias.system.ranks import is_first
from gaussbias.system.run_folder import RunFolder

__all__ = ["HistoryLogger", "TerminalLogger", "WandbRun", "build"]


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
    loggers: list[Logger] = [HistoryLogger(RunFolder(folder).history, from_kimg, measured), TerminalLogger()]
    if not is_first():
        return loggers
    if config.run.logger == "tensorboard":
        loggers.append(begin_tensorboard(folder, from_kimg, config.run.wandb_levels))
    elif config.run.logger == "wandb" and config.run.wandb != "disabled":
        run = begin(config, folder, hashes or {}, attempt)
        loggers += [] if run is None else [run]
    return loggers
