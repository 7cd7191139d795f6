"""Denoisers that can be written down: functions of the training images, which no training has to find."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.theories.bootstrap import BootstrapDenoiser
from gaussbias.denoisers.theories.empirical import EmpiricalDenoiser
from gaussbias.denoisers.theories.equivariant import EquivariantDenoiser
from gaussbias.denoisers.theories.gaussian import GaussianDenoiser
from gaussbias.denoisers.theories.local import LocalDenoiser
from gaussbias.denoisers.theories.mixture import MixtureDenoiser, clustered, mixture_of
from gaussbias.denoisers.theories.smoothed import SmoothedDenoiser
from gaussbias.denoisers.theories.wiener import WienerDenoiser
from gaussbias.moments import Eigenmoments

Theory = Callable[[Tensor, Eigenmoments, bool], Denoiser]
"""Makes a denoiser from training images (N, C, H, W), their moments, and whether their mirrored copies count."""
ALWAYS = ("gaussian", "empirical")
"""Theories that every denoiser is compared with."""
THEORIES: dict[str, Theory] = {
    "gaussian": lambda images, moments, flip: GaussianDenoiser(moments),
    "empirical": lambda images, moments, flip: EmpiricalDenoiser(images, flip),
}
"""By name: a theory of a file of its own takes a line here, and `probes.theories` asks for it."""

__all__ = ["ALWAYS", "THEORIES", "EmpiricalDenoiser", "GaussianDenoiser", "Theory"]
