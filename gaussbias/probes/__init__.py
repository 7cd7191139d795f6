"""Measuring, without Lightning: the draws, what a denoiser is compared with, and one file for each probe."""

from __future__ import annotations

from gaussbias.probes.agreement import AgreementProbe
from gaussbias.probes.bank import Batch, DrawBatch, DrawValues, ProbeBank, SampleBatch, SampleValues, Values
from gaussbias.probes.base import DrawProbe, MeanProbe, Probe, SampleProbe
from gaussbias.probes.best import BestTheoryProbe, LocalScaleProbe
from gaussbias.probes.between import BetweenProbe
from gaussbias.probes.distances import SurrogateProbe, TheoryProbe
from gaussbias.probes.errors import ErrorsProbe
from gaussbias.probes.evaluate import evaluate
from gaussbias.probes.frechet import FrechetProbe
from gaussbias.probes.freedom import FreedomProbe
from gaussbias.probes.gap import GapProbe
from gaussbias.probes.generalization import GeneralizationProbe
from gaussbias.probes.instruments import Instruments
from gaussbias.probes.ladder import LadderProbe
from gaussbias.probes.likeness import LikenessProbe
from gaussbias.probes.linearity import LinearityProbe
from gaussbias.probes.measured import Measured, Number
from gaussbias.probes.novelty import NoveltyProbe
from gaussbias.probes.pictures import PicturesProbe
from gaussbias.probes.references import References
from gaussbias.probes.registry import PROBES, Make, build
from gaussbias.probes.ruler import Ruler
from gaussbias.probes.samples import SampleAgreementProbe
from gaussbias.probes.spectrum import GainProbe, SampleSpectrumProbe
from gaussbias.probes.teacher import TeacherProbe
from gaussbias.system.drawer import Picture

__all__ = [
    "PROBES",
    "AgreementProbe",
    "Batch",
    "BestTheoryProbe",
    "BetweenProbe",
    "DrawBatch",
    "DrawProbe",
    "DrawValues",
    "ErrorsProbe",
    "FrechetProbe",
    "FreedomProbe",
    "GainProbe",
    "GapProbe",
    "GeneralizationProbe",
    "Instruments",
    "LadderProbe",
    "LikenessProbe",
    "LinearityProbe",
    "LocalScaleProbe",
    "Make",
    "MeanProbe",
    "Measured",
    "NoveltyProbe",
    "Number",
    "Picture",
    "PicturesProbe",
    "Probe",
    "ProbeBank",
    "References",
    "Ruler",
    "SampleAgreementProbe",
    "SampleBatch",
    "SampleProbe",
    "SampleSpectrumProbe",
    "SampleValues",
    "SurrogateProbe",
    "TeacherProbe",
    "TheoryProbe",
    "Values",
    "build",
    "evaluate",
]
