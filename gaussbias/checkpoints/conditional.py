"""What `labels` makes of a class-conditional network: a denoiser of one class, a mean over classes, or all of them."""

from __future__ import annotations

from torch import nn

from gaussbias.backbones.labelled import LabelledBackbone, label_rows
from gaussbias.config import Config

MIXTURE = "mixture"
"""As labels: the denoisers of all classes, weighted by how likely each is for a noisy image."""
DATA = "data"
"""As labels: those of the images that it is measured on."""


def labels_of(config: Config) -> str | None:
    """The labels with which the networks of a run are loaded: those of its images, if it was told them."""
    return DATA if config.data.labels else None


def network_labels(labels: str | None) -> str | None:
    """The labels with which a network is loaded: a mixture is made of all its classes."""
    return DATA if labels == MIXTURE else labels


def conditioned(network: nn.Module, classes: int, labels: str | None, none: bool = True) -> tuple[nn.Module, int]:
    """A network as labels ask for, and how many classes it still tells apart.

    Args:
        network: Called with images, c_noise, and with classes one-hot rows (B, classes).
        classes: Its number of classes; 0 has none.
        labels: The number of a class, `average`, `none`, or `data`, which keeps them all.
        none: Whether it can be told no class.

    Raises:
        ValueError: For labels of a network without classes, and for none of one with some.
    """
    if not classes:
        if labels is not None:
            raise ValueError(f"it has no classes: expected no labels, got {labels}")
        return network, 0
    if labels == DATA:
        return network, classes
    number = labels is not None and labels.isdecimal() and int(labels) < classes
    if not number and labels not in ("average", "none" if none else "average"):
        told = "data (those of the images), average, none or" if none else "data (those of the images), average or"
        raise ValueError(
            f"it is class-conditional, with {classes} classes: expected labels, which are {told} the number of a class "
            f"from 0 to {classes - 1}, got {labels}"
        )
    return LabelledBackbone(network, label_rows(str(labels), classes)), 0
