"""Measures a class-conditional denoiser on each class, and takes the mean over classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import torch

from gaussbias.catalogue import Entry, of_class
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import Estimate
from gaussbias.noise import in_band
from gaussbias.probes.bank import Values
from gaussbias.probes.base import Probe
from gaussbias.probes.classes import ClassBanks
from gaussbias.probes.instruments import EMA, Instruments
from gaussbias.probes.references import References
from gaussbias.system.drawer import Picture
from gaussbias.system.errors import safely


class ByClass(Instruments):
    """Instruments of each class, as one.

    The denoiser is evaluated at the class of the images, and everything that it is compared with is of that class: D_G
    has the mean and covariance of its training images, D_M, the nearest images and the held-out ones are its own. Each
    value is the mean over classes, weighted by their shares of the training images, of what it is on images of one
    class; one that a class does not have is left out. Errors are stratified: what classes differ in is no error.

    Args:
        references: Of all images, whatever their class, for what looks at all samples together.
        bank: The banks of the classes.
        parts: The instruments of each class.
        each: Whether the values of each class are given as well, as `class_<c>/<name>`.
    """

    def __init__(
        self, references: References, bank: ClassBanks, parts: Mapping[int, Instruments], each: bool = False
    ) -> None:
        first = next(iter(parts.values()))
        super().__init__(references, first.probes)
        self.bank, self.parts, self.each = bank, dict(parts), each
        self.shares = [bank.shares[label] for label in parts]

    @property
    def entries(self) -> Iterator[Entry]:
        """What is measured."""
        return next(iter(self.parts.values())).entries

    def all(self) -> Iterator[Probe]:
        """The probes of all classes and weights."""
        return (probe for part in self.parts.values() for probe in part.all())

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        self.references.to(device)
        super().to(device)

    def reset(self) -> None:
        """Forget the last measurement."""
        for part in self.parts.values():
            part.reset()

    def update(self, batch: Values, denoiser: Evaluate, weights: str = EMA) -> None:
        """Measure one batch, of a class."""
        assert batch.label is not None
        self.parts[batch.label].update(batch, denoiser, weights)

    def measure(self, denoisers: Mapping[str, Evaluate], device: torch.device, samples: bool = True) -> Iterator[int]:
        """Measure denoisers on the whole bank; gives the number of each block of draws that is done in all classes."""
        self.reset()
        for numbers in zip_longest(*(part.measure(denoisers, device, samples) for part in self.parts.values())):
            yield numbers[0]

    def estimates(self) -> dict[str, Estimate]:
        """Means over classes, and on request the values of each class, by logged name."""
        found: dict[str, Estimate] = {}
        alike = 1 / sum(share**2 for share in self.shares)
        for weights in self.probes:
            for same in zip(*(part.probes[weights] for part in self.parts.values()), strict=True):
                found |= self.named(weights, self._over_classes(same, alike))
                for label, probe in zip(self.parts, same, strict=True) if self.each else ():
                    own = {of_class(name, label): estimate for name, estimate in probe.result().items()}
                    found |= self.named(weights, own)
        return found

    def _over_classes(self, same: Sequence[Probe], alike: float) -> dict[str, Estimate]:
        """What the same probe measured of each class, over them."""
        if len(same) == 1:
            return same[0].result()
        measured = [probe.measured() for probe in same]
        names = [name for name in measured[0] if all(name in values for values in measured)]
        whole = {name: over_classes([values[name] for values in measured], self.shares) for name in names}
        return same[0].finish(self._averaged_again(whole, measured), alike)

    def _averaged_again(
        self, whole: dict[str, Estimate], measured: Sequence[Mapping[str, Estimate]]
    ) -> dict[str, Estimate]:
        """Means over the band, of the levels that all classes have, where some have others."""
        ends = {Entry.end(sigma): sigma for sigma in self.bank.sigmas}
        kept = dict(whole)
        for name in whole:
            levels = [f"{name}{end}" for end in ends]
            if all(level in whole or not any(level in values for values in measured) for level in levels):
                continue
            band = [whole[name + end] for end, sigma in ends.items() if name + end in whole and in_band([sigma])]
            del kept[name]
            if band:
                values, pseudo = (torch.stack([getattr(e, part) for e in band]).mean(0) for part in ("value", "pseudo"))
                kept[name] = replace(band[0], value=values, pseudo=pseudo)
        return kept

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Those of the first class, which stand for all where they are of logged values, and samples of all classes."""
        parts = list(self.parts.values())
        weights = next(iter(self.probes))
        for first, *others in zip(*(part.probes[weights] for part in parts), strict=True):
            safely(f"pictures of {type(first).__name__}", first.join, others)
        return super().pictures(folder, kimg)


def over_classes(estimates: Sequence[Estimate], shares: Sequence[float]) -> Estimate:
    """The mean of a value over classes, with its error.

    Blocks of draws, and sampling latents, are those of all classes, and what they contribute is added up. Other
    contributions, of images, of which classes have unequal numbers, are independent: those of all classes stand side by
    side, scaled so that the squared error is `sum_c w_c^2 se_c^2`.

    Args:
        estimates: Of each class.
        shares: The weights w_c, which add up to 1.
    """
    first = estimates[0]
    if len(estimates) == 1:
        return first
    value = sum(share * each.value for share, each in zip(shares, estimates, strict=True))
    defined = torch.stack([each.defined for each in estimates]).all(0)
    assert isinstance(value, torch.Tensor)
    alike = len({each.pseudo.shape for each in estimates}) == 1
    if alike and (first.pool or len(first.pseudo) == 1):
        pseudo = sum(share * each.pseudo for share, each in zip(shares, estimates, strict=True))
        assert isinstance(pseudo, torch.Tensor)
        return replace(first, value=value, pseudo=pseudo, defined=defined)
    total = sum(len(each.pseudo) for each in estimates)
    parts = []
    for share, each in zip(shares, estimates, strict=True):
        count = len(each.pseudo)
        scale = share * (total * (total - 1) / (count * (count - 1))) ** 0.5 if count > 1 else torch.nan
        parts.append(value + scale * (each.pseudo - each.pseudo.mean(0)))
    return replace(first, value=value, pseudo=torch.cat(parts), defined=defined)
