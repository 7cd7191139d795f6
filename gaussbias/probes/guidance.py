"""Classifier-free guidance: what it adds at each noise level, and what samples become of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torchmetrics import Metric

from gaussbias import catalogue
from gaussbias.catalogue import Entry
from gaussbias.denoisers import Evaluate, GaussianDenoiser, at_levels, guided, unlabelled
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.frechet import Features
from gaussbias.metrics.guidance import PARTS, GuidanceTerm
from gaussbias.probes.bank import DrawValues, SampleBatch, SampleValues, Values
from gaussbias.probes.base import DrawProbe, Probe
from gaussbias.probes.evaluate import evaluate
from gaussbias.probes.frechet import FrechetProbe
from gaussbias.probes.generalization import GeneralizationProbe
from gaussbias.probes.novelty import NoveltyProbe
from gaussbias.probes.references import GAUSSIAN, References
from gaussbias.probes.samples import SampleAgreementProbe
from gaussbias.system.drawer import Picture
from gaussbias.system.files import complete
from gaussbias.system.run_folder import RunFolder

SHOWN, DIRECTIONS = 10, 2
"""Classes in a picture, and directions of the contrast of each sign."""
LARGEST = 1024
"""Numbers of an image up to which the contrast is taken apart: it takes an eigendecomposition a level and class."""


class GuidanceProbe(DrawProbe):
    """The term of guidance, `D(x, c) - D(x)`, and how much of it the Gaussians of class and of all images explain.

    See `gaussbias.metrics.guidance`. The denoiser is evaluated at each draw without its class as well. For images of
    more than 1,024 numbers both parts of the contrast are one.

    Args:
        references: Of a class, which know the Gaussian of all images.
    """

    entries = tuple(catalogue.GUIDANCE.values())

    def __init__(self, references: References) -> None:
        super().__init__(references)
        if references.whole is None:
            raise ValueError("Expected `references` of a class, with the Gaussian of all images, but got others.")
        self.whole = references.whole.gaussian
        self._joined: list[GuidanceProbe] = [self]
        self.split = references.gaussian.mean.numel() <= LARGEST
        parts = PARTS if self.split else ("shift",)
        self.pools = {pool: GuidanceTerm(self.bank.blocks, len(self.bank.sigmas), parts) for pool in self.bank.names}

    def join(self, others: Sequence[Probe]) -> None:
        """Take those of other classes, for pictures of the parts of all."""
        self._joined = [self, *(other for other in others if isinstance(other, GuidanceProbe))]

    def pictures(self, folder: Path, kimg: float) -> list[Picture]:
        """Write what the parts look like, and say what shows them."""
        sigmas = self.bank.sigmas
        sigma = sorted(sigmas)[len(sigmas) // 2]
        every = [probe.parts_at(sigma) for probe in self._joined[:SHOWN]]
        tiles = {name: torch.stack([parts[name] for parts in every]) for name in every[0]}
        about = {
            "names": json.dumps(list(tiles)),
            "classes": ", ".join(str(probe.bank.label) for probe in self._joined[:SHOWN]),
            "sigma": f"{sigma:.3g}",
        }
        with complete(RunFolder(folder).guidance) as temporary:
            save_file({name: value.cpu().contiguous() for name, value in tiles.items()}, temporary, about)
        path = RunFolder(folder).figures / "guidance.png"
        return [Picture(catalogue.GUIDANCE_PARTS.name, "gaussbias.figures:draw_guidance_now", (folder,), path)]

    def parts_at(self, sigma: float) -> dict[str, Tensor]:
        """What the parts look like at a noise level, uint8 (C, H, W); all but the mean are stretched, and 0 is grey."""
        centre, stretched = self.references.mean, self.references.display.stretched
        shown = {
            "mean of the class": self.references.display(centre),
            "mean shift": stretched(centre - self.whole(centre[None], sigma)[0]),
        }
        if not self.split:
            return shown

        basis = self._contrast(sigma)[1].T
        for number in range(DIRECTIONS):
            for name, direction in (("positive", basis[-1 - number]), ("negative", basis[number])):
                sign = 1 if float(direction.sum()) >= 0 else -1  # an eigenvector has none
                shown[f"{name} {number + 1}"] = stretched(sign * direction.view_as(centre))
        return dict(sorted(shown.items(), key=lambda item: item[0].startswith("negative")))

    def named(self, quantity: str) -> str:
        """A name of the group `guidance`."""
        return catalogue.GUIDANCE[quantity].name

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        without = at_levels(unlabelled(denoiser), batch.x, batch.sigmas)
        of_class = self.references.at(GAUSSIAN, batch)
        of_all = at_levels(self.whole, batch.x, batch.sigmas)
        centre, sigmas = self.references.mean, batch.sigmas.tolist()
        shift = torch.stack([centre - self.whole(centre[None], sigma) for sigma in sigmas])
        contrast = (of_class - of_all - shift).flatten(2)
        parts = {"shift": shift.flatten(2)}
        if self.split:
            levels = zip((batch.x - centre).flatten(2).double(), sigmas, strict=True)
            positive = torch.stack([self._positive(centred, sigma) for centred, sigma in levels])
            parts |= {"positive": positive, "negative": contrast - positive}
        else:
            parts["contrast"] = contrast
        self.pools[batch.pool].update((batch.output - without).flatten(2), parts, batch.block)

    def _positive(self, centred: Tensor, sigma: float) -> Tensor:
        """The part of `(S_c - S)(x - mu_c)` of positive eigenvalues, at points less the mean of the class (m, d)."""
        eigenvalues, basis = self._contrast(sigma)
        kept = eigenvalues > 0
        return (centred @ basis[:, kept] * eigenvalues[kept]) @ basis[:, kept].mT

    def _contrast(self, sigma: float) -> tuple[Tensor, Tensor]:
        """Eigenvalues (d,), ascending, and eigenvectors (d, d) of `S_c - S`, float64; made once."""

        def make() -> tuple[Tensor, Tensor]:
            own, every = (_filter(gaussian, sigma) for gaussian in (self.references.gaussian, self.whole))
            eigenvalues, basis = torch.linalg.eigh(own - every)
            return eigenvalues, basis

        return self.references.once(f"contrast at {sigma:g}", make)


def _filter(gaussian: GaussianDenoiser, sigma: float) -> Tensor:
    """`Sigma (Sigma + sigma^2)^-1`, (d, d), float64."""
    basis, lam = gaussian.eigenvectors.double(), gaussian.eigenvalues.double()
    result: Tensor = (basis * (lam / (lam + sigma**2))) @ basis.mT
    return result


class GuidedSamplesProbe(Probe):
    """Samples of `D(x) + w (D(x, c) - D(x))`, measured as those without guidance are, beside D_G's with the same w.

    Args:
        references: Of a class, which know the Gaussian of all images.
        weight: w.
        features: A network of your own for `samples/fid`.
    """

    needs_samples = True

    def __init__(self, references: References, weight: float, features: Features | None = None) -> None:
        super().__init__(references)
        self.weight = weight
        own = references.guided(weight)
        self.inner: list[Probe] = [
            GeneralizationProbe(own),
            SampleAgreementProbe(own),
            FrechetProbe(own),
            NoveltyProbe(own),
            *([FrechetProbe(own, features)] if features is not None else []),
        ]
        self.entries: Sequence[Entry] = [
            catalogue.guided_entry(entry, weight) for probe in self.inner for entry in probe.entries
        ]

    def metrics(self) -> Iterable[Metric]:
        """Those of all that is measured."""
        return [metric for probe in self.inner for metric in probe.metrics()]

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        for probe in self.inner:
            probe.to(device)

    def reset(self) -> None:
        """Forget the last measurement."""
        for probe in self.inner:
            probe.reset()

    def update(self, batch: Values, denoiser: Evaluate) -> None:
        """Draw guided samples from the latents of a block, and measure them."""
        if not isinstance(batch, SampleValues):
            return
        chosen = guided(denoiser, self.weight)
        latents = SampleBatch(batch.block, batch.start, batch.sigmas, batch.latents, batch.method, label=batch.label)
        values = evaluate(chosen, latents)
        for probe in self.inner:
            probe.update(values, chosen)

    def measured(self) -> dict[str, Estimate]:
        """What means something as a mean over classes."""
        return self._named([probe.measured() for probe in self.inner])

    def finish(self, estimates: dict[str, Estimate], alike: float = 1.0) -> dict[str, Estimate]:
        """What was measured, with intervals and values over their errors."""
        start = catalogue.guided("", self.weight)
        plain = {name.removeprefix(start): estimate for name, estimate in estimates.items()}
        found: dict[str, Estimate] = {}
        for probe in self.inner:
            own = {entry.name for entry in probe.entries}
            mine = {name: estimate for name, estimate in plain.items() if name in own}
            found |= self._named([probe.finish(mine, alike)]) if mine else {}
        return found

    def result(self) -> dict[str, Estimate]:
        """What was measured, by logged name."""
        return self._named([probe.result() for probe in self.inner])

    def _named(self, results: Sequence[dict[str, Estimate]]) -> dict[str, Estimate]:
        return {catalogue.guided(name, self.weight): estimate for found in results for name, estimate in found.items()}
