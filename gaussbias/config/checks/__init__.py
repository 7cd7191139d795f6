"""Values that no run could use, a file for each kind of them."""

from __future__ import annotations

from importlib.util import find_spec

from gaussbias.config.checks.images import check_images
from gaussbias.config.checks.labels import check_labels
from gaussbias.config.checks.measuring import check_probes
from gaussbias.config.checks.modules import check_averages, check_network, check_rules, check_surrogate
from gaussbias.config.checks.numbers import check_numbers
from gaussbias.config.sections import Config, RunConfig
from gaussbias.system.errors import UserError

__all__ = ["validate"]


def validate(config: Config) -> None:
    """Raise `UserError` for values that no run could use, naming the key, what was expected and what came."""
    check_numbers(config)
    check_network(config.model)
    check_images(config.data)
    check_probes(config.probes)
    check_labels(config)
    check_rules(config)
    check_averages(config)
    if config.module.kind == "linear":
        check_surrogate(config)
    if "raw" in config.probes.weights and config.train.ema_halflife_kimg is None:
        raise UserError(
            "probes.weights: expected [ema], which stands for the raw weights of a run without an average "
            f"(train.ema_halflife_kimg=null), got {config.probes.weights}"
        )
    _check_names(config.run)
    _check_logger(config.run)


def _check_logger(run: RunConfig) -> None:
    if run.logger != "wandb" and run.wandb == "online":
        raise UserError(f"run.wandb: expected offline or disabled with run.logger={run.logger}, got online")
    if run.logger == "tensorboard" and find_spec("tensorboard") is None:
        raise UserError(
            "run.logger: expected the package tensorboard, found none; install it with pip install "
            "'gaussbias[tensorboard]'"
        )


def _check_names(run: RunConfig) -> None:
    project, folder = run.project, run.name
    if not project or len(project) > 128 or set(project) & set("/\\#?%:"):
        raise UserError(f"run.project: expected 1 to 128 characters, none of / \\ # ? % :, got {project!r}")
    if not folder or folder in (".", "..") or "/" in folder or "\\" in folder:
        raise UserError(f"run.name: expected the name of one folder, got {folder!r}; folders go to run.root")
