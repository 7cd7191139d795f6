"""Denoisers: the network's, the Gaussian's, the memoriser's and the affine surrogate's."""

from gaussbias.denoisers.base import Denoiser, Evaluate, at_levels
from gaussbias.denoisers.discrete import DiscreteDenoiser
from gaussbias.denoisers.edm import EDMDenoiser
from gaussbias.denoisers.linear import LinearDenoiser
from gaussbias.denoisers.preconditioned import (
    IDDPMDenoiser,
    PreconditionedDenoiser,
    VEDenoiser,
    VPDenoiser,
    iddpm_levels,
)
from gaussbias.denoisers.theories import THEORIES, EmpiricalDenoiser, GaussianDenoiser, Theory

__all__ = [
    "THEORIES",
    "Denoiser",
    "DiscreteDenoiser",
    "EDMDenoiser",
    "EmpiricalDenoiser",
    "Evaluate",
    "GaussianDenoiser",
    "IDDPMDenoiser",
    "LinearDenoiser",
    "PreconditionedDenoiser",
    "Theory",
    "VEDenoiser",
    "VPDenoiser",
    "at_levels",
    "iddpm_levels",
]
