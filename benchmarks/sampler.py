"""Sampling with a network: what is spent outside of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case, Timed, clock, relative
from benchmarks.networks import describe, images_for, make, model_for
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample

BATCH, STEPS = 64, 18


def cases(images: Tensor) -> Iterator[Case]:
    """Against Heun's method in the dtype of the network; the limit is its evaluations of the network alone."""
    small = images_for(images)
    model, device = model_for(images.device), images.device
    denoiser = make(model, small)
    size, _ = describe(model, small)
    latents = torch.randn(BATCH, *small.shape[1:], generator=torch.Generator().manual_seed(0)).to(device)
    sigmas = karras_sigmas(STEPS)

    @torch.no_grad()
    def usual() -> Tensor:
        x = sigmas[0] * latents
        for here, there in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            slope = (x - denoiser(x, here)) / here
            end = x + (there - here) * slope
            if there > 0:
                end = x + (there - here) * (slope + (end - denoiser(end, there)) / there) / 2
            x = end
        return x

    inside = [0.0]

    def timed(x: Tensor, sigma: Tensor) -> Tensor:
        start = clock(device)
        denoised: Tensor = denoiser(x, sigma)
        inside[0] += clock(device) - start
        return denoised

    @torch.no_grad()
    def ours() -> Tensor:
        inside[0] = 0.0
        return torch.as_tensor(sample(timed, latents, sigmas))

    def network() -> Timed:
        """What the last sampling spent in the network."""
        return Timed(None, inside[0])

    with torch.no_grad():
        exact = torch.as_tensor(sample(make(model, small).double(), latents.double(), sigmas))
    name = f"Heun, {STEPS} steps"
    yield Case(name, f"{size}, B={BATCH}", usual, ours, lambda x: relative(x, exact), 0.9, floor=network)
