"""What denoisers are compared with on a set of images, and what measures them: on all at once, or on each class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gaussbias.denoisers import Denoiser
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.probes.bank import ProbeBank
from gaussbias.probes.base import Probe
from gaussbias.probes.by_class import ByClass
from gaussbias.probes.classes import ClassBanks
from gaussbias.probes.instruments import Instruments
from gaussbias.probes.references import CACHE_BYTES, References

Others = Callable[[ProbeBank, Tensor, Eigenmoments], Mapping[str, Denoiser]]
"""Makes further denoisers to compare with by name, of draws, training images and their moments."""
Makes = Callable[[References], Mapping[str, Sequence[Probe]]]
"""Makes probes, by weights, for references."""


@dataclass(frozen=True)
class Compared:
    """What denoisers are compared with on a set of images.

    Attributes:
        whole: References of all images.
        classes: Those of each class, if the images have labels; then these are what is measured with.
    """

    whole: References
    classes: Mapping[int, References]

    def instruments(self, make: Makes, each: bool = False) -> Instruments:
        """What measures with them.

        Args:
            make: Makes probes.
            each: Whether the values of each class are given as well.
        """
        bank = self.whole.bank
        if not isinstance(bank, ClassBanks):
            return Instruments(self.whole, make(self.whole))
        parts = {label: Instruments(references, make(references)) for label, references in self.classes.items()}
        return ByClass(self.whole, bank, parts, each)


@dataclass(frozen=True)
class ImageSet:
    """Images to measure on.

    Attributes:
        bank: Their draws; one of images with labels has banks of classes.
        images: Training images (N, C, H, W).
        heldout: Others of the same kind.
        labels: The classes of the training images (N,), if they have some.
        heldout_labels: Those of the others.
    """

    bank: ProbeBank
    images: Tensor
    heldout: Tensor
    labels: Tensor | None = None
    heldout_labels: Tensor | None = None

    def of_class(self, label: int) -> tuple[Tensor, Tensor]:
        """The training and the held-out images of a class."""
        assert self.labels is not None
        assert self.heldout_labels is not None
        return self.images[self.labels == label], self.heldout[self.heldout_labels == label]


def compared(
    data: ImageSet,
    moments: Eigenmoments,
    others: Others | None = None,
    folder: Path | None = None,
    device: torch.device | None = None,
    keep: bool = True,
) -> Compared:
    """What denoisers are compared with on a set of images.

    Args:
        data: The images.
        moments: Of all training images.
        others: Makes further denoisers.
        folder: Where values of these are kept.
        device: Where moments are estimated, if not where the images are.
        keep: Whether to keep values for another measurement.
    """
    bank = data.bank

    def references(
        own: ProbeBank,
        images: Tensor,
        heldout: Tensor,
        mean: Eigenmoments,
        room: int = CACHE_BYTES,
        whole: References | None = None,
    ) -> References:
        further = {} if others is None else others(own, images, mean)
        return References(own, images, mean, keep, device, heldout, further, folder, room, whole)

    if not isinstance(bank, ClassBanks):
        return Compared(references(bank, data.images, data.heldout, moments), {})
    whole, classes = References(bank, data.images, moments, keep, device, data.heldout), {}
    for label, own in bank.banks.items():
        images, heldout = data.of_class(label)
        mean = estimate(images, bank.flip, device)
        classes[label] = references(own, images, heldout, mean, CACHE_BYTES // len(bank.banks), whole)
    return Compared(whole, classes)
