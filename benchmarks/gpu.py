"""`python -m benchmarks.gpu --data PATH/TO/cifar10-32x32.zip`: all that needs a GPU, in less than five minutes.

First whether results are right: products of integers, all that is measured beside the CPU's, a run that is stopped and
goes on, compiled steps, two cards, memory. Then how fast they are: the first minute of configs/cifar_small.yaml;
kernels beside the usual way; a training step in the ways that a card offers beside EDM's own loop. What fails is said
in its line, and what there is no time left for. Tables come last, for a log that is cut. `--device cpu` runs the same
at a small size, as `--small` does on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import card, eigendecomposition, empirical, gaussian, moments, neighbours, sampler, training
from benchmarks.harness import HEADER, Limits, clock, cost, limits, measure
from benchmarks.images import read_images
from benchmarks.networks import LARGE, SMALL, describe, make
from gaussbias.config import ModelConfig, load
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser, at_levels
from gaussbias.history import load as load_history
from gaussbias.metrics import Ladder, Pairs
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import Moments, estimate
from gaussbias.noise import karras_sigmas
from gaussbias.numerics.seeding import Normals
from gaussbias.system.files import reason

BUDGET = 280.0
"""Seconds after which nothing new begins."""
COUNT = 50_000
AGREES, DRAWS = 5000, 64
"""Images, more than D_M needs for products of integers, and draws of the comparison with the CPU."""


def main() -> None:
    """Run everything, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="ZIP", help="images in EDM's layout; else synthetic")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--small", action="store_true", help="at the size that a CPU is given")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="S", help="seconds after which nothing begins")
    options = parser.parse_args()
    device, began = torch.device(options.device), time.perf_counter()
    gpu = device.type == "cuda"
    small = options.small or not gpu
    images = read_images(options.data, 1200 if small else COUNT, 8 if small else 32)
    limit = limits(device, 128 if options.small else 2048)
    model = SMALL if small else card.cifar_small()
    name = torch.cuda.get_device_name(device) if gpu else "CPU"
    tables = [
        f"{name}, torch {torch.__version__}, {len(images)} images of {images.shape[-1]} x {images.shape[-1]}\n{limit}"
    ]
    sections: list[Callable[[], Iterator[str]]] = [
        lambda: card.products(device),
        lambda: agreement(images[: 1000 if small else AGREES], device),
        lambda: card.digits(device),
        lambda: card.accumulated(images[:2000].to(device), model),
        lambda: card.two_cards(device),
        lambda: card.memory(images[: 1000 if small else 10_000].to(device), model),
        lambda: small_run(options.data, device, small),
        lambda: kernels(images.to(device), limit),
        lambda: steps(images.to(device), limit, SMALL if small else LARGE),
    ]
    for section in sections:
        lines = []
        for line in _guarded(section, began + options.budget):
            print(line, flush=True)
            lines.append(line)
        tables.append("\n".join(lines))
    print(f"\n{'=' * 100}\n" + "\n\n".join(tables) + f"\n\n{time.perf_counter() - began:.0f} s in all", flush=True)


def _guarded(section: Callable[[], Iterator[str]], until: float) -> Iterator[str]:
    """The lines of a section, of which one that fails is the last."""
    lines = section()
    while True:
        if time.perf_counter() > until:
            yield "... left out: the time is over"
            return
        try:
            yield next(lines)
        except StopIteration:
            return
        except Exception as error:  # a card that cannot do one thing shall still show the others
            yield f"... failed: {type(error).__name__}: {reason(error)}"
            return


def agreement(images: Tensor, device: torch.device) -> Iterator[str]:
    """Each result on the device beside that of the CPU."""
    yield "results beside those of the CPU: largest difference (0 is equal)"
    x0 = to_unit(images[-DRAWS:])
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    sigmas = karras_sigmas(10)
    pool = images[:-DRAWS]
    on_cpu = estimate(pool)

    def difference(call: Callable[[torch.device], Tensor]) -> float:
        return float((call(device).cpu().double() - call(torch.device("cpu")).double()).abs().max())

    def sums(where: torch.device) -> Tensor:
        metric = Moments(tuple(images.shape[1:]), pixels=True).to(where)
        metric.update(pool.to(where))
        return metric.outer.triu()

    def covariance(where: torch.device) -> Tensor:
        found = estimate(pool.to(where))
        return (found.eigenvectors * found.eigenvalues) @ found.eigenvectors.T

    def d_g(where: torch.device) -> Tensor:
        return GaussianDenoiser(on_cpu).to(where).forward_grid(x0.to(where), eps.to(where), sigmas)

    def d_m(where: torch.device) -> Tensor:
        return EmpiricalDenoiser(pool.to(where)).to(where).forward_grid(x0.to(where), eps.to(where), sigmas)

    def nearest(where: torch.device) -> Tensor:
        return NearestImages(pool.to(where))((x0 + 0.3 * eps).to(where)).first

    def affine(where: torch.device) -> Tensor:
        here = on_cpu.to(where)
        metric = Ladder(2, sigmas, here, here).to(where)
        for block in range(2):
            some = slice(block * DRAWS // 2, (block + 1) * DRAWS // 2)
            clean = to_unit(pool[some]).to(where)
            noise = eps[some].to(where)
            g = GaussianDenoiser(here).to(where).forward_grid(clean, noise, sigmas)
            metric.update(g.square(), g, block, Pairs(here, clean, noise, sigmas))
        return metric.compute()["affine"]

    @torch.no_grad()
    def network(where: torch.device) -> Tensor:
        denoiser = make(SMALL, images).to(where).eval()
        return at_levels(denoiser, x0.to(where).expand(2, *x0.shape), torch.tensor([0.5, 5.0], device=where))

    for name, call in (
        ("sums of products of pixels", sums),
        ("covariance from its components", covariance),
        ("D_G, 10 levels", d_g),
        ("D_M, 10 levels", d_m),
        ("distance to the nearest image", nearest),
        ("affine part of a distance", affine),
        ("a network, measured", network),
    ):
        yield f"  {name:36}{difference(call):10.1e}"


def kernels(images: Tensor, limit: Limits) -> Iterator[str]:
    """The table of `python -m benchmarks`."""
    yield HEADER
    for kernel in (moments, gaussian, empirical, neighbours, eigendecomposition, sampler):
        for case in kernel.cases(images):
            yield measure(case, 1, images.device, limit).line()


def steps(images: Tensor, limit: Limits, model: ModelConfig) -> Iterator[str]:
    """Images a second of EDM's loop and of ours, the share of the bf16 peak, and the loss after the same images."""
    device = images.device
    gpu = device.type == "cuda"
    batch = training.BATCH[device.type]
    size, each = describe(model, images)
    peak = limit.products[torch.bfloat16 if gpu else torch.float32]
    done = (training.STEPS - training.WARM) * batch
    yield f"a training step, {size}, batch {batch}: images/s, share of the peak, loss"

    def line(name: str, seconds: float, loss: float) -> str:
        speed = done / seconds
        return f"  {name:44}{speed:10,.0f}{speed * each / peak:8.1%}{loss:9.4f}"

    def plain(dtype: torch.dtype | None) -> tuple[float, float]:
        denoiser = make(model, images)
        seconds = training.plain_loop(denoiser, images, batch, dtype)
        return seconds, training.judge(denoiser, images)

    def ours(precision: str, compile: bool = False, prepare: Any = lambda network: None) -> tuple[float, float]:
        module, seconds = training.fit(model, images, batch, precision, compile, prepare)
        return seconds, training.judge(module.denoiser, images)

    def channels_last(network: nn.Module) -> None:
        for parameter in network.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def noise() -> None:
        for step in range(10):
            Normals(0, step, device=device)(batch, *images.shape[1:], rows=slice(None))

    noise()
    yield f"  {'noise of a step':44}{100 * cost(noise, device)[0].seconds:9.2f} ms"
    yield line("EDM's loop, float32", *plain(None))
    if gpu:
        yield line("EDM's loop, float16", *plain(torch.float16))
    yield line("gaussbias, 32-true", *ours("32-true"))
    if gpu:
        yield line("gaussbias, bf16-mixed", *ours("bf16-mixed"))
        yield line("gaussbias, bf16-mixed, channels last", *ours("bf16-mixed", prepare=channels_last))
        start = clock(device)
        yield line("gaussbias, bf16-mixed, compiled", *ours("bf16-mixed", compile=True))
        yield f"  {'(with compiling)':44}{clock(device) - start:9.0f} s"
        yield line("gaussbias, bf16-mixed, compiled, channels last", *ours("bf16-mixed", True, channels_last))


def small_run(data: Path | None, device: torch.device, small: bool) -> Iterator[str]:
    """A short run of configs/cifar_small.yaml, and what its measurements would cost at full length."""
    yield "a run of configs/cifar_small.yaml"
    if data is None:
        yield "  left out: it needs --data"
        return
    gpu = device.type == "cuda"
    config = load("configs/cifar_small.yaml", [f"data.path={data}"])
    kimg = 0.5 if small else 60.0
    less = ["data.resolution=8", "model.channels=8", "model.attention=[]", "probes.draws=64"] if small else []
    with tempfile.TemporaryDirectory() as root:
        overrides = [f"data.path={data}", f"run.root={root}", "run.wandb=disabled", f"train.kimg={kimg}", *less]
        overrides += [
            f"train.log_every_kimg={kimg / 6}",
            "train.compile=false",
            f"train.accelerator={'auto' if gpu else 'cpu'}",
        ]
        command = [sys.executable, "-m", "gaussbias.fit", "--config", "configs/cifar_small.yaml", *overrides]
        start, first = time.perf_counter(), 0.0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            while run.poll() is None and time.perf_counter() - start < 120:
                time.sleep(0.1)
                if not first and list(Path(root).glob("*/probes/*")):
                    first = time.perf_counter() - start
            if run.poll() is None:
                run.kill()
            error = run.stderr.read() if run.stderr else ""
        with contextlib.suppress(Exception):
            rows: dict[str, list[Any]] = load_history(Path(root) / "cifar_small")
            measured = [value for value in rows["probes/seconds"] if value == value]
            speeds = [value for value in rows["train/images_per_second"] if value == value]
            full, count = 1000 * config.train.kimg / speeds[-1], 8
            share = count * measured[-1] / (full + count * measured[-1])
            yield f"  {'first measurement on the disk after':44}{first:9.1f} s"
            yield f"  {'a measurement':44}{measured[-1]:9.2f} s"
            yield f"  {'training':44}{speeds[-1]:9,.0f} images/s"
            yield f"  {f'share of {count} measurements in {config.train.kimg:g} kimg':44}{share:10.1%}"
            return
        yield f"  failed: {error.strip().splitlines()[-1] if error.strip() else 'no history'}"


if __name__ == "__main__":
    main()
