"""What a measurement costs: images that a denoiser is given, and how long it takes for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gaussbias.denoisers import Denoiser, PreconditionedDenoiser
from gaussbias.metrics.linearity import points
from gaussbias.numerics.precision import full_precision
from gaussbias.probes.bank import ProbeBank

SLOW = 0.1
"""Seconds for an image from which on several at once take as long each."""
SEVERAL = 32


def path_evaluations(bank: ProbeBank, sigmas: Sequence[float]) -> int:
    """How often a denoiser is evaluated on one sampling path of these noise levels, by the bank's sampler."""
    return 2 * len(sigmas) - 1 if bank.sampler == "heun" else len(sigmas)


def evaluations(bank: ProbeBank, samples: bool = True, guidance: Sequence[float] = ()) -> int:
    """How many images a denoiser is given when it is measured on a bank: noisy ones, mixtures of two, and paths.

    Args:
        bank: The bank.
        samples: Whether samples are drawn as well.
        guidance: Weights of guidance, with which noisy images are denoised without their class as well, and paths with
            and without it.
    """
    if bank.parts != [bank]:
        return sum(evaluations(part, samples, guidance) for part in bank.parts)
    draws, levels = bank.blocks * bank.block, len(bank.sigmas)
    each = levels * (draws + bank.blocks * points(bank.block))
    total = each * len(bank.names) + (
        draws * path_evaluations(bank, bank.path_sigmas) if "trajectory" in bank.names else 0
    )
    total += levels * draws * len(bank.names) if guidance else 0
    paths = 1 + sum(1 if weight in (0, 1) else 2 for weight in guidance)
    return total + (paths * bank.samples * path_evaluations(bank, bank.sampler_sigmas) if samples else 0)


@contextmanager
def counted(denoiser: Denoiser, advance: Callable[[int, int], None], total: int) -> Iterator[None]:
    """Tell after each evaluation how many images of `total` a denoiser was given."""
    done, largest = 0, denoiser.at_once if isinstance(denoiser, PreconditionedDenoiser) else None

    def count(*call: Any) -> None:
        nonlocal done
        size = len(call[1][0])  # of the module, what it was given, and what it gave
        if largest is None or size <= largest:  # else its parts were told
            done += size
            advance(min(done, total), total)

    hook = denoiser.register_forward_hook(count)
    try:
        yield
    finally:
        hook.remove()


def seconds_per_image(denoiser: Denoiser, bank: ProbeBank, device: torch.device) -> float:
    """How long a denoiser takes for an image: of one alone, and if that is short, of several at once."""
    for count in (1, 1, SEVERAL):  # what is evaluated first takes longer
        images = bank.latents(0)[:1].expand(count, *bank.shape).to(device)
        begun = time.perf_counter()
        with torch.no_grad(), full_precision(device):
            float(denoiser.given(0)(images, bank.sigmas[0]).sum())  # which waits for a device
        taken = (time.perf_counter() - begun) / count
        if count == 1 and taken > SLOW:
            break
    return taken
