"""Denoisers: the network's, the Gaussian's, the memoriser's and the affine surrogate's."""

from gaussbias.denoisers.base import Denoiser, Evaluate, at_levels, given, unlabelled
from gaussbias.denoisers.classes import GuidedDenoiser, MixedClasses, guided
from gaussbias.denoisers.discrete import DiscreteDenoiser
from gaussbias.denoisers.edm import EDMDenoiser
from gaussbias.denoisers.flow import FlowDenoiser
from gaussbias.denoisers.linear import LinearDenoiser
from gaussbias.denoisers.preconditioned import (
    IDDPMDenoiser,
    PreconditionedDenoiser,
    VEDenoiser,
    VPDenoiser,
    iddpm_levels,
)
from gaussbias.denoisers.theories import (
    FAMILIES,
    THEORIES,
    BootstrapDenoiser,
    EmpiricalDenoiser,
    EquivariantDenoiser,
    Family,
    GaussianDenoiser,
    LocalDenoiser,
    MixtureDenoiser,
    ScaledDenoiser,
    SmoothedDenoiser,
    Theory,
    WienerDenoiser,
    theory,
)
from gaussbias.denoisers.wrapped import wrap

__all__ = [
    "FAMILIES",
    "THEORIES",
    "BootstrapDenoiser",
    "Denoiser",
    "DiscreteDenoiser",
    "EDMDenoiser",
    "EmpiricalDenoiser",
    "EquivariantDenoiser",
    "Evaluate",
    "Family",
    "FlowDenoiser",
    "GaussianDenoiser",
    "GuidedDenoiser",
    "IDDPMDenoiser",
    "LinearDenoiser",
    "LocalDenoiser",
    "MixedClasses",
    "MixtureDenoiser",
    "PreconditionedDenoiser",
    "ScaledDenoiser",
    "SmoothedDenoiser",
    "Theory",
    "VEDenoiser",
    "VPDenoiser",
    "WienerDenoiser",
    "at_levels",
    "given",
    "guided",
    "iddpm_levels",
    "theory",
    "unlabelled",
    "wrap",
]
