"""What a run can be told: one dataclass per section, a YAML file, and `section.key=value` overrides.

Only OmegaConf and the standard library are imported here, so that `--help`, `--print-config` and each
mistake in a configuration answer at once.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gaussbias.errors import UserError
from gaussbias.noise import check_sigmas


@dataclass
class ModuleConfig:
    """Which LightningModule runs."""

    kind: Literal["edm"] = "edm"


@dataclass
class DataConfig:
    """Where the images come from and which of them are used."""

    source: Literal["digits", "cifar10", "edm_zip", "array", "gaussian"] = "digits"
    path: str | None = None
    heldout_path: str | None = None
    """Images of the same kind to hold out; `null` holds out some of `path`."""
    resolution: int | None = None
    """Downsample by area to this many pixels a side; `null` keeps the size."""
    n_train: int | None = None
    """Training images; `null` takes all that are left."""
    n_heldout: int = 1000
    subset_seed: int = 0
    half: Literal["S1", "S2"] | None = None
    """Draw the training images from one of two disjoint halves."""
    flip: bool = False
    """Mirror half of the training images, at random."""


@dataclass
class ModelConfig:
    """The network."""

    backbone: Literal["unet", "mlp"] = "unet"
    channels: int = 32
    channel_mult: list[int] = field(default_factory=lambda: [1, 2])
    layers_per_block: int = 1
    attention: list[int] = field(default_factory=list)
    """Resolutions, in pixels a side, that get self-attention."""
    dropout: float = 0.0
    sigma_data: float = 0.5


@dataclass
class NoiseConfig:
    """Training noise levels: ln sigma ~ N(P_mean, P_std^2)."""

    P_mean: float = -1.2
    P_std: float = 1.2


@dataclass
class TrainConfig:
    """The optimisation."""

    batch_size: int = 128
    """Images in one step, over all devices."""
    kimg: float = 100.0
    """Length of the run, in thousands of images."""
    lr: float = 1e-3
    lr_rampup_kimg: float = 1.0
    ema_halflife_kimg: float | None = 500.0
    """Half-life of the weight average; `null` measures and exports the raw weights."""
    ema_rampup_ratio: float | None = 0.05
    """The half-life is at most this share of the images seen so far; `null` is no limit."""
    grad_clip: float | None = None
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """Of the training step. Measurements always run in float32."""
    compile: bool = False
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int = 1
    strategy: Literal["auto", "ddp"] = "auto"
    checkpoint_every_kimg: float = 50.0
    log_every_kimg: float = 1.0


@dataclass
class ProbesConfig:
    """What is measured, on how many draws, and when."""

    draws: int = 256
    """Noisy images per pool; the same ones serve every noise level."""
    block: int = 64
    """Draws that are evaluated together; the unit that devices share out."""
    sigmas: list[float] | None = None
    """Noise levels; `null` is EDM's grid of 10 from 80 to 0.002."""
    pools: list[str] = field(default_factory=lambda: ["train", "heldout"])
    first_kimg: float = 1.0
    """First measurement after the one before training; then the time doubles from one to the next ..."""
    every_kimg: float = 25.0
    """... until they are this far apart."""
    samples: int = 200
    sampler: Literal["heun", "euler"] = "heun"
    sampler_steps: int = 18
    seed: int = 0
    """Of the draws and the sampling latents: runs that share it measure the same points."""


@dataclass
class RunConfig:
    """Where results go."""

    name: str | None = None
    """Folder of the run; `null` is the configuration's file name."""
    root: str = "runs"
    seed: int = 0
    wandb: Literal["online", "offline", "disabled"] = "offline"
    project: str = "gaussbias"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Config:
    """A whole run."""

    module: ModuleConfig = field(default_factory=ModuleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    probes: ProbesConfig = field(default_factory=ProbesConfig)
    run: RunConfig = field(default_factory=RunConfig)


def embedded_default() -> Path:
    """The configuration that runs when none is named: digits.yaml, which ships with the package."""
    here = Path(__file__).parent
    installed = here / "configs" / "digits.yaml"
    return installed if installed.exists() else here.parent / "configs" / "digits.yaml"


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration, apply overrides, and check it.

    Args:
        path: A YAML file with any of the sections; `None` reads the embedded default.
        overrides: `section.key=value` items, with or without leading dashes; `None` stands for null.

    Raises:
        UserError: For a file that cannot be read, an unknown key, a value of a wrong type or out of range.
    """
    file = embedded_default() if path is None else Path(path)
    read = _read_yaml(file)
    given = _read_overrides(overrides)
    _check_keys(read, f"{file}: ")
    _check_keys(given, "")
    schema = OmegaConf.structured(Config)
    merged = _merge(_merge(schema, read, f"{file}: "), given, "")
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    if config.run.name is None:
        config.run.name = file.stem
    validate(config)
    return config


def to_container(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars (a checkpoint of those loads without unpickling)."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return typing.cast("dict[str, Any]", plain)


def to_yaml(config: Config) -> str:
    """The configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True)


def differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key, dotted, at which two configurations (as containers) differ, with both values."""
    for key in sorted(a.keys() | b.keys()):
        left, right = a.get(key), b.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{prefix}{key}.")
        elif left != right:
            yield prefix + key, left, right


def validate(config: Config) -> None:
    """Raise `UserError` for values that no run could use, naming the key, what was expected and what came."""
    above_zero = (
        "model.channels model.layers_per_block model.sigma_data noise.P_std train.batch_size train.kimg "
        "train.lr train.ema_halflife_kimg train.ema_rampup_ratio train.grad_clip train.devices "
        "train.num_nodes train.checkpoint_every_kimg train.log_every_kimg probes.block probes.first_kimg "
        "probes.every_kimg probes.samples data.n_heldout data.resolution"
    )
    for key in above_zero.split():
        value = _get(config, key)
        if isinstance(value, (int, float)) and not 0 < value < float("inf"):
            raise UserError(f"{key}: expected a finite number above 0, got {value}")
    for key in ("train.lr_rampup_kimg", "model.dropout"):
        if not 0 <= _get(config, key) < float("inf"):
            raise UserError(f"{key}: expected 0 or more, got {_get(config, key)}")
    if config.model.dropout >= 1:
        raise UserError(f"model.dropout: expected below 1, got {config.model.dropout}")
    if config.data.n_train is not None and config.data.n_train < 2:
        raise UserError(f"data.n_train: expected at least 2 images (a covariance), got {config.data.n_train}")
    if not config.model.channel_mult or min(config.model.channel_mult) < 1:
        raise UserError(
            f"model.channel_mult: expected factors of 1 or more, such as [1,2], got {config.model.channel_mult}"
        )
    if config.data.source in ("cifar10", "edm_zip", "array") and config.data.path is None:
        raise UserError(
            f"data.path: expected the file that holds the images of data.source={config.data.source}, got null; "
            "give data.path=PATH"
        )
    if config.data.source in ("digits", "gaussian"):
        for name in ("path", "heldout_path"):
            if _get(config, f"data.{name}") is not None:
                raise UserError(
                    f"data.{name}: data.source={config.data.source} reads no file, got "
                    f"{_get(config, f'data.{name}')}; set data.source too"
                )
    _validate_probes(config.probes)
    name = config.run.name
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise UserError(f"run.name: expected the name of one folder, got {name!r}; folders go to run.root")


def _validate_probes(probes: ProbesConfig) -> None:
    if probes.block < 4 or probes.block % 2:
        raise UserError(f"probes.block: expected an even number of at least 4, got {probes.block}")
    if probes.draws < probes.block or probes.draws % probes.block:
        raise UserError(
            f"probes.draws: expected a multiple of probes.block={probes.block}, got {probes.draws}; "
            f"the next is {max(1, -(-probes.draws // probes.block)) * probes.block}"
        )
    if probes.sampler_steps < 2:
        raise UserError(f"probes.sampler_steps: expected at least 2, got {probes.sampler_steps}")
    if probes.sigmas is not None:
        if not probes.sigmas:
            raise UserError("probes.sigmas: expected at least one noise level, got none")
        try:
            check_sigmas(probes.sigmas)
        except ValueError as error:
            raise UserError(f"probes.sigmas: {error}") from None
    known = ("train", "heldout")
    if not probes.pools or len(set(probes.pools)) < len(probes.pools) or set(probes.pools) - set(known):
        raise UserError(f"probes.pools: expected some of {', '.join(known)}, each once, got {probes.pools}")


def _get(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def _read_yaml(file: Path) -> DictConfig:
    try:
        read = OmegaConf.load(file)
    except FileNotFoundError:
        raise UserError(f"--config: expected a YAML file, found none at {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: cannot read {file}: {error}") from None
    except Exception as error:  # PyYAML's and OmegaConf's errors share no base class
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, DictConfig):
        raise UserError(f"{file}: expected sections with keys (data:, model:, ...), got a list")
    return read


def _read_overrides(overrides: Sequence[str]) -> DictConfig:
    items = []
    for override in overrides:
        item = override.removeprefix("--")
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"expected an override like section.key=value, got {override!r}")
        items.append(f"{key}=null" if value == "None" else item)
    try:
        return OmegaConf.from_dotlist(items)
    except Exception as error:  # a value that is not YAML, or section=1 beside section.key=2
        raise UserError(f"cannot read the overrides {' '.join(overrides)}: {' '.join(str(error).split())}") from None


def _sections() -> dict[str, dict[str, Any]]:
    """The type of each key of each section."""
    hints = typing.get_type_hints(Config)
    return {name: typing.get_type_hints(section) for name, section in hints.items()}


def _check_keys(given: DictConfig, where: str) -> None:
    """Raise `UserError` for a key that does not exist, with the likely spelling."""
    sections = _sections()
    full = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    for section in given:
        name = str(section)
        if name not in sections:
            keys = list(given[section]) if isinstance(given._get_node(section), DictConfig) else []
            likely = _likely(f"{name}.{keys[0]}" if keys else name, full) or _likely(name, list(sections))
            raise UserError(
                f"{where}{name}: no such section; expected one of {', '.join(sections)}"
                + (f". Did you mean {likely}?" if likely else "")
            )
        if not isinstance(given._get_node(section), DictConfig):
            raise UserError(f"{where}{name}: expected keys, as in {full[_first(full, name)]}, got {given[section]!r}")
        for key in given[section]:
            if key not in sections[name]:
                likely = _likely(f"{name}.{key}", full)
                raise UserError(
                    f"{where}{name}.{key}: no such key; expected one of {', '.join(sections[name])}"
                    + (f". Did you mean {likely}?" if likely else "")
                )


def _first(full: list[str], section: str) -> int:
    return next(i for i, key in enumerate(full) if key.startswith(section + "."))


def _likely(key: str, known: list[str]) -> str | None:
    """The known key that a misspelt one is most likely meant to be; the last part weighs more."""
    last = key.rpartition(".")[2]
    ends = {name.rpartition(".")[2]: name for name in reversed(known)}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    close = close or [ends[end] for end in difflib.get_close_matches(last, list(ends), n=1, cutoff=0.6)]
    return close[0] if close else None


def _merge(base: DictConfig, given: DictConfig, where: str) -> DictConfig:
    try:
        merged = OmegaConf.merge(base, given)
        OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        reason = str(error.msg or error).splitlines()[0]
        value = OmegaConf.select(given, key, throw_on_resolution_failure=False) if key else None
        expected = _describe_key(key)
        if expected is None:
            raise UserError(f"{where}{key}: {reason}" if key else f"{where}{reason}") from None
        raise UserError(f"{where}{key}: expected {expected}, got {value!r}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _describe_key(key: str) -> str | None:
    """What kind of value a key takes, in words."""
    section, _, name = key.partition(".")
    hint = _sections().get(section, {}).get(name.partition("[")[0])
    return None if hint is None else _describe(hint)


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args) if len(args) > 1 else str(args[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in args)
    if origin is list:
        return f"a list of {_describe(args[0])}s"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(hint, str(hint))
