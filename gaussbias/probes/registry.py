"""Which probes there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gaussbias.denoisers import LocalDenoiser
from gaussbias.denoisers.theories import ALWAYS
from gaussbias.metrics.frechet import Features
from gaussbias.probes.agreement import AgreementProbe
from gaussbias.probes.base import Probe
from gaussbias.probes.best import BestTheoryProbe, LocalScaleProbe
from gaussbias.probes.distances import TheoryProbe
from gaussbias.probes.errors import ErrorsProbe
from gaussbias.probes.frechet import FrechetProbe
from gaussbias.probes.freedom import FreedomProbe
from gaussbias.probes.gap import GapProbe
from gaussbias.probes.generalization import GeneralizationProbe
from gaussbias.probes.guidance import GuidanceProbe, GuidedSamplesProbe
from gaussbias.probes.ladder import LadderProbe
from gaussbias.probes.likeness import LikenessProbe, has_samples
from gaussbias.probes.linearity import LinearityProbe
from gaussbias.probes.novelty import NoveltyProbe
from gaussbias.probes.references import LIKENED, References
from gaussbias.probes.samples import SampleAgreementProbe
from gaussbias.probes.spectrum import GainProbe, SampleSpectrumProbe

Make = Callable[[References], Probe]
"""Makes a probe, empty."""
PROBES: tuple[Make, ...] = (
    LinearityProbe,
    AgreementProbe,
    LadderProbe,
    ErrorsProbe,
    GeneralizationProbe,
    SampleAgreementProbe,
    FrechetProbe,
    NoveltyProbe,
    GapProbe,
    FreedomProbe,
    GainProbe,
    SampleSpectrumProbe,
)
"""What is always measured: a probe of a file of its own takes a line here."""


def build(
    references: References,
    also: Iterable[Make] = (),
    features: Features | None = None,
    samples: bool = True,
    theory_samples: int = LIKENED,
    guidance: Sequence[float] = (),
) -> list[Probe]:
    """The probes of a denoiser, empty: all that the bank has draws or latents for, and one for each further reference.

    Args:
        references: What they compare with.
        also: Further ones.
        features: A network of your own for `samples/fid`.
        samples: Whether samples are looked at, if the bank has latents.
        theory_samples: From how many latents theories make samples as well, to compare with.
        guidance: Weights of guidance by the class whose samples are looked at as well, for references of a class.
    """
    there = samples and references.bank.samples > 0
    pools = set(references.bank.names)

    def fits(make: Make | Probe) -> bool:
        return (there or not getattr(make, "needs_samples", False)) and pools >= set(getattr(make, "needs_pools", ()))

    def all_of(makers: Iterable[Make]) -> list[Probe]:
        return [make(references) for make in makers if fits(make)]

    made = all_of(PROBES)
    if features is not None and there:
        made.append(FrechetProbe(references, features))
    made += [GuidanceProbe(references)] if guidance else []
    made += [GuidedSamplesProbe(references, weight, features) for weight in guidance if there]
    made += all_of(also)
    if len(references) > len(ALWAYS):  # probes add some as well
        names = (*ALWAYS, *references.others)
        made += [TheoryProbe(references, name) for name in names]
        if there and theory_samples:
            sampled = [name for name in names if has_samples(references[name], references)]
            made += [LikenessProbe(references, name, theory_samples) for name in sampled]
        made += all_of([BestTheoryProbe])
    if sum(isinstance(references[name], LocalDenoiser) for name in references.others) > 1:
        made.append(LocalScaleProbe(references))
    return [probe for probe in made if fits(probe)]
