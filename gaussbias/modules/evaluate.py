"""What a `validation_step` returns: the denoiser's values on one batch of the probe bank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gaussbias.denoisers import Evaluate, at_levels
from gaussbias.numerics.precision import full_precision
from gaussbias.sampling import sample


def evaluate(denoiser: Evaluate, batch: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a denoiser once on a batch of draws, or draw samples from a batch of latents; in float32.

    The points of pool `trajectory` lie on the denoiser's own path from latents, at the noise levels of the batch.

    Args:
        denoiser: Called with images (B, C, H, W) and noise levels, one or (B,).
        batch: From a probe loader: `pool`, `block`, `sigma` (S,), with `x0` and `eps` (m, C, H, W); or, for
            pools `samples` and `trajectory`, with `latents` (m, C, H, W) and `method`; for the latter also with
            `steps`, the descending noise levels of the path.

    Returns:
        The batch with `x` and `output`, each (S, m, C, H, W); or with `samples` (m, C, H, W), and `path`, the
        states on the way to them (S + 1, m, C, H, W), float64.
    """
    sigmas = batch["sigma"].tolist()
    if batch["pool"] == "samples":
        samples, path = _solve(denoiser, batch, sigmas)
        return {**batch, "samples": samples, "path": path}
    if "latents" in batch:
        steps = batch["steps"].tolist()
        _, path = _solve(denoiser, batch, steps)
        x = path[[steps.index(sigma) for sigma in sigmas]].to(batch["latents"].dtype)
    else:
        x = torch.stack([batch["x0"] + sigma * batch["eps"] for sigma in sigmas])
    return {**batch, "x": x, "output": at_levels(denoiser, x, batch["sigma"])}


def _solve(denoiser: Evaluate, batch: dict[str, Any], sigmas: Sequence[float]) -> tuple[Tensor, Tensor]:
    with full_precision(batch["latents"].device):
        samples, path = sample(denoiser, batch["latents"], sigmas, batch["method"], path=True)
    return samples, path
