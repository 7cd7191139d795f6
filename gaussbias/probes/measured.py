"""What a measurement of a denoiser came to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gaussbias.catalogue import SE, Entry
from gaussbias.history import Difference, Measurement, difference, kimg_name, write_measurement
from gaussbias.metrics.blocks import Estimate
from gaussbias.numerics.blocks import BLOCKS
from gaussbias.probes.bank import ProbeBank
from gaussbias.system.errors import UserError
from gaussbias.system.terminal import with_error


@dataclass(frozen=True)
class Number:
    """A value with its standard error, which is NaN where there is none.

    >>> print(Number(0.3642, 0.0091))
    0.364(9)
    """

    value: float
    se: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return with_error(self.value, self.se)


@dataclass(frozen=True)
class Measured(Mapping[str, Number]):
    """Values with errors, by logged name.

    `measured["gaussian/rmse/heldout"]` is a `Number`; `measured - earlier` has the differences of two measurements on
    the same draws, with their own errors, which are smaller than those of the values.

    Attributes:
        kimg: How long the weights were trained, in thousands of images; `None` if that is not known.
        draws: Draws in each pool.
        estimates: By logged name, with what the blocks of draws contribute.
        bank: Which draws.
        extra: Entries of values that are not in the catalogue.
    """

    kimg: float | None
    draws: int
    estimates: dict[str, Estimate]
    bank: ProbeBank
    extra: tuple[Entry, ...] = ()

    @property
    def row(self) -> dict[str, float]:
        """One row: each value, and as `<name>_se` its standard error, if it has blocks enough."""
        row: dict[str, float] = {}
        for name, estimate in self.estimates.items():
            row[name] = float(estimate.value)
            if len(estimate.pseudo) >= BLOCKS:
                row[name + SE] = float(estimate.se)
        return row

    def __getitem__(self, name: str) -> Number:
        estimate = self.estimates[name]
        return Number(float(estimate.value), float(estimate.se) if len(estimate.pseudo) >= BLOCKS else math.nan)

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def __sub__(self, other: Measured) -> dict[str, Difference]:
        """The differences of all values that can be subtracted, as `gaussbias.history.compare` gives them.

        A value is left out if one of the two lacks it, or has it on other draws, or as a mean over other noise levels.
        """
        a, b = self.measurement(), other.measurement()
        differences: dict[str, Difference] = {}
        for name in a.blocks:
            with suppress(UserError):
                differences[name] = difference(a, b, name)
        return differences

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{'unknown' if self.kimg is None else kimg_name(self.kimg)}_{self.draws}"

    def measurement(self) -> Measurement:
        """The same as `gaussbias.history` has it."""
        drawn = {name: estimate for name, estimate in self.estimates.items() if estimate.pool is not None}
        return Measurement(
            math.nan if self.kimg is None else self.kimg,
            self.bank.sigmas,
            {name: float(estimate.value) for name, estimate in self.estimates.items()},
            {name: estimate.pool for name, estimate in drawn.items() if estimate.pool is not None},
            self.bank.hashes,
            {name: estimate.pseudo.cpu().numpy() for name, estimate in drawn.items()},
        )

    def write(self, file: Path) -> None:
        """Write the blocks of each value, for `gaussbias.history.compare`."""
        write_measurement(file, self.measurement())
