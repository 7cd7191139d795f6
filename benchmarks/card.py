"""What a first hour on a card has to show before anything is timed: that results are right, and that runs go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils._triton import has_triton

from benchmarks import training
from benchmarks.harness import cost
from benchmarks.networks import make
from gaussbias.config import ModelConfig, load
from gaussbias.history import read_rows
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.numerics import integers
from gaussbias.numerics.precision import full_precision
from gaussbias.probes import Instruments, ProbeBank, References, build, evaluate
from gaussbias.surrogate import Pool, Sums, fit_affine

ROWS = (16, 17, 24, 31, 32, 33, 48, 64, 95, 96, 97, 112, 127, 128, 129, 192, 255, 256)
DEPTHS = (64, 192, 3072)
COLUMNS = 200
RUN = ("run.wandb=disabled", "train.checkpoint_every_kimg=0.25", "probes.first_kimg=0.25", "probes.every_kimg=0.5")
CLOSE = 1e-4
"""Relative difference of values that are the same but for round-off in float32."""
TRAINED = 1e-2
"""... and after training steps, of which cards take convolutions in TF32."""
PATIENCE = 240.0
"""Seconds for a run of digits."""
ACCUMULATED = 20
"""Steps in several parts."""


def products(device: torch.device) -> Iterator[str]:
    """Products of 8-bit integers beside float64, for the shapes that cuBLAS is said to refuse."""
    fast = integers.are_fast(device)
    yield f"products of 8-bit integers, {'by the device' if fast else 'which this device is not faster at'}"
    random = torch.Generator().manual_seed(0)
    wrong, before = [], set(integers._refused)
    for k in DEPTHS:
        for rows in ROWS:
            a = torch.randint(-128, 128, (rows, k), generator=random, dtype=torch.int8)
            b = torch.randint(-128, 128, (COLUMNS, k), generator=random, dtype=torch.int8)
            found = integers.product(a.to(device), b.to(device).T).cpu()
            if not torch.equal(found.double(), a.double() @ b.double().T):
                wrong.append((rows, k))
    refused = sorted({(rows, k) for _, rows, k, _ in integers._refused - before})
    yield f"  {'16 to 256 rows, 64, 192 and 3,072 columns':44}{'equal' if not wrong else f'WRONG for {wrong}':>9}"
    yield f"  {'shapes that the device refused':44}{f'{refused}' if refused else 'none':>9}"


def digits(device: torch.device) -> Iterator[str]:
    """A run of digits: its first measurement beside the CPU's, a stop, and going on on the card and on the CPU."""
    yield "a run of digits, 2 kimg, stopped once"
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as root, _Runs() as begin:
        folder = Path(root) / "card"
        keys = [*RUN, f"run.root={root}", "stop.gaussian_gap=mark", "train.devices=1"]
        here = [*keys, "run.name=card", f"train.accelerator={accelerator}"]
        other = begin(*keys, "run.name=cpu", "train.accelerator=cpu", "train.kimg=0.1", OMP_NUM_THREADS="4")
        run, until = begin(*here, "train.kimg=2"), time.perf_counter() + PATIENCE
        while run.poll() is None and time.perf_counter() < until and len(_numbered(folder)) < 2:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        yield _ended("stopped in the middle", run, 75)
        yield _ended("the same on the CPU", other, 0)
        one, two = (read_rows(Path(root) / name / "history.csv")[1][0] for name in ("card", "cpu"))
        yield f"  {'first measurement beside the CPU':44}{_difference(one, two)}"
        yield _ended("went on on the device", begin(*here, "train.kimg=2", "--resume"), 0)
        kept = folder / "checkpoints" / "best_gaussian_gap.ckpt"
        there = kept.exists()
        goes_on = begin(*keys, "run.name=card", "train.accelerator=cpu", "train.kimg=2.5", "--resume")
        yield _ended("went on on the CPU", goes_on, 0)
        yield f"  {'the best checkpoint':44}{'still there' if there and kept.exists() else 'GONE':>9}"


def _numbered(folder: Path) -> list[Path]:
    return list(folder.glob("checkpoints/0*.ckpt"))


class _Runs:
    """Begins runs, of which none is left behind."""

    def __init__(self) -> None:
        self.runs: list[subprocess.Popen[str]] = []

    def __enter__(self) -> _Runs:
        return self

    def __call__(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gaussbias.fit", *arguments]
        place = {**os.environ, **environment}
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=place)
        self.runs.append(run)
        return run

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.kill()
            run.wait()


def _ended(what: str, run: subprocess.Popen[str], code: int) -> str:
    said, _ = run.communicate(timeout=PATIENCE)
    last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    return f"  {what:44}{'yes' if run.returncode == code else f'FAILED with {run.returncode}: {last}':>9}"


def _difference(one: Mapping[str, object], other: Mapping[str, object], close: float = CLOSE) -> str:
    """The largest relative difference of two rows of history.csv."""
    found = {}
    for key, value in one.items():
        if value and other.get(key) and not key.startswith("probes/s"):
            a, b = float(str(value)), float(str(other[key]))
            if a == a and b == b:
                found[key] = abs(a - b) / max(abs(a), abs(b), 1e-3)
    worst = max(found, key=lambda key: found[key])
    told = f"{found[worst]:9.1e} ({worst}), of {len(found)} values"
    return told if found[worst] <= close else f"{told}: MORE THAN {close}"


def accumulated(images: Tensor, model: ModelConfig) -> Iterator[str]:
    """Compiled steps in bf16 of parts that do not divide the batch, and one in which the host may not wait."""
    gpu, batch = images.device.type == "cuda", 50
    compile = gpu and has_triton()
    yield f"{ACCUMULATED} steps of 50 images in parts of 16, {'compiled' if compile else 'not compiled'}"
    precision = "bf16-mixed" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"

    def loss(precision: str, compile: bool, callbacks: Sequence[pl.Callback] = ()) -> float:
        module, _ = training.fit(
            model, images, batch, precision, compile, steps=ACCUMULATED, microbatch=16, callbacks=callbacks
        )
        return training.judge(module.denoiser, images)

    yield f"  {'loss in 32-true':44}{loss('32-true', False):9.4f}"
    yield f"  {f'loss in {precision}':44}{loss(precision, compile, [Waits()]):9.4f}"
    yield f"  {'a step for which the host did not wait':44}{'yes' if gpu else '-':>9}"


class Waits(pl.Callback):
    """Has CUDA raise an error where the host waits for it, from the start of the fourth step to that of the fifth."""

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: object, index: int) -> None:
        """Begin and end to watch."""
        if module.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error" if index == 3 else "default")

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Watch no longer: what follows may wait."""
        if module.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def two_cards(device: torch.device) -> Iterator[str]:
    """The same run on two cards and on one."""
    yield "two cards beside one"
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        yield f"  left out: {torch.cuda.device_count() if device.type == 'cuda' else 'no'} cards"
        return
    with tempfile.TemporaryDirectory() as root, _Runs() as begin:
        keys = [*RUN, f"run.root={root}", "train.precision=32-true", "train.kimg=1"]
        for count in (1, 2):
            run = begin(*keys, f"train.devices={count}", f"run.name={count}")
            yield _ended(f"on {count}", run, 0)
        one, two = (read_rows(Path(root) / name / "history.csv")[1] for name in ("1", "2"))
        yield f"  {'first measurement':44}{_difference(one[0], two[0])}"
        yield f"  {'last measurement':44}{_difference(one[-1], two[-1], TRAINED)}"


def memory(images: Tensor, model: ModelConfig) -> Iterator[str]:
    """The peak of a measurement, and of the fit of a surrogate's level beside its sums."""
    device, (count, *shape) = images.device, images.shape
    d = images[0].numel()
    yield f"memory, {count} images of {' x '.join(map(str, shape))}: MB, and matrices of d x d in float64"
    host = images.cpu()
    moments = estimate(host[: -count // 5], device=device)
    pools = {"train": host[: -count // 5], "heldout": host[-count // 5 :]}
    sampler = karras_sigmas(10)
    bank = ProbeBank(pools, 512, karras_sigmas(10), samples=64, sampler_sigmas=sampler)
    references = References(bank, pools["train"], moments, device=device, heldout=pools["heldout"])
    instruments = Instruments(references, {"ema": build(references)})
    denoiser = make(model, images).eval()

    def batches() -> None:
        with torch.no_grad():
            for pool in (*bank.names, "samples"):
                instruments.update(evaluate(denoiser, bank.batch(pool, 0).to(device)), denoiser)

    def line(what: str, megabytes: float) -> str:
        return f"  {what:44}{megabytes:9,.0f}{megabytes * 1e6 / (8 * d * d):9.1f}"

    yield line("baselines, held through a run", cost(lambda: instruments.to(device), device)[0].megabytes)
    yield line("a block of each pool, and samples, beside them", cost(batches, device)[0].megabytes)
    instruments.reset()
    pool, sums = Pool(moments, moments).to(device), Sums(d).to(device)
    random = torch.Generator().manual_seed(0)
    for quarter in range(4):
        for _ in range(0, 2 * d, 512):
            c = torch.randn(512, d, generator=random).to(device).double() * (pool.variances + 0.25).sqrt()
            sums.update(quarter, c, 0.7 * c + 0.1 * c.roll(1, 1))
    yield line("a surrogate's basis and sums", sum(part.nbytes for part in (*pool.buffers(), *sums.buffers())) / 1e6)
    with full_precision(device):
        yield line("the fit of a level, beside them", cost(lambda: fit_affine(sums, pool, 0.5), device)[0].megabytes)


def cifar_small() -> ModelConfig:
    """The network of configs/cifar_small.yaml."""
    return load("configs/cifar_small.yaml", ["data.path=x"]).model
