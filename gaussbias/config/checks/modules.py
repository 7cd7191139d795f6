"""What runs: networks, rules that end them, and surrogates."""

from __future__ import annotations

from gaussbias.catalogue import GAP_Z, GAUSSIAN_RMSE, IMAGES
from gaussbias.config.sections import STOP_RULES, Config, ModelConfig
from gaussbias.noise import in_band
from gaussbias.system.errors import UserError

SHORTEST, LONGEST = 0.005, 0.28
"""Lengths of averages; that of the plain mean of all weights is 0.2887."""


def check_network(model: ModelConfig) -> None:
    """Raise `UserError` for networks that cannot be built."""
    if model.dropout >= 1:
        raise UserError(f"model.dropout: expected below 1, got {model.dropout}")
    if not model.channel_mult or min(model.channel_mult) < 1:
        raise UserError(f"model.channel_mult: expected factors of 1 or more, such as [1,2], got {model.channel_mult}")
    if model.backbone in ("ddpmpp", "ncsnpp", "adm") and (model.channels < 4 or model.channels % 2):
        raise UserError(
            f"model.channels: expected an even number of at least 4 for model.backbone={model.backbone}, got "
            f"{model.channels}"
        )


def check_averages(config: Config) -> None:
    """Raise `UserError` for averages of weights that cannot be kept."""
    train = config.train
    if train.ema_lengths and config.module.kind != "edm":
        raise UserError(
            f"train.ema_lengths: expected none with module.kind={config.module.kind}, which trains no network, got "
            f"{train.ema_lengths}"
        )
    for length in train.ema_lengths:
        if not SHORTEST <= length <= LONGEST:
            raise UserError(
                f"train.ema_lengths: expected standard deviations from {SHORTEST:g} to {LONGEST:g} of the time of "
                f"training, got {length:g}"
            )
    if len({f"{length:g}" for length in train.ema_lengths}) < len(train.ema_lengths):
        raise UserError(f"train.ema_lengths: expected different lengths, got {train.ema_lengths}")


def check_rules(config: Config) -> None:
    """Raise `UserError` for rules that no run could follow."""
    stop = config.stop
    if stop.patience < 1:
        raise UserError(f"stop.patience: expected at least 1 measurement, got {stop.patience}")
    if stop.errors < 0:
        raise UserError(f"stop.errors: expected 0 or more standard errors, got {stop.errors}")
    if not 0 <= stop.memorized_fraction < 1:
        raise UserError(f"stop.memorized_fraction: expected a fraction in 0..1, got {stop.memorized_fraction}")
    for rule in STOP_RULES:
        if getattr(stop, rule) is not None and config.module.kind != "edm":
            raise UserError(
                f"stop.{rule}: expected null with module.kind={config.module.kind}, which trains no network, got "
                f"{getattr(stop, rule)}"
            )
    levels = config.probes.sigmas
    if stop.gaussian_gap is not None and (
        "heldout" not in config.probes.pools or (levels is not None and not in_band(levels))
    ):
        raise UserError(
            "stop.gaussian_gap: expected heldout among probes.pools and a noise level in 0.1..20 among probes.sigmas, "
            f"since it looks at {GAUSSIAN_RMSE.on('heldout')}"
        )
    if stop.gap is not None and (
        set(IMAGES) - set(config.probes.pools) or (levels is not None and not in_band(levels))
    ):
        raise UserError(
            "stop.gap: expected train and heldout among probes.pools and a noise level in 0.1..20 among probes.sigmas, "
            f"since it looks at {GAP_Z.name}"
        )


def check_surrogate(config: Config) -> None:
    """Raise `UserError` for surrogates that cannot be fitted."""
    linear, levels = config.linear, config.probes.sigmas
    if linear.teacher is None:
        raise UserError(
            "linear.teacher: expected a run folder, a checkpoint or an exported denoiser to distil, got null; "
            "give linear.teacher=PATH"
        )
    if levels is not None and (len(levels) < 2 or levels != sorted(levels, reverse=True)):
        raise UserError(
            f"probes.sigmas: expected 2 or more noise levels in descending order, which a surrogate has maps for and "
            f"samples with, got {levels}"
        )
    if linear.lr is not None and (not linear.lr or min(linear.lr) <= 0):
        raise UserError(f"linear.lr: expected learning rates above 0, one for each noise level, got {linear.lr}")
    if linear.method == "gradient":
        if linear.target_error is not None:
            raise UserError(
                "linear.target_error: expected null with linear.method=gradient, whose error is not predicted"
            )
        if not linear.shrink:
            raise UserError("linear.shrink: expected its default with linear.method=gradient, got false")
