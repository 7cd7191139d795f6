"""Measures the weights of a run after the fact, with as many draws as asked for."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from gaussbias.checkpoints import labels_of, load, newest
from gaussbias.config import Config
from gaussbias.config.checks.labels import check_trained
from gaussbias.data.images import fingerprint
from gaussbias.modules import build_data
from gaussbias.moments import read_or_estimate
from gaussbias.noise import in_band
from gaussbias.numerics.blocks import BLOCKS
from gaussbias.probes import Instruments, LadderProbe, Measured, Probe, References, build
from gaussbias.probes.audit import samples_of
from gaussbias.probes.compared import compared
from gaussbias.probes.cost import counted, evaluations
from gaussbias.system.bars import Advance
from gaussbias.system.run_folder import RunFolder
from gaussbias.training.auditing import Audited, Audits, audit
from gaussbias.training.devices import find_accelerator, find_device
from gaussbias.training.others import check_fits, load_further
from gaussbias.training.resuming import check_images
from gaussbias.training.run import quieten


def measure(
    config: Config,
    folder: Path,
    checkpoint: Path | None = None,
    target: float | None = None,
    advance: Advance = lambda name, done, total: None,
    audits: Audits | None = None,
) -> tuple[Measured, Audited]:
    """Measure linearity, distances and the error ladder of a run's weights on the draws of `config.probes`.

    Blocks are streamed: memory does not grow with the number of draws.

    Args:
        config: The run's, with the probes to measure with.
        folder: The run's.
        checkpoint: Whose weights; `None` takes the newest of the run.
        target: Stop once the standard error of the affine part is at most this share of the total (means over the
            intermediate band, in every pool).
        advance: Told how far it is.
        audits: Audits of the first of the weights, with samples of its own.

    Returns:
        What was measured, and what the audits found.

    Raises:
        UserError: If the run has no weights, or the images are not those that it was trained on.
    """
    quieten()
    check_trained(config)
    device = find_device(find_accelerator(config))
    last = RunFolder(folder).last  # an export has one kind of weights, a checkpoint both
    raw = "raw" in config.probes.weights and last.exists()
    file = checkpoint or (last if raw else newest(folder))
    loaded = {kind: load(file, kind, labels_of(config)) for kind in config.probes.weights}
    kimg = next(iter(loaded.values())).kimg
    images = build_data(config)
    name = fingerprint(images.images, images.flip)
    check_images(folder, name)
    moments = read_or_estimate(RunFolder(folder).moments, images.images, images.flip, name, device)
    for weights in loaded.values():
        check_fits(weights, images.bank, f"--checkpoint: {file}")
        weights.denoiser.to(device).at_once = config.train.microbatch
    alone = replace(config, probes=replace(config.probes, surrogate=None))
    others, also = load_further(alone, images.bank)

    guidance = config.probes.guidance

    def make(references: References) -> dict[str, list[Probe]]:
        return {kind: build(references, also, samples=False, guidance=guidance) for kind in loaded}

    known = compared(images.set, moments, others, device=device, keep=False)
    instruments = known.instruments(make, config.probes.per_class)
    instruments.to(device)
    denoisers = {kind: weights.denoiser for kind, weights in loaded.items()}
    done, total = 0, evaluations(images.bank, samples=False, guidance=guidance)
    with ExitStack() as told:
        for kind, denoiser in denoisers.items():
            what = kind if len(denoisers) > 1 else "draws"
            told.enter_context(counted(denoiser, partial(advance, f"{what} of {folder}"), total))
        for number in instruments.measure(denoisers, device, samples=False):
            done = number + 1
            if target is not None and done >= BLOCKS and _reached(instruments, target):
                break
    measured = instruments.result(kimg, done * images.bank.block)
    if not audits:
        return measured, Audited([], [])
    denoiser = next(iter(denoisers.values()))
    samples = samples_of(denoiser, images.bank, device)
    return measured, audit(denoiser, instruments.references, config, folder, kimg, audits, samples, advance)


def _reached(instruments: Instruments, target: float) -> bool:
    """Whether the affine part, or where it is not known the total, is known well enough in every pool."""
    sigmas = instruments.bank.sigmas
    band = in_band(sigmas) or range(len(sigmas))
    for probe in instruments.all():
        if not isinstance(probe, LadderProbe):
            continue
        for metric in probe.pools.values():
            metric.compute()
            part = metric.estimates.get("affine", metric.estimates["total"]).mean(band)
            if not float(part.se) <= target * float(metric.estimates["total"].mean(band).value):
                return False
    return True
