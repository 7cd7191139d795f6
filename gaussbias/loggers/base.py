"""What the loggers that write here share."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from lightning.pytorch.loggers import Logger


class LocalLogger(Logger):
    """A logger without versions."""

    @property
    def name(self) -> str:
        """Its class."""
        return type(self).__name__

    @property
    def version(self) -> str:
        """None."""
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is in config.yaml."""
