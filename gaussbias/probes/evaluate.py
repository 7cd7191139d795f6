"""A denoiser's values on one batch of the probe bank, which all probes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from gaussbias.denoisers import Evaluate, at_levels, given
from gaussbias.numerics.precision import full_precision
from gaussbias.probes.bank import Batch, DrawBatch, DrawValues, SampleBatch, SampleValues, Values
from gaussbias.sampling import sample


@overload
def evaluate(denoiser: Evaluate, batch: DrawBatch) -> DrawValues: ...
@overload
def evaluate(denoiser: Evaluate, batch: SampleBatch) -> SampleValues: ...
@overload
def evaluate(denoiser: Evaluate, batch: Batch) -> Values: ...
def evaluate(denoiser: Evaluate, batch: Batch) -> Values:
    """Evaluate a denoiser once on a batch of draws, or draw samples from a batch of latents; in float32.

    The points of the pool `trajectory` lie on the denoiser's own path from latents, at the noise levels of the batch.
    A `validation_step` returns this.

    Args:
        denoiser: Called with images (B, C, H, W) and noise levels, one or (B,); one with classes is taken at that of
            the batch.
        batch: From a probe bank.

    Returns:
        The batch with the denoiser's values, or with its samples.
    """
    denoiser = given(denoiser, batch.label)
    if isinstance(batch, SampleBatch):
        samples, path = _solve(denoiser, batch.latents, batch.sigmas.tolist(), batch.method)
        return SampleValues(**vars(batch), samples=samples, path=path)
    sigmas = batch.sigmas.tolist()
    if batch.steps is None:
        x = torch.stack([batch.x0 + sigma * batch.eps for sigma in sigmas])
    else:
        steps = batch.steps.tolist()
        _, path = _solve(denoiser, batch.eps, steps, batch.method)
        x = path[[steps.index(sigma) for sigma in sigmas]].to(batch.eps.dtype)
    return DrawValues(**vars(batch), x=x, output=at_levels(denoiser, x, batch.sigmas))


def _solve(denoiser: Evaluate, latents: Tensor, sigmas: Sequence[float], method: str) -> tuple[Tensor, Tensor]:
    with full_precision(latents.device):
        samples, path = sample(denoiser, latents, sigmas, method, path=True)
    return samples, path
