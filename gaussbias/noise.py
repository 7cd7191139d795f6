"""Noise levels: the training distribution, the measurement grid and their names.

`sigma` is always a standard deviation in the units of the data, images in [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SIGMA_MIN = 0.002
SIGMA_MAX = 80.0
BAND = (0.1, 20.0)
"""The intermediate noise levels, where denoisers differ; averages over sigma are taken there."""


def training_sigmas(normal: Tensor, P_mean: float, P_std: float) -> Tensor:
    """Log-normal noise levels, `ln sigma ~ N(P_mean, P_std^2)`, from standard normal draws (EDM, Table 1)."""
    return (P_mean + P_std * normal).exp()


def karras_sigmas(
    steps: int, sigma_min: float = SIGMA_MIN, sigma_max: float = SIGMA_MAX, rho: float = 7.0
) -> list[float]:
    """Noise levels from `sigma_max` down to `sigma_min`, both included (EDM, Eq. 5, arXiv 2206.00364).

    >>> [round(s, 3) for s in karras_sigmas(10)]
    [80.0, 42.415, 21.109, 9.723, 4.066, 1.502, 0.47, 0.117, 0.02, 0.002]
    """
    if steps < 2:
        raise ValueError(f"Expected `steps` to be at least 2 but got {steps}.")
    top, bottom = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [(top + i / (steps - 1) * (bottom - top)) ** rho for i in range(steps)]


def sigma_name(sigma: float) -> str:
    """The name of a noise level in a logged key: three digits, `p` for the point.

    >>> sigma_name(42.415189), sigma_name(0.002)
    ('42p4', '0p002')
    """
    return f"{sigma:.3g}".replace(".", "p").replace("+", "")


def sigma_of(end: str) -> float:
    """The noise level, to three digits, of the end of a logged key.

    >>> sigma_of("sigma_42p4"), sigma_of("sigma_1e-05")
    (42.4, 1e-05)
    """
    return float(end.removeprefix("sigma_").replace("p", "."))


def in_band(sigmas: Sequence[float]) -> list[int]:
    """Positions of the levels that lie in the intermediate band."""
    return [i for i, sigma in enumerate(sigmas) if BAND[0] <= sigma <= BAND[1]]


def check_sigmas(sigmas: Sequence[float]) -> None:
    """Raise `ValueError` unless the levels are positive, finite and have different names."""
    for sigma in sigmas:
        if not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"expected noise levels above 0, got {sigma:g}")
    seen: dict[str, float] = {}
    for sigma in sigmas:
        name = sigma_name(sigma)
        if name in seen:
            raise ValueError(
                f"{seen[name]!r} and {sigma!r} are both named {name} in logs; "
                "expected levels that differ in their first three digits"
            )
        seen[name] = sigma
