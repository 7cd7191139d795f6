"""Denoisers that can be written down: functions of the training images, which no training has to find."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.theories.bootstrap import BootstrapDenoiser, bootstraps
from gaussbias.denoisers.theories.empirical import EmpiricalDenoiser
from gaussbias.denoisers.theories.equivariant import EquivariantDenoiser
from gaussbias.denoisers.theories.gaussian import GaussianDenoiser
from gaussbias.denoisers.theories.local import LocalDenoiser
from gaussbias.denoisers.theories.mixture import MixtureDenoiser, clustered, mixture_of
from gaussbias.denoisers.theories.scaled import ScaledDenoiser
from gaussbias.denoisers.theories.smoothed import SmoothedDenoiser
from gaussbias.denoisers.theories.wiener import WienerDenoiser
from gaussbias.moments import Eigenmoments

Theory = Callable[[Tensor, Eigenmoments, bool], Denoiser]
"""Makes a denoiser from training images (N, C, H, W), their moments, and whether their mirrored copies count."""
Family = Callable[[Tensor, Eigenmoments, bool, float], Denoiser]
"""The same for each value of a number: how far, how many, or how large."""
ALWAYS = ("gaussian", "empirical")
"""Theories that every denoiser is compared with."""
THEORIES: dict[str, Theory] = {
    "gaussian": lambda images, moments, flip: GaussianDenoiser(moments),
    "empirical": lambda images, moments, flip: EmpiricalDenoiser(images, flip),
}
"""By name: a theory of a file of its own takes a line here, and `probes.theories` asks for it."""
FAMILIES: dict[str, Family] = {
    "bootstrap": lambda images, moments, flip, h: BootstrapDenoiser(images, moments, h, flip),
    "mixture": lambda images, moments, flip, count: clustered(images, min(whole(count), len(images)), flip),
    "local": lambda images, moments, flip, window: LocalDenoiser(images, whole(window), flip),
    "equivariant": lambda images, moments, flip, window: EquivariantDenoiser(images, whole(window), flip),
    "wiener": lambda images, moments, flip, window: WienerDenoiser(moments, whole(window)),
    "smoothed": lambda images, moments, flip, c: SmoothedDenoiser(images, c, flip=flip),
}
"""By name, those that have a number: `probes.theories` asks for `name:number`."""


def whole(number: float) -> int:
    """A whole number; raises `ValueError` for another one."""
    if number % 1 != 0:  # not for what is infinite either
        raise ValueError(f"Expected a whole number but got {number:g}.")
    return int(number)


def theory(family: str, number: float) -> Theory:
    """The theory of a family for a number, as `Ruler(theories=...)` takes it; `ValueError` for no family.

    >>> theory("local", 3)(images, moments, False)  # doctest: +SKIP
    LocalDenoiser()
    """
    if family not in FAMILIES:
        raise ValueError(f"Expected a family of {', '.join(FAMILIES)} but got {family!r}.")
    return lambda images, moments, flip: FAMILIES[family](images, moments, flip, number)


__all__ = [
    "ALWAYS",
    "FAMILIES",
    "THEORIES",
    "BootstrapDenoiser",
    "EmpiricalDenoiser",
    "EquivariantDenoiser",
    "Family",
    "GaussianDenoiser",
    "LocalDenoiser",
    "MixtureDenoiser",
    "ScaledDenoiser",
    "SmoothedDenoiser",
    "Theory",
    "WienerDenoiser",
    "bootstraps",
    "clustered",
    "mixture_of",
    "theory",
]
