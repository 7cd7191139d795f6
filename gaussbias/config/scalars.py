"""How plain values in YAML are read: as YAML 1.2 has them, numbers in decimal.

YAML 1.1, which PyYAML follows, takes 010 for 8, 1:30 for 90, 1_0 for 10, and `on` or `no` for true or false. Here such
values stay text, which a key of another type then takes if it means the same in decimal (010 is ten), or refuses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf._yaml import get_yaml_loader

INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$")
BOOLEAN = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
REPLACED = ("int", "float", "bool", "timestamp")


def _loader(text: bool) -> Any:
    """OmegaConf's loader, which bounds aliases and refuses keys that come twice, with other rules for plain values."""
    base = get_yaml_loader()
    kinds = {f"tag:yaml.org,2002:{kind}" for kind in REPLACED}
    rules = {
        first: [(tag, rule) for tag, rule in those if tag not in kinds]
        for first, those in base.yaml_implicit_resolvers.items()
    }
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": rules})
    if not text:
        loader.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, list("-+0123456789"))
        loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
        loader.add_implicit_resolver("tag:yaml.org,2002:float", NOT_FINITE, list("-+."))
        loader.add_implicit_resolver("tag:yaml.org,2002:bool", BOOLEAN, list("tTfF"))
    loader.add_constructor("tag:yaml.org,2002:int", lambda self, node: int(self.construct_scalar(node)))  # 010 is ten
    return loader


LOADERS = {text: _loader(text) for text in (False, True)}


def parse(document: str, text: bool = False) -> Any:
    """The value of a YAML document.

    Args:
        document: What is parsed.
        text: Whether all plain values are text, but for null.

    Raises:
        yaml.YAMLError: If it is not YAML.
    """
    return yaml.load(document, Loader=LOADERS[text])


def parse_file(file: Path) -> Any:
    """The value of a YAML file.

    Raises:
        OSError: If it cannot be read.
        UnicodeDecodeError: If it is no text.
        yaml.YAMLError: If it is not YAML.
    """
    return parse(file.read_text(encoding="utf-8-sig"))
