"""How much of each principal component a denoiser passes on, and how much samples have of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from gaussbias import catalogue
from gaussbias.denoisers import Evaluate
from gaussbias.metrics.blocks import DrawMeans, Estimate
from gaussbias.metrics.spread import Spread
from gaussbias.probes.bank import SAMPLES, DrawValues
from gaussbias.probes.base import DrawProbe, ScoreProbe
from gaussbias.probes.references import GAUSSIAN, References


class GainProbe(DrawProbe):
    """How much D passes on of principal components of the training images, on noisy training images.

    With the eigenpairs `lam_k, u_k` of their covariance the gain is
    `lam_k / (lam_k + sigma^2) + E[(u_k . (D - D_G)(x)) (u_k . (x - mu))] / (lam_k + sigma^2)`, a diagonal entry of
    `U^T W_L U` of the affine map W_L closest to D, without a fit; D_G's is the first term. When each component is
    learnt is the spectral clock of Wang and Pehlevan 2025 (arXiv 2503.03206).
    """

    entries = (catalogue.GAIN,)
    needs_pools = ("train",)

    def __init__(self, references: References) -> None:
        super().__init__(references)
        moments = references.moments
        places = catalogue.component_places(len(moments.eigenvalues))
        self.names = [catalogue.numbered(catalogue.GAIN, place) for place in places]
        self.chosen = [place - 1 for place in places]
        self.eigenvalues = moments.eigenvalues[self.chosen].cpu().double()
        self.basis = moments.eigenvectors[:, self.chosen].double()
        self.mean = moments.mean.double()
        self.pools = {"train": DrawMeans(self.bank.blocks, len(self.bank.sigmas), self.names)} if places else {}

    def to(self, device: torch.device) -> None:
        """Move to a device."""
        super().to(device)
        self.basis, self.mean = self.basis.to(device), self.mean.to(device)

    def measured(self) -> dict[str, Estimate]:
        """Nothing: components of classes have no common order."""
        return {}

    def measure(self, batch: DrawValues, denoiser: Evaluate) -> None:
        """Measure one block."""
        gaussian = self.references.at(GAUSSIAN, batch)
        rest = (batch.output.double() - gaussian.double()).flatten(2) @ self.basis
        along = (batch.x.double().flatten(2) - self.mean) @ self.basis
        products = (rest * along).unbind(2)
        self.pools[batch.pool].update(dict(zip(self.names, products, strict=True)), batch.block)

    def on_pool(self, name: str, pool: str, estimate: Estimate) -> dict[str, Estimate]:
        """The gain from what was measured, which is on training images alone."""
        lam = self.eigenvalues[self.names.index(name)]
        variances = lam + torch.tensor(self.bank.sigmas, dtype=torch.float64).square()
        gain = replace(estimate, value=(lam + estimate.value) / variances, pseudo=(lam + estimate.pseudo) / variances)
        return super().on_pool(name, "", replace(gain, pool=pool))


class SampleSpectrumProbe(ScoreProbe):
    """The variance of samples along principal components of the training images, over that of the training images.

    `u_k^T Cov(samples) u_k / lam_k`, with the eigenpairs `lam_k, u_k` of the covariance of the training images: what
    `spectrum/gain_<i>` becomes in samples (Wang and Pehlevan 2025, arXiv 2503.03206). Exact samples of a distribution
    with the moments of the training images have 1. A sampler of few steps leaves noise where the variance is small: in
    `spectrum/samples_gaussian_<i>`, the same of D_G's samples from the same latents, too. Components without variance
    (of round-off alone) are left out.
    """

    entries = (catalogue.SAMPLE_SPREAD, catalogue.SAMPLE_SPREAD_GAUSSIAN)

    metric: Spread

    def __init__(self, references: References) -> None:
        super().__init__(references)
        eigenvalues = references.moments.eigenvalues.cpu()
        round_off = float(eigenvalues[:1].sum()) * len(eigenvalues) * torch.finfo(torch.float64).eps
        places = catalogue.component_places(len(eigenvalues))
        self.places = [place for place in places if eigenvalues[place - 1] > round_off]

    def to(self, device: torch.device) -> None:
        """Move to the device."""
        super().to(device)
        self.metric = self._spread().to(device)
        self.fixed = self.references.constant(f"spectrum of D_G's samples on {device}", self._spread)

    def _spread(self) -> Spread:
        moments, chosen = self.references.moments, [place - 1 for place in self.places]
        return Spread(self.bank.samples, moments.mean, moments.eigenvectors[:, chosen], moments.eigenvalues[chosen])

    def measured(self) -> dict[str, Estimate]:
        """Nothing: components of classes have no common order."""
        return {}

    def result(self) -> dict[str, Estimate]:
        """The variances of all ranks' samples, and of D_G's."""
        gaussian = replace(self.fixed.compute()["spread"], reference=True)
        self.metric.compute()
        found = {
            catalogue.SAMPLE_SPREAD: self.metric.estimates["spread"],
            catalogue.SAMPLE_SPREAD_GAUSSIAN: gaussian,
        }
        return {
            catalogue.numbered(entry, place): replace(spread.at(i), pool=SAMPLES)
            for entry, spread in found.items()
            for i, place in enumerate(self.places)
        }
