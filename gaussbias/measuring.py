"""Measures the weights of a run after the fact, with as many draws as asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gaussbias import data
from gaussbias.blocks import BLOCKS
from gaussbias.callbacks import Baselines, LadderCallback, ProbeCallback, of_draws
from gaussbias.callbacks.base import kimg_name, measurement
from gaussbias.checkpoints import load, newest
from gaussbias.config import Config
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import Denoiser, full_precision
from gaussbias.devices import find_accelerator
from gaussbias.history import write_measurement
from gaussbias.metrics.blocks import Estimate
from gaussbias.modules import evaluate
from gaussbias.moments import read_or_estimate
from gaussbias.noise import in_band
from gaussbias.references import check_fits
from gaussbias.resuming import check_images
from gaussbias.run import quieten


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
    advance: Callable[[int, int], None] = lambda done, blocks: None,
) -> Measured:
    """Measure linearity, distances and the error ladder of a run's weights on the draws of `config.probes`.

    Blocks are streamed: memory does not grow with the number of draws.

    Args:
        config: The run's, with the probes to measure with.
        folder: The run's.
        checkpoint: Whose weights; `None` takes the newest of the run.
        target: Stop once the standard error of the affine part is at most this share of the total (means over the
            intermediate band, in every pool).
        advance: Called after each block, with the blocks done and those that there are.

    Raises:
        UserError: If the run has no weights, or the images are not those that it was trained on.
    """
    quieten()
    device = torch.device("cuda" if find_accelerator(config) == "gpu" else "cpu")
    last = folder / "checkpoints" / "last.ckpt"  # an export has one kind of weights, a checkpoint both
    raw = "raw" in config.probes.weights and last.exists()
    file = checkpoint or (last if raw else newest(folder))
    loaded = {kind: load(file, kind) for kind in config.probes.weights}
    kimg = next(iter(loaded.values())).kimg
    images = data.build(config)
    name = fingerprint(images.images, images.flip)
    check_images(folder, name)
    moments = read_or_estimate(folder / "moments.safetensors", images.images, images.flip, name)
    for one in loaded.values():
        check_fits(one, images.bank, f"--checkpoint: {file}")
        one.denoiser.to(device).at_once = config.train.microbatch
    baselines = Baselines(images.bank, images.images, moments, keep=False)
    callbacks = {kind: of_draws(baselines, kind) for kind in loaded}
    everyone = [callback for these in callbacks.values() for callback in these]
    for callback in everyone:
        callback.place(device)
    denoisers = {kind: one.denoiser for kind, one in loaded.items()}
    done = 0
    for number, batch in enumerate(images.bank):
        measure_batch(denoisers, callbacks, batch, device)
        if (number + 1) % len(images.bank.names):
            continue
        done += 1
        advance(done, images.bank.blocks)
        if target is not None and done >= BLOCKS and _reached(everyone, target):
            break
    return collect(everyone, images.bank, kimg, done * images.bank.block)


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
