"""Classes of images, and who is told them."""

from __future__ import annotations

import math

from gaussbias.config.sections import Config
from gaussbias.system.errors import UserError


def check_labels(config: Config) -> None:
    """Raise `UserError` for what goes with labels and has none, and the other way round."""
    dropout = config.model.label_dropout
    if dropout >= 1:
        raise UserError(f"model.label_dropout: expected below 1, got {dropout:g}")
    if config.data.labels:
        if config.probes.surrogate is not None:
            raise UserError(
                "probes.surrogate: expected null with data.labels=true, since a surrogate has one map for all classes, "
                f"got {config.probes.surrogate}"
            )
        weights = config.probes.guidance
        if not all(map(math.isfinite, weights)) or len({f"{weight:g}" for weight in weights}) < len(weights):
            raise UserError(f"probes.guidance: expected different finite weights, got {weights}")
        return
    if dropout:
        raise UserError(
            f"model.label_dropout: expected 0 with data.labels=false, got {dropout:g}; set data.labels=true"
        )
    if config.probes.guidance:
        raise UserError(
            f"probes.guidance: expected none with data.labels=false, got {config.probes.guidance}; set data.labels=true"
        )
    if config.probes.per_class:
        raise UserError("probes.per_class: expected false with data.labels=false, got true; set data.labels=true")


def check_trained(config: Config) -> None:
    """Raise `UserError` for a run with labels that trains no network."""
    if config.data.labels and config.module.kind != "edm":
        raise UserError(
            f"data.labels: expected false with module.kind={config.module.kind}, which has no classes, got true; for "
            "one class set data.labels=false, and of a teacher linear.labels=c"
        )
    if config.probes.guidance and not config.model.label_dropout:
        raise UserError(
            f"probes.guidance: expected model.label_dropout above 0, so that the network knows images without a class, "
            f"got 0 and guidance of {', '.join(f'{weight:g}' for weight in config.probes.guidance)}"
        )
