"""The memoriser on the measurement grid."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser
from gaussbias.noise import karras_sigmas
from gaussbias.numerics import integers

HELDOUT = 256
CHECKED = 16
CHUNK = 2048


def cases(images: Tensor) -> Iterator[Case]:
    """Against distances by `cdist` and a softmax over all images, level by level."""
    training, d = images[HELDOUT:], images[0].numel()
    sigmas = karras_sigmas(10)
    x0 = to_unit(images[:HELDOUT])
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1)).to(x0)
    empirical = EmpiricalDenoiser(training).to(images.device)

    def usual() -> Tensor:
        flat = to_unit(training.flatten(1))
        levels = []
        for sigma in sigmas:
            distances = torch.cdist((x0 + sigma * eps).flatten(1), flat)
            levels.append(torch.softmax(-distances.square() / (2 * sigma**2), 1) @ flat)
        return torch.stack(levels).view(len(sigmas), *x0.shape)

    noisy = torch.stack([(x0 + sigma * eps)[:CHECKED].flatten(1) for sigma in sigmas]).double()
    scores = noisy.new_empty(len(sigmas), CHECKED, len(training))  # x.y - ||y||^2 / 2
    for start in range(0, len(training), CHUNK):
        part = to_unit(training[start : start + CHUNK].flatten(1), torch.float64)
        scores[..., start : start + CHUNK] = noisy @ part.T - part.square().sum(1) / 2
    weights = torch.softmax(scores / noisy.new_tensor(sigmas)[:, None, None].square(), -1)
    exact = torch.zeros_like(noisy)
    for start in range(0, len(training), CHUNK):
        part = to_unit(training[start : start + CHUNK].flatten(1), torch.float64)
        exact += weights[..., start : start + CHUNK] @ part

    def error(value: Tensor) -> float:
        """The largest error of a pixel."""
        return float((value[:, :CHECKED].flatten(2) - exact).abs().max())

    def ours() -> Tensor:
        return empirical.forward_grid(x0, eps, sigmas)

    # two products, and a weighted sum of all images at each of the five upper levels
    flops = 2.0 * 7 * HELDOUT * len(training) * d
    fast = empirical.as_integers(x0)
    dtype = torch.int8 if fast else torch.float32
    flops *= integers.DIGITS if fast else 1
    yield Case("D_M, 10 levels", f"d={d}, N={len(training)}, B={HELDOUT}", usual, ours, error, 5, flops, dtype)
