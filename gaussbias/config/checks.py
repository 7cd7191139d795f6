"""Values that no run could use."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

from gaussbias.config.roles import Role, keys_with
from gaussbias.config.sections import Config, ProbesConfig
from gaussbias.config.sources import SOURCES, source_kind
from gaussbias.noise import check_sigmas, in_band
from gaussbias.numerics.blocks import BLOCKS, block_size, next_draws
from gaussbias.system.errors import UserError
from gaussbias.system.functions import check_function


def validate(config: Config) -> None:
    """Raise `UserError` for values that no run could use, naming the key, what was expected and what came."""
    for key in sorted(keys_with(Role.ABOVE_ZERO)):
        value = _get(config, key)
        if isinstance(value, (int, float)) and not value > 0:
            raise UserError(f"{key}: expected a number above 0, got {value}")
    for section in fields(config):
        for field in fields(getattr(config, section.name)):
            value = _get(config, f"{section.name}.{field.name}")
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{section.name}.{field.name}: expected a finite number, got {value}")
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not _is_unicode(text):  # a name of a file may be any bytes
                    raise UserError(
                        f"{section.name}.{field.name}: expected text in UTF-8, in which it can be stored, got "
                        f"{text!a}; rename the file or folder, or give a link to it"
                    )
    for key in sorted(keys_with(Role.NOT_NEGATIVE)):
        if not _get(config, key) >= 0:
            raise UserError(f"{key}: expected 0 or more, got {_get(config, key)}")
    if config.model.dropout >= 1:
        raise UserError(f"model.dropout: expected below 1, got {config.model.dropout}")
    if config.data.n_train is not None and config.data.n_train < 2:
        raise UserError(f"data.n_train: expected at least 2 images (a covariance), got {config.data.n_train}")
    for key in ("data.n_heldout", "probes.samples"):
        if _get(config, key) is not None and _get(config, key) < 2:
            raise UserError(f"{key}: expected at least 2, got {_get(config, key)}")
    if not config.model.channel_mult or min(config.model.channel_mult) < 1:
        raise UserError(
            f"model.channel_mult: expected factors of 1 or more, such as [1,2], got {config.model.channel_mult}"
        )
    if config.model.backbone in ("ddpmpp", "ncsnpp", "adm") and (
        config.model.channels < 4 or config.model.channels % 2
    ):
        raise UserError(
            f"model.channels: expected an even number of at least 4 for model.backbone={config.model.backbone}, got "
            f"{config.model.channels}"
        )
    _validate_source(config)
    kind = source_kind(config.data.source)
    if kind is not None and kind.path == "always" and config.data.path is None:
        raise UserError(
            f"data.path: expected the file or folder of the images of data.source={config.data.source}, got null; "
            "give data.path=PATH"
        )
    if kind is not None and kind.path == "never":
        for name in ("path", "heldout_path"):
            if _get(config, f"data.{name}") is not None:
                raise UserError(
                    f"data.{name}: data.source={config.data.source} reads no file, got "
                    f"{_get(config, f'data.{name}')}; set data.source too"
                )
    _validate_probes(config.probes)
    _validate_stop(config)
    if config.module.kind == "linear":
        _validate_linear(config)
    if "raw" in config.probes.weights and config.train.ema_halflife_kimg is None:
        raise UserError(
            "probes.weights: expected [ema], which stands for the raw weights of a run without an average "
            f"(train.ema_halflife_kimg=null), got {config.probes.weights}"
        )
    project = config.run.project
    if not project or len(project) > 128 or set(project) & set("/\\#?%:"):
        raise UserError(f"run.project: expected 1 to 128 characters, none of / \\ # ? % :, got {project!r}")
    folder = config.run.name
    if not folder or folder in (".", "..") or "/" in folder or "\\" in folder:
        raise UserError(f"run.name: expected the name of one folder, got {folder!r}; folders go to run.root")


def _validate_probes(probes: ProbesConfig) -> None:
    _validate_draws(probes)
    if probes.sampler_steps < 2:
        raise UserError(f"probes.sampler_steps: expected at least 2, got {probes.sampler_steps}")
    if probes.features is not None:
        check_function(probes.features, "probes.features")
    for spec in probes.also:
        check_function(spec, "probes.also")
    _validate_theories(probes.theories)
    if probes.sigmas is not None:
        if not probes.sigmas:
            raise UserError("probes.sigmas: expected at least one noise level, got none")
        try:
            check_sigmas(probes.sigmas)
        except ValueError as error:
            raise UserError(f"probes.sigmas: {error}") from None
    if not probes.weights or len(set(probes.weights)) < len(probes.weights) or set(probes.weights) - {"ema", "raw"}:
        raise UserError(f"probes.weights: expected ema, raw or both, each once, got {probes.weights}")
    known = ("train", "heldout", "trajectory", "noise")
    if not probes.pools or len(set(probes.pools)) < len(probes.pools) or set(probes.pools) - set(known):
        raise UserError(f"probes.pools: expected some of {', '.join(known)}, each once, got {probes.pools}")
    if not {"train", "heldout"} & set(probes.pools):
        raise UserError(f"probes.pools: expected train or heldout among them, got {probes.pools}")


def _validate_source(config: Config) -> None:
    if source_kind(config.data.source) is None:
        raise UserError(
            f"data.source: expected one of {', '.join(SOURCES)}, or package.module:function, got {config.data.source!r}"
        )
    if config.data.source not in SOURCES:
        check_function(config.data.source, "data.source")


def _validate_theories(theories: list[str]) -> None:
    names = [theory_name(theory) for theory in theories]
    for theory, name in zip(theories, names, strict=True):
        _, _, spec = theory.rpartition("=")
        if ":" in spec:
            check_function(spec, "probes.theories")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UserError(f"probes.theories: expected names of letters, digits, _ and -, got {name!r}")
    if len(set(names)) < len(names):
        raise UserError(
            f"probes.theories: expected different names, got {', '.join(names)}; name=package.module:function gives one"
        )


def theory_name(theory: str) -> str:
    """The name in `name=package.module:function`, or the function's.

    >>> theory_name("bump=mine.theories:make"), theory_name("mine.theories:make")
    ('bump', 'make')
    """
    name, equals, spec = theory.rpartition("=")
    return name if equals else spec.rpartition(":")[2]


def _validate_stop(config: Config) -> None:
    stop = config.stop
    if stop.patience < 1:
        raise UserError(f"stop.patience: expected at least 1 measurement, got {stop.patience}")
    if stop.errors < 0:
        raise UserError(f"stop.errors: expected 0 or more standard errors, got {stop.errors}")
    if not 0 <= stop.memorized_fraction < 1:
        raise UserError(f"stop.memorized_fraction: expected a fraction in 0..1, got {stop.memorized_fraction}")
    for rule in ("gaussian_gap", "memorization"):
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
            "since it looks at gaussian/rmse/heldout"
        )


def _validate_linear(config: Config) -> None:
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


def _validate_draws(probes: ProbesConfig) -> None:
    """Whether the draws make blocks enough for standard errors."""
    if probes.block is None:
        if block_size(probes.draws) is None:
            raise UserError(
                f"probes.draws: expected {BLOCKS} or more blocks of an even number of draws, got {probes.draws}; "
                f"the next number that has them is {next_draws(probes.draws)}"
            )
        return
    if probes.block < 2 or probes.block % 2:
        raise UserError(f"probes.block: expected an even number of at least 2, got {probes.block}")
    if probes.draws < BLOCKS * probes.block or probes.draws % probes.block:
        raise UserError(
            f"probes.draws: expected a multiple of probes.block={probes.block}, and at least {BLOCKS} blocks for "
            f"standard errors, got {probes.draws}; the next is "
            f"{max(BLOCKS, -(-probes.draws // probes.block)) * probes.block}"
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _get(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)
