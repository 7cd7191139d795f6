"""The images that `--data` names, as keys of the section `data`, and a configuration with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gaussbias import config as configuration
from gaussbias.config import Config, read_yaml
from gaussbias.config.sources import SOURCES, source_kind
from gaussbias.config.trust import check_code, own_cache
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder


def read_source(source: str) -> dict[str, Any]:
    """Keys of `data` for a name of `data.source`, a file or folder of images, a run folder, or a configuration.

    Raises:
        UserError: If it is none of these.
    """
    path = Path(source).expanduser()
    config = RunFolder(path).config if path.is_dir() else path
    if config.suffix in (".yaml", ".yml") and config.is_file():
        section = read_yaml(config).get("data")
        keys = OmegaConf.to_container(section, resolve=True) if section is not None else {}
        return {str(name): value for name, value in keys.items()} if isinstance(keys, dict) else {}
    if path.is_dir():
        return {"source": "folder", "path": source}
    if path.is_file():
        for name, kind in SOURCES.items():
            if path.name.endswith(kind.suffixes):
                return {"source": name, "path": source}
    if source_kind(source) is not None:
        return {"source": source}
    raise UserError(
        f"--data: expected one of {', '.join(SOURCES)}, or images: a folder, a .zip, .npy, .npz, idx file or "
        f"CIFAR-10's .tar.gz, or a run folder or configuration whose data section is meant, got {source}"
    )


def dotted_keys(overrides: DictConfig) -> dict[str, Any]:
    """Overrides as dotted names with their values."""
    plain: Any = OmegaConf.to_container(overrides, resolve=True)
    return configuration.dotted(plain)


def config_of(source: str, given: Mapping[str, Any], half: str | None, command: str) -> Config:
    """A configuration without a network, with the images of a source.

    Args:
        source: What `--data` names.
        given: Further keys by dotted name, which count more.
        half: Which half of the images is meant; `None` for all.
        command: Who asks, for messages.

    Raises:
        UserError: If there is no such source, or a key is wrong.
    """
    keys = {f"data.{name}": value for name, value in read_source(source).items()}
    if keys.get("data.source") != source:  # else the user named it
        check_code(keys, dict(given), f"--data {source}")
    keys |= {"data.half": half} if half else {}
    # no network is trained, so that there is none that has to fit the images
    config = configuration.from_keys({**keys, **given, "module.kind": "gaussian"}, "", command)
    return own_cache(config, given)
