"""Measures the weights of a run after the fact, with as many draws as asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gaussbias import data
from gaussbias.callbacks import Baselines, LadderCallback, ProbeCallback, of_draws
from gaussbias.callbacks.base import kimg_name, measurement
from gaussbias.checkpoints import load, newest
from gaussbias.config import Config
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, PreconditionedDenoiser
from gaussbias.history import write_measurement
from gaussbias.metrics.blocks import Estimate
from gaussbias.modules import evaluate
from gaussbias.moments import read_or_estimate
from gaussbias.noise import in_band
from gaussbias.numerics.blocks import BLOCKS
from gaussbias.numerics.precision import full_precision
from gaussbias.system.bars import Advance
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.others import check_fits
from gaussbias.training.resuming import check_images
from gaussbias.training.run import quieten

SLOW = 0.1
"""Seconds for an image from which on several at once take as long each."""
SEVERAL = 32


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        kimg: How long the weights were trained; `None` if an export does not say.
        draws: Draws in each pool.
        values: By logged name.
        estimates: Of the measured ones, the pool and the blocks.
        bank: Which draws.
    """

    kimg: float | None
    draws: int
    values: dict[str, float]
    estimates: dict[str, tuple[str, Estimate]]
    bank: data.ProbeBank

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{'unknown' if self.kimg is None else kimg_name(self.kimg)}_{self.draws}"

    def write(self, file: Path) -> None:
        """Write the blocks of each value, for `gaussbias.history.compare`."""
        kimg = math.nan if self.kimg is None else self.kimg
        write_measurement(file, measurement(kimg, self.bank, self.estimates, self.values))


def measure(
    config: Config,
    folder: Path,
    checkpoint: Path | None = None,
    target: float | None = None,
    advance: Advance = lambda name, done, total: None,
) -> Measured:
    """Measure linearity, distances and the error ladder of a run's weights on the draws of `config.probes`.

    Blocks are streamed: memory does not grow with the number of draws.

    Args:
        config: The run's, with the probes to measure with.
        folder: The run's.
        checkpoint: Whose weights; `None` takes the newest of the run.
        target: Stop once the standard error of the affine part is at most this share of the total (means over the
            intermediate band, in every pool).
        advance: Told how far it is.

    Raises:
        UserError: If the run has no weights, or the images are not those that it was trained on.
    """
    quieten()
    device = find_device(find_accelerator(config))
    last = folder / "checkpoints" / "last.ckpt"  # an export has one kind of weights, a checkpoint both
    raw = "raw" in config.probes.weights and last.exists()
    file = checkpoint or (last if raw else newest(folder))
    loaded = {kind: load(file, kind) for kind in config.probes.weights}
    kimg = next(iter(loaded.values())).kimg
    images = data.build(config)
    name = fingerprint(images.images, images.flip)
    check_images(folder, name)
    moments = read_or_estimate(folder / "moments.safetensors", images.images, images.flip, name, device)
    for one in loaded.values():
        check_fits(one, images.bank, f"--checkpoint: {file}")
        one.denoiser.to(device).at_once = config.train.microbatch
    baselines = Baselines(images.bank, images.images, moments, keep=False, device=device)
    callbacks = {kind: of_draws(baselines, kind) for kind in loaded}
    everyone = [callback for these in callbacks.values() for callback in these]
    for callback in everyone:
        callback.place(device)
    denoisers = {kind: one.denoiser for kind, one in loaded.items()}
    done, total = 0, evaluations(images.bank, samples=False)
    with ExitStack() as told:
        for kind, denoiser in denoisers.items():
            what = kind if len(denoisers) > 1 else "draws"
            told.enter_context(counted(denoiser, partial(advance, f"{what} of {folder}"), total))
        for number, batch in enumerate(images.bank):
            measure_batch(denoisers, callbacks, batch, device)
            if (number + 1) % len(images.bank.names):
                continue
            done += 1
            if target is not None and done >= BLOCKS and _reached(everyone, target):
                break
    return collect(everyone, images.bank, kimg, done * images.bank.block)


def evaluations(bank: data.ProbeBank, samples: bool = True) -> int:
    """How many images a denoiser is given when it is measured on a bank: noisy ones, mixtures of two, and paths.

    Args:
        bank: The bank.
        samples: Whether samples are drawn as well.
    """

    def path(sigmas: Sequence[float]) -> int:
        return 2 * len(sigmas) - 1 if bank.sampler == "heun" else len(sigmas)

    draws, levels = bank.blocks * bank.block, len(bank.sigmas)
    each = levels * (2 * draws + bank.blocks)  # each draw, half as many mixtures of two kinds, and their mean
    total = each * len(bank.names) + (draws * path(bank.path_sigmas) if "trajectory" in bank.names else 0)
    return total + (bank.samples * path(bank.sampler_sigmas) if samples else 0)


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


def seconds_per_image(denoiser: Denoiser, bank: data.ProbeBank, device: torch.device) -> float:
    """How long a denoiser takes for an image: of one alone, and if that is short, of several at once."""
    for count in (1, 1, SEVERAL):  # what is evaluated first takes longer
        images = bank.latents(0)[:1].expand(count, *bank.shape).to(device)
        begun = time.perf_counter()
        with torch.no_grad(), full_precision(device):
            float(denoiser(images, bank.sigmas[0]).sum())  # which waits for a device
        taken = (time.perf_counter() - begun) / count
        if count == 1 and taken > SLOW:
            break
    return taken


def measure_batch(
    denoisers: Mapping[str, Denoiser],
    callbacks: Mapping[str, Sequence[ProbeCallback]],
    batch: Mapping[str, Any],
    device: torch.device,
) -> None:
    """Evaluate denoisers on a batch of a probe bank, and give each one's values to its callbacks; by the same names."""
    placed = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    with torch.no_grad(), full_precision(device):
        for kind, denoiser in denoisers.items():
            outputs = evaluate(denoiser, placed)
            for callback in callbacks[kind]:
                callback.measure(denoiser, outputs)


def collect(callbacks: Sequence[ProbeCallback], bank: data.ProbeBank, kimg: float | None, draws: int) -> Measured:
    """What callbacks have measured."""
    estimates: dict[str, tuple[str, Estimate]] = {}
    values: dict[str, float] = {}
    for callback in callbacks:
        callback.summarize()
        estimates |= callback.estimates
        values |= callback.values
    return Measured(kimg, draws, values, estimates, bank)


def _reached(callbacks: list[ProbeCallback], target: float) -> bool:
    """Whether the affine part, or where it is not known the total, is known well enough in every pool."""
    for callback in callbacks:
        if not isinstance(callback, LadderCallback):
            continue
        for metric in callback.metrics.values():
            metric.compute()
            band = in_band(callback.bank.sigmas) or range(len(callback.bank.sigmas))
            part = metric.estimates.get("affine", metric.estimates["total"]).mean(band)
            if not float(part.se) <= target * float(metric.estimates["total"].mean(band).value):
                return False
    return True
