"""Bias and variance of denoisers over training sets: pairs of runs, evaluated on one held-out bank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from gaussbias import config as configuration
from gaussbias.analysis import Study, Value
from gaussbias.analysis.values import difference
from gaussbias.analysis.variance import Pair, Parts, pairs
from gaussbias.checkpoints import load
from gaussbias.denoisers import Denoiser, GaussianDenoiser
from gaussbias.history.measurements import quantile
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.variance import BiasVariance
from gaussbias.modules import build_data
from gaussbias.moments import Eigenmoments
from gaussbias.noise import in_band
from gaussbias.probes import DrawBatch, ProbeBank, evaluate
from gaussbias.report.claims import Claim, judge, told
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write_rows
from gaussbias.system.run_folder import RunFolder

DRAWS = 256
"""Draws of held-out images, at most."""
log = logging.getLogger("gaussbias")


def compare(study: Study) -> list[Parts]:
    """The parts of all pairs of a study, at all times whose checkpoints both runs have.

    Pairs whose images or weights cannot be read are left out, which is said.
    """
    found: list[Parts] = []
    for pair in pairs(study.runs):
        try:
            found += _compare(pair)
        except UserError as error:
            log.warning("bias and variance of %s and %s are left out: %s", pair.first.name, pair.second.name, error)
    return found


def _compare(pair: Pair) -> Iterator[Parts]:
    folders = [RunFolder(run.folder or ".") for run in (pair.first, pair.second)]
    config = configuration.load(folders[0].config)
    if config.data.labels:
        raise UserError("they are class-conditional, and this section does not separate classes")
    images = build_data(config)
    count = min(DRAWS, images.bank.block * images.bank.blocks)
    bank = ProbeBank({"heldout": images.heldout}, count, images.bank.sigmas, flip=images.flip, seed=images.bank.seed)
    gaussians = [GaussianDenoiser(_moments(folder.moments)) for folder in folders]
    baseline = _parts(gaussians, bank)
    size = config.train.batch_size / 1000
    steps = [
        {int(file.stem) for file in folder.checkpoints.glob("*.ckpt") if file.stem.isdigit()} for folder in folders
    ]
    for step in sorted(steps[0] & steps[1]):
        networks = [load(folder.checkpoints / f"{step:08d}.ckpt").denoiser for folder in folders]
        own = _parts(networks, bank)
        yield Parts(
            pair,
            step * size,
            np.array(bank.sigmas),
            *own["bias"],
            *own["variance"],
            baseline["bias"][0],
            baseline["variance"][0],
        )


def _moments(file: Path) -> Eigenmoments:
    moments = Eigenmoments.load(file)
    if moments is None:
        raise UserError(f"expected the moments of the training images at {file}, found others")
    return moments


def _parts(denoisers: Sequence[Denoiser], bank: ProbeBank) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values and standard errors (S + 1,) of each part."""
    metric = BiasVariance(bank.blocks, len(bank.sigmas))
    with torch.no_grad():
        for number in bank.numbers("heldout", 0, 1):
            batch = bank.batch("heldout", number)
            assert isinstance(batch, DrawBatch)
            first, second = (evaluate(denoiser, batch).output for denoiser in denoisers)
            metric.update(first, second, batch.x0, number)
    metric.compute()
    return {name: _with_band(estimate, bank.sigmas) for name, estimate in metric.estimates.items()}


def _with_band(estimate: Estimate, sigmas: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    band = estimate.mean(in_band(sigmas) or range(len(sigmas)))
    parts = ((estimate.value, band.value), (estimate.se, band.se))
    values, errors = (torch.cat([levels, mean[None]]).numpy() for levels, mean in parts)
    return values, errors


def write(found: Sequence[Parts], path: Path) -> None:
    """Write a csv file, a row for each pair, time and noise level.

    Raises:
        UserError: If it cannot be written.
    """
    names = ("bias", "bias_se", "variance", "variance_se", "gaussian_bias", "gaussian_variance")
    rows: list[list[object]] = []
    for parts in found:
        pair = parts.pair
        about = pair.kind, pair.first.name, pair.second.name, pair.first.images, pair.first.channels, parts.kimg
        for level, sigma in enumerate([*map(repr, parts.sigmas.tolist()), "band"]):
            rows.append([*about, sigma, *(float(getattr(parts, name)[level]) for name in names)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, ("kind", "first", "second", "images", "channels", "kimg", "sigma", *names), rows)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None


def claims(found: Sequence[Parts]) -> list[Claim]:
    """Whether the variance over training images falls with N, at the end of training."""
    last = ends(found, "halves")
    if len(last) < 2:
        return []
    values = {parts.pair.first.images: _value(parts.variance, parts.variance_se) for parts in last}
    few, many = min(values), max(values)
    said = "; ".join(
        f"N = {parts.pair.first.images:,}: V {told(values[parts.pair.first.images])} of the networks, "
        f"{parts.gaussian_variance[-1]:.3g} of their Gaussians, B {told(_value(parts.bias, parts.bias_se))}"
        for parts in last
    )
    seeds = "; ".join(
        f"N = {parts.pair.first.images:,}: {told(_value(parts.variance, parts.variance_se))}"
        for parts in ends(found, "seeds")
    )
    said += f". V of two seeds on the same images, {seeds}" if seeds else ""
    text = "The variance of the denoiser over training images falls with N."
    return [Claim("Kadkhodaie et al. 2024", text, said, judge(difference(values[few], values[many])))]


def ends(found: Sequence[Parts], kind: str) -> list[Parts]:
    """The last of each pair of a kind, in the order of N."""
    last = {(parts.pair.first.name, parts.pair.second.name): parts for parts in found if parts.pair.kind == kind}
    return sorted(last.values(), key=lambda parts: parts.pair.first.images)


def _value(values: np.ndarray, errors: np.ndarray) -> Value:
    return Value(float(values[-1]), float(errors[-1]), quantile(16) * float(errors[-1]), 2)
