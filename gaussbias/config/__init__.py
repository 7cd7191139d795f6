"""What a run can be told: a YAML file, and `section.key=value` overrides.

Only OmegaConf and the standard library are imported here, so that `--help`, `--print-config` and each mistake in
a configuration answer at once.
"""

from gaussbias.config.reading import (
    differences,
    dotted,
    from_keys,
    load,
    read_overrides,
    read_yaml,
    to_container,
    to_yaml,
)
from gaussbias.config.sections import Config, DataConfig, ModelConfig

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "differences",
    "dotted",
    "from_keys",
    "load",
    "read_overrides",
    "read_yaml",
    "to_container",
    "to_yaml",
]
