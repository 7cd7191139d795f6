"""The images that `--data` names, as keys of the section `data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gaussbias.config import read_yaml
from gaussbias.config.sources import SOURCES, source_kind
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
