"""`python -m benchmarks.surrogate RUN...`: network evaluations that a linear surrogate takes, ours and the paper's way.

For each run and noise level, how many draws (evaluations of the network) each way takes until the weights are within a
squared error of 1 % of those of a long reference fit, `||W - W_ref||_F^2 <= 0.01 ||W_ref||_F^2`:

- exact: `gaussbias.surrogate.fit_affine`. The count is the smallest number of draws from which on all larger ones that
  are tried are good enough.
- gradient: Adam on W and b from 0, batches of 256, mean squared error, inputs divided by sqrt(d), with each of the
  learning rates that the authors' code names. The count is that of the best of them at each level, the first time that
  it is good enough.

There are two independent references by least squares, so that their noise cancels: the error is `<W - W_1, W - W_2>`.
Steps of Adam draw from a store of noisy images with the network's values, and each draw is counted as an evaluation, as
the authors' code makes it. Least squares on the store is far below the error that is asked for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import training
from gaussbias import config, load_denoiser
from gaussbias.config import ModelConfig
from gaussbias.data.images import to_unit
from gaussbias.denoisers import Denoiser, at_levels
from gaussbias.modules import build_data
from gaussbias.modules.gradient import LEARNING_RATES
from gaussbias.moments import estimate
from gaussbias.surrogate import QUARTERS, Pool, Sums, fit_affine

BATCH = 256
STORE, REFERENCE = 256, 128
"""Draws per dimension in the store, and in each reference."""
GROWTH = 1.25
FIRST = 1 / 16
"""Draws per dimension that the exact fit is tried with, and how they grow."""
WIDTHS = (8, 9, 9, 8, 13, 7, 9, 8)
LONGEST = 20_000
"""Draws per dimension after which the gradient gives up."""
DIGITS_STEPS, DIGITS_SIGMAS = 200, (9.723, 1.502, 0.47)
"""Of the small comparison without any run."""


@dataclass
class Source:
    """Draws of a run's training images, and the network's values."""

    network: Denoiser
    images: Tensor
    pool: Pool
    random: torch.Generator

    def draws(self, sigma: float, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Noisy images and denoised ones along the pool's basis, in batches."""
        for start in range(0, count, BATCH):
            size = min(BATCH, count - start)
            x0 = to_unit(self.images[torch.randint(len(self.images), (size,), generator=self.random)])
            x = x0 + sigma * torch.randn(x0.shape, generator=self.random)
            with torch.no_grad():
                y = at_levels(self.network, x[None], torch.tensor([sigma], dtype=torch.float64))[0]
            yield self.pool.along(x), self.pool.along(y)

    def sums(self, sigma: float, count: int) -> Sums:
        """Of so many draws."""
        sums = Sums(len(self.pool.mean))
        for number, (c, y) in enumerate(self.draws(sigma, count)):
            sums.update(number % QUARTERS, c, y)
        return sums


class Target:
    """Two reference fits, and the error of weights to them."""

    def __init__(self, source: Source, sigma: float, count: int) -> None:
        self.first, self.second = (
            fit_affine(source.sums(sigma, count), source.pool, sigma, shrink=False).weights for _ in range(2)
        )
        self.norm = float((self.first * self.second).sum())

    def error(self, weights: Tensor) -> float:
        """`||W - W_ref||_F^2 / ||W_ref||_F^2`."""
        return float(((weights - self.first) * (weights - self.second)).sum()) / self.norm


def exact(c: Tensor, y: Tensor, source: Source, sigma: float, target: Target, wanted: float) -> int | None:
    """Draws that the exact fit needs."""
    d = c.shape[1]
    count, needed = max(FIRST * d, 2.0 * QUARTERS), None
    while count <= len(c):
        n = math.ceil(count)
        sums = Sums(d)
        for quarter in range(QUARTERS):
            sums.update(quarter, c[quarter:n:QUARTERS], y[quarter:n:QUARTERS])
        good = target.error(fit_affine(sums, source.pool, sigma).weights) <= wanted
        needed = (needed or n) if good else None
        count *= GROWTH
    return needed


def gradient(
    c: Tensor, y: Tensor, rate: float, longest: int, target: Target, wanted: float, centre: Tensor
) -> int | None:
    """Draws that Adam needs with a learning rate; inputs are noisy images themselves, so `centre` is added back."""
    d = c.shape[1]
    x, output = ((part + centre).float() for part in (c, y))
    weight, bias = torch.zeros(d, d, requires_grad=True), torch.zeros(d, requires_grad=True)
    adam = torch.optim.Adam([weight, bias], lr=rate, fused=True)
    random = torch.Generator().manual_seed(0)
    for step in range(1, math.ceil(longest / BATCH) + 1):
        chosen = torch.randint(len(x), (BATCH,), generator=random)
        loss = (x[chosen] / math.sqrt(d) @ weight.T + bias - output[chosen]).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % max(1, step // 50) == 0:
            error = target.error(weight.detach().double() / math.sqrt(d))
            if error <= wanted:
                return step * BATCH
            if not math.isfinite(error):
                return None
    return None


def main() -> None:
    """Print the counts of each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.surrogate", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders; none: a network trained here")
    parser.add_argument("--target", type=float, default=1e-2, help="error of the weights to reach")
    parser.add_argument("--sigmas", type=float, nargs="+", help="noise levels; the run's own without any")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the draws in the store and in references")
    options = parser.parse_args()
    if not options.runs:
        digits(options.target)
    for run in options.runs:
        images = build_data(config.load(run / "config.yaml"))
        sigmas = options.sigmas or images.bank.sigmas
        compare(str(run), load_denoiser(run), images.images, images.flip, options.target, sigmas, options.scale)


def digits(wanted: float = 1e-2) -> list[int]:
    """Compare on a small network of digits that is trained for it, at three noise levels."""
    images = build_data(config.load(None, [])).images
    module, _ = training.fit(ModelConfig(channels=8), images, 128, steps=DIGITS_STEPS)
    return compare("a network of digits", module.denoiser.eval(), images, False, wanted, DIGITS_SIGMAS, 1.0)


def compare(
    name: str, network: Denoiser, images: Tensor, flip: bool, wanted: float, sigmas: Sequence[float], scale: float
) -> list[int]:
    """Print a line for each noise level, and return the evaluations of both ways, where both reach the error."""
    moments = estimate(images, flip)
    pool, d = Pool(moments, moments), len(moments.mean)
    source = Source(network, images, pool, torch.Generator().manual_seed(0))
    centre = pool.basis.T @ pool.mean
    print(f"\n{name}, d = {d}: evaluations until the error of W is {wanted:g}, and in units of d")
    print(_row("sigma", "W_G has", "exact", "/ d", "gradient", "/ d", "with lr", "ratio"), flush=True)
    total = [0, 0]
    for sigma in sigmas:
        target = Target(source, sigma, math.ceil(scale * REFERENCE * d))
        parts = list(source.draws(sigma, math.ceil(scale * STORE * d)))
        c, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        ours = exact(c, y, source, sigma, target, wanted)
        longest, best = LONGEST * d, None
        for rate in LEARNING_RATES.values():
            found = gradient(c, y, rate, longest, target, wanted, centre)
            if found is not None:
                longest, best = found, rate
        start = target.error(pool.gaussian(sigma)[0])
        if ours is None or best is None:
            counts = ["-" if ours is None else f"{ours:,}", "", f"> {longest:,}" if best is None else f"{longest:,}"]
            print(_row(f"{sigma:.3g}", f"{start:.2g}", *counts), flush=True)
            continue
        total = [total[0] + ours, total[1] + longest]
        print(_row(f"{sigma:.3g}", f"{start:.2g}", *_counts(ours, longest, d, f"{best:g}")), flush=True)
    if total[0]:
        print(_row("all", "", *_counts(total[0], total[1], d, "")), flush=True)
    return total


def _counts(ours: int, theirs: int, d: int, rate: str) -> tuple[str, ...]:
    return f"{ours:,}", f"{ours / d:.2f}", f"{theirs:,}", f"{theirs / d:.0f}", rate, f"{theirs / ours:.0f}"


def _row(*cells: str) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=False))


if __name__ == "__main__":
    main()
