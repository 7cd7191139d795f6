"""From a YAML file and `section.key=value` overrides to a configuration, with a line for each mistake."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gaussbias.config.checks import validate
from gaussbias.config.scalars import parse, parse_file
from gaussbias.config.sections import Config
from gaussbias.config.trust import check_code
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, run_of
from gaussbias.system.run_folder import RunFolder


def embedded_default() -> Path:
    """The configuration that runs when none is named: digits.yaml, which ships with the package."""
    here = Path(__file__).parent.parent
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
    file = embedded_default() if path is None else Path(path).expanduser()
    stored = RunFolder(file.parent).config == file and RunFolder(file.parent).attempts.exists()
    read, given = read_yaml(file), read_overrides(overrides)
    return _resolve(read, given, f"{file}: ", file.stem, embedded=path is None, stored=stored)


def from_keys(keys: Mapping[str, Any], where: str, name: str) -> Config:
    """A configuration from `section.key` and their values.

    Args:
        keys: By dotted name.
        where: Before what a mistake is said to be.
        name: Of the run, unless `run.name` is among the keys.

    Raises:
        UserError: As `load` does.
    """
    given = OmegaConf.create({})
    for key, value in keys.items():
        if key.count(".") != 1:
            raise UserError(f"{where}{key}: expected a key like section.key")
        OmegaConf.update(given, key, value, force_add=True)
    return _resolve(OmegaConf.create({}), given, where, name, says=where)


RETIRED = {"linear.antithetic": False, "linear.symmetrize": False}
"""Keys that are no more, and the value with which a configuration of an earlier version may still have them."""


def _without_retired(read: DictConfig, where: str, stored: bool) -> None:
    """Take keys out that are no more; raises `UserError` if they had a meaning, but in what is `stored` of a run."""
    for key, without_effect in RETIRED.items():
        section, _, name = key.partition(".")
        part = read._get_node(section)
        if not isinstance(part, DictConfig) or name not in part:
            continue
        plain: Any = OmegaConf.to_container(part, resolve=False)
        value = plain[name]
        if value != without_effect and not stored:
            raise UserError(f"{where}{key}: expected no such key, since it was removed; leave it out")
        part.pop(name)


def _resolve(
    read: DictConfig,
    given: DictConfig,
    where: str,
    name: str,
    says: str = "",
    embedded: bool = False,
    stored: bool = False,
) -> Config:
    """Keys of a file and those that replace them, merged and checked; `where` and `says` stand before mistakes."""
    _without_retired(read, where, stored)
    _without_retired(given, says, stored=False)
    _check_keys(read, where)
    _check_keys(given, says)
    schema = OmegaConf.structured(Config)
    own, asked = (OmegaConf.select(section, "data.source") for section in (read, given))
    if embedded and asked not in (None, own):
        _without_images(read)
    images = _images_of_teacher(_merge(_merge(schema, read, where), given, says))
    if images is not None:
        asked_for = {"data.source"} if (asked or (own and not embedded)) else set()
        source = OmegaConf.select(images, "data.source")
        check_code({"data.source": source}, asked_for, "linear.teacher")
        schema = _merge(schema, images, "linear.teacher: ")
        if embedded:  # its images are those of the embedded default, which nobody asked for
            _without_images(read)
    merged = _merge(_merge(schema, read, where), given, says)
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    if config.run.name is None:
        config.run.name = name
    try:
        validate(config)
    except UserError as error:
        raise UserError(f"{says}{error}") from None
    return config


def _without_images(read: DictConfig) -> None:
    """Take out what the embedded default says of its images: how many are held out, and theories that they afford."""
    read.pop("data", None)
    probes = read._get_node("probes")
    if isinstance(probes, DictConfig):
        probes.pop("theories", None)


def to_container(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, lists and scalars (a checkpoint of those loads without unpickling)."""
    plain = OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)
    assert isinstance(plain, dict)
    return typing.cast("dict[str, Any]", plain)


def dotted(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with keys as one dict by `section.key`."""
    return {f"{name}.{key}": value for name, keys in sections.items() for key, value in dict(keys or {}).items()}


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


def read_yaml(file: Path) -> DictConfig:
    """The sections of a YAML file.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        content = parse_file(file)
        read = OmegaConf.create({} if content is None else content) if isinstance(content, dict | None) else None
    except FileNotFoundError:
        raise UserError(f"--config: expected a YAML file, found none at {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: cannot read {file}: {reason(error)}") from None
    except Exception as error:  # PyYAML's and OmegaConf's errors share no base class
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, DictConfig):
        what = "a list" if isinstance(content, list) else repr(content)
        raise UserError(f"{file}: expected sections with keys (data:, model:, ...), got {what}")
    return read


def read_overrides(overrides: Sequence[str]) -> DictConfig:
    """The keys of `section.key=value` items.

    Raises:
        UserError: For what is not one.
    """
    keys = OmegaConf.create({})
    for override in overrides:
        key, equals, value = override.removeprefix("--").partition("=")
        if not equals or not key:
            raise UserError(f"expected an override like section.key=value, got {override!r}")
        try:
            OmegaConf.update(keys, key, _value(key, value))
        except Exception as error:  # a value that is not YAML, or section=1 beside section.key=2
            raise UserError(f"cannot read the override {override}: {' '.join(str(error).split())}") from None
    return keys


def _value(key: str, value: str) -> Any:
    """The value of an override; where text is expected 7 is one."""
    if value in ("", "null", "None"):
        return None
    return value if _is_text(key) else parse(value, text=_is_text(key, lists=True))


def _images_of_teacher(merged: DictConfig) -> DictConfig | None:
    """The section `data` of the run that is distilled, if it is one, without labels: a surrogate has no classes."""
    teacher = merged.linear.teacher
    run = None if merged.module.kind != "linear" or teacher is None else run_of(Path(teacher).expanduser())
    data = None if run is None else read_yaml(RunFolder(run).config).get("data")
    if data is None:
        return None
    images = OmegaConf.create({"data": data})
    if isinstance(data, DictConfig):
        images.data.labels = False
    return images


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
        for key, value in given[section].items_ex(resolve=False):
            if key in sections[name] and _is_text(f"{name}.{key}") and not isinstance(value, str | None):
                raise UserError(f"{where}{name}.{key}: expected text, got {value!r}; put it in quotes")
            if isinstance(value, ListConfig) and _is_text(f"{name}.{key}", lists=True):
                other = next((item for item in value if not isinstance(item, str)), None)
                if other is not None:
                    raise UserError(f"{where}{name}.{key}: expected texts, got {other!r}; put it in quotes")
            if OmegaConf.is_missing(given[section], key):
                raise UserError(f"{where}{name}.{key}: expected a value, got ???")
            if key not in sections[name]:
                likely = _likely(f"{name}.{key}", full)
                raise UserError(
                    f"{where}{name}.{key}: no such key; expected one of {', '.join(sections[name])}"
                    + (f". Did you mean {likely}?" if likely else "")
                )


def _is_text(key: str, lists: bool = False) -> bool:
    """Whether a key takes text, or a list of texts."""
    section, _, name = key.partition(".")
    hint = _sections().get(section, {}).get(name)
    return hint == list[str] if lists else hint is str or hint == str | None


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
        value = _raw(given, key)
        expected = _describe_key(key)
        if expected is None:
            raise UserError(f"{where}{key}: {reason}" if key else f"{where}{reason}") from None
        raise UserError(f"{where}{key}: expected {expected}, got {value!r}") from None
    assert isinstance(merged, DictConfig)
    return merged


def _raw(given: DictConfig, key: str) -> Any:
    """The value as it was written, interpolations included."""
    section, _, name = key.partition(".")
    plain = OmegaConf.to_container(given, resolve=False)
    assert isinstance(plain, dict)
    value = plain.get(section, {}).get(name.partition("[")[0])
    place = name.partition("[")[2].rstrip("]")
    return value[int(place)] if place.isdigit() and isinstance(value, list) else value


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
        args = tuple(arg for arg in args if arg is not int or float not in args)  # whole numbers are numbers
        return " or ".join(_describe(arg) for arg in args)
    if origin is list:
        return f"a list of {_describe(args[0])}s"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(hint, str(hint))
