"""`python -m benchmarks.scale`: how time and memory grow with images, pixels, samples, draws and devices.

Each kernel at several sizes, on one thread; beside the exponent of the fit that of the count of operations. Sizes are
large enough for products to outweigh what is around them, and small enough for minutes in all.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import cost
from benchmarks.images import read_images
from benchmarks.networks import SMALL, make
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser, at_levels
from gaussbias.metrics import Ladder, Pairs
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import Eigenmoments, Moments, decompose
from gaussbias.noise import karras_sigmas

CPU = torch.device("cpu")
REPEAT = 3


@dataclass(frozen=True)
class Growth:
    """A kernel at several sizes.

    Attributes:
        kernel: What it computes.
        of: Which size grows.
        sizes: Its values.
        seconds: Of the processor, the least of three.
        megabytes: Peak memory beyond the inputs.
        predicted: Exponent of the operations, and of the memory, in this size.
    """

    kernel: str
    of: str
    sizes: list[int]
    seconds: list[float]
    megabytes: list[float]
    predicted: tuple[float, float]

    def line(self) -> str:
        """A row of the table."""
        span = f"{self.sizes[0]:,} to {self.sizes[-1]:,}"
        ends = f"{self.seconds[0]:.3g} to {self.seconds[-1]:.3g}"
        return (
            f"{self.kernel:28}{self.of:11}{span:18}{ends:>16}{exponent(self.sizes, self.seconds):7.2f}"
            f"{self.predicted[0]:6g}{self.megabytes[-1]:9.0f}{exponent(self.sizes, self.megabytes):7.2f}"
            f"{self.predicted[1]:6g}"
        )


HEADER = f"{'kernel':28}{'grows':11}{'from':18}{'seconds':>16}{'fit':>7}{'ops':>6}{'MB':>9}{'fit':>7}{'due':>6}"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of a line of least squares through the logarithms; NaN where a value is not above 0."""
    if min(values) <= 0:
        return math.nan
    x, y = (torch.tensor([math.log(value) for value in part], dtype=torch.float64) for part in (sizes, values))
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


def growth(
    kernel: str,
    of: str,
    sizes: Sequence[int],
    prepare: Callable[[int], Callable[[], Any]],
    predicted: tuple[float, float],
) -> Growth:
    """Measure a kernel; `prepare` makes its inputs at a size, which count neither as time nor as memory."""
    seconds, megabytes = [], []
    for size in sizes:
        call = prepare(size)
        found = [cost(call, CPU)[0] for _ in range(REPEAT)]
        seconds.append(min(part.seconds for part in found))
        megabytes.append(max(part.megabytes for part in found))
    return Growth(kernel, of, list(sizes), seconds, megabytes, predicted)


def kernels() -> Iterator[Growth]:
    """All kernels on one thread."""
    pictures = {side: read_images(None, 48_000 if side == 32 else 12_000, side) for side in (8, 16, 24, 32, 40)}

    def images(count: int, side: int) -> Tensor:
        return pictures[side][:count]

    def covariance(count: int, side: int) -> Callable[[], Any]:
        def run() -> Moments:
            metric = Moments((3, side, side), pixels=True)
            metric.update(images(count, side))
            return metric

        return run

    def sides(call: Callable[[int], Callable[[], Any]]) -> Callable[[int], Callable[[], Any]]:
        """In terms of d = 3 side^2."""
        return lambda d: call(round((d / 3) ** 0.5))

    dimensions = [3 * side**2 for side in (16, 24, 32, 40)]
    yield growth("covariance", "N", (6000, 12_000, 24_000, 48_000), lambda n: covariance(n, 32), (1, 0))
    yield growth("covariance", "d", dimensions, sides(lambda side: covariance(12_000, side)), (2, 2))

    def components(side: int) -> Callable[[], Any]:
        matrix = torch.randn(3 * side**2, 3 * side**2, dtype=torch.float64)
        matrix, mean = matrix @ matrix.T, matrix[0]
        return lambda: decompose(mean, matrix, 10**6, (3, side, side))

    yield growth("components", "d", dimensions[:3], sides(components), (3, 2))

    def gaussian(side: int, batch: int, levels: int = 10) -> Callable[[], Any]:
        d = 3 * side**2
        basis = torch.randn(d, d, dtype=torch.float64)
        moments = Eigenmoments(basis[0], torch.ones(d, dtype=torch.float64), basis, 10**6, (3, side, side))
        denoiser, x0 = GaussianDenoiser(moments), torch.randn(batch, 3, side, side)
        return lambda: denoiser.forward_grid(x0, x0, karras_sigmas(levels))

    yield growth("D_G, 10 levels", "d", dimensions, sides(lambda side: gaussian(side, 256)), (2, 1))
    yield growth("D_G, 10 levels", "draws", (64, 256, 1024), lambda batch: gaussian(32, batch), (1, 1))

    def memoriser(count: int, side: int, batch: int) -> Callable[[], Any]:
        denoiser = EmpiricalDenoiser(images(count, side))
        x0 = to_unit(pictures[side][-batch:])
        eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
        return lambda: denoiser.forward_grid(x0, eps, karras_sigmas(10))

    yield growth("D_M, 10 levels", "N", (6000, 12_000, 24_000, 47_000), lambda n: memoriser(n, 32, 64), (1, 0))
    yield growth("D_M, 10 levels", "d", dimensions, sides(lambda side: memoriser(11_000, side, 128)), (1, 1))
    yield growth("D_M, 10 levels", "draws", (64, 128, 256), lambda batch: memoriser(11_000, 32, batch), (1, 1))

    def search(count: int, side: int, queries: int) -> Callable[[], Any]:
        nearest, x = NearestImages(images(count, side)), to_unit(pictures[side][-queries:])
        return lambda: nearest(x)

    yield growth("nearest images", "N", (12_000, 24_000, 47_000), lambda n: search(n, 32, 500), (1, 0))
    yield growth("nearest images", "k", (250, 500, 1000), lambda k: search(11_000, 32, k), (1, 0))

    def pairs(side: int, draws: int, block: int) -> Callable[[], Any]:
        d = 3 * side**2
        basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0].contiguous()
        moments = Eigenmoments(basis[0], torch.ones(d, dtype=torch.float64), basis, 10**6, (3, side, side))
        g = torch.randn(3, block, 3, side, side)
        noise = torch.randn(draws // block, block, 3, side, side)

        def run() -> dict[str, Tensor]:
            metric = Ladder(draws // block, [5.0, 1.0, 0.2], moments, moments)
            for number, eps in enumerate(noise):
                metric.update(g, g, number, Pairs(moments, g[0], eps, [5.0, 1.0, 0.2]))
            return metric.compute()

        return run

    yield growth("affine part, 3 levels", "draws", (256, 512, 1024), lambda n: pairs(16, n, 32), (1, 0))
    yield growth("affine part, 3 levels", "d", dimensions[:3], sides(lambda side: pairs(side, 256, 32)), (2, 1))

    def network(draws: int) -> Callable[[], Any]:
        some = images(12_000, 8)[:draws]
        denoiser, x = make(SMALL, some).eval(), to_unit(some).expand(4, -1, -1, -1, -1)
        return torch.no_grad()(lambda: at_levels(denoiser, x, torch.tensor([0.1, 1.0, 5.0, 20.0])))

    yield growth("network on 4 levels", "draws", (256, 512, 1024), network, (1, 1))


def ranks() -> Iterator[str]:
    """What each of 1 and 2 processes on this machine does in a run: images a second, and a measurement."""
    for devices in (1, 2):
        with tempfile.TemporaryDirectory() as root:
            command = [
                sys.executable,
                "-m",
                "gaussbias.fit",
                "train.kimg=16",
                "train.accelerator=cpu",
                "probes.every_kimg=8",
            ]
            command += [
                "probes.first_kimg=8",
                f"run.root={root}/runs",
                "run.wandb=disabled",
                f"train.devices={devices}",
            ]
            environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
            subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            from gaussbias.history import load

            rows: dict[str, Any] = load(Path(root) / "runs" / "digits")
            speed, measured = (_last(rows[key]) for key in ("train/images_per_second", "probes/seconds"))
            yield f"{devices:28}{speed:16,.0f} images/s{measured:12.2f} s for a measurement"


def _last(values: Sequence[float]) -> float:
    return [value for value in values if not math.isnan(value)][-1]


def main() -> None:
    """Print the tables, and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("scale.json"), metavar="FILE", help="written at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(HEADER, flush=True)
    found = []
    for row in kernels():
        found.append(row)
        print(row.line(), flush=True)
    print("\nprocesses of one thread, digits", flush=True)
    lines = []
    for line in ranks():
        lines.append(line)
        print(line, flush=True)
    options.json.write_text(json.dumps({"kernels": [asdict(row) for row in found], "ranks": lines}, indent=1) + "\n")
    print(f"\nwritten to {options.json}")


if __name__ == "__main__":
    main()
