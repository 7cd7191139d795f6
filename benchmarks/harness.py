"""What a benchmark is, how time and memory are taken, and what the machine can do at most."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gaussbias.numerics import integers


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        name: What it computes.
        size: Of which problem.
        usual: The straightforward way.
        ours: The way of gaussbias, from the same inputs.
        error: From a result to its error against float64.
        target: The ratio of times to reach on a CPU.
        flops: Operations that our way takes; their number over the peak of `dtype` is the least time there can be ...
        dtype: Of most of them.
        floor: ... unless this is given, which is timed instead.
    """

    name: str
    size: str
    usual: Callable[[], Any]
    ours: Callable[[], Any]
    error: Callable[[Any], float]
    target: float
    flops: float = 0.0
    dtype: torch.dtype = torch.float32
    floor: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Cost:
    """Seconds (of the processor on a CPU, of synchronised device time on a GPU) and MB above the start."""

    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Timed:
    """What a call returns that took its own time, without its preparations."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Result:
    """A case as measured: medians of the times over repetitions that alternate, the largest memory and errors."""

    name: str
    size: str
    usual_seconds: float
    seconds: float
    ratio: float
    target: float
    usual_megabytes: float
    megabytes: float
    usual_error: float
    error: float
    of_limit: float

    def line(self) -> str:
        """A row of the table."""
        return (
            f"{self.name:27}{self.size:28}{self.usual_seconds:8.2f}{self.seconds:8.3f}{self.ratio:7.1f}{self.target:8g}"
            f"{self.usual_megabytes:7.0f}{self.megabytes:6.0f}{_told(self.usual_error):>10}{_told(self.error):>8}"
            f"{self.of_limit:9.0%}"
        )


def _told(error: float) -> str:
    return f"{error:.0e}" if math.isfinite(error) else "-"


HEADER = f"{'kernel':27}{'size':28}{'seconds':>16}{'ratio':>7}{'target':>8}{'MB':>13}{'error':>18}{'of limit':>9}"


@dataclass(frozen=True)
class Limits:
    """What a device does at most: operations a second of the best square product, and bytes a second of a copy."""

    products: dict[torch.dtype, float]
    copy: float

    def __str__(self) -> str:
        peaks = [f"{value / 1e9:,.0f} G/s in {str(dtype)[6:]}" for dtype, value in self.products.items()]
        return f"products {', '.join(peaks)}; copy {self.copy / 1e9:,.1f} GB/s read and written"

    def as_dict(self) -> dict[str, float]:
        """For a file."""
        return {**{str(dtype)[6:]: value for dtype, value in self.products.items()}, "copy_bytes": self.copy}


def limits(device: torch.device, size: int = 2048) -> Limits:
    """Measure a device."""
    dtypes = [torch.float32, torch.float64]
    if device.type == "cuda":
        dtypes.append(torch.bfloat16)
        size *= 4
    products = {dtype: peak(dtype, device, size) for dtype in dtypes}
    if integers.are_fast(device):
        products[torch.int8] = peak(torch.int8, device, size)
    source = torch.ones(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = min(cost(lambda: target.copy_(source), device)[0].seconds for _ in range(5))
    return Limits(products, 2 * source.nbytes / seconds)


def peak(dtype: torch.dtype, device: torch.device, size: int = 2048) -> float:
    """Operations a second of the best of ten square products."""
    a = torch.randint(-9, 9, (size, size), device=device).to(dtype)
    multiply = integers.product if dtype == torch.int8 else torch.matmul
    return max(2 * size**3 / cost(lambda: multiply(a, a.T), device)[0].seconds for _ in range(5))


def measure(case: Case, repeat: int, device: torch.device, limit: Limits) -> Result:
    """Run both ways alternately."""
    rows = []
    for _ in range(repeat):
        usual, value = cost(case.usual, device)
        first = case.error(value)
        del value
        ours, value = cost(case.ours, device)
        second = case.error(value)
        del value
        floor = case.flops / limit.products[case.dtype] if case.floor is None else cost(case.floor, device)[0].seconds
        rows.append((usual, ours, first, second, floor))
    seconds = median(row[1].seconds for row in rows)
    return Result(
        case.name,
        case.size,
        median(row[0].seconds for row in rows),
        seconds,
        median(row[0].seconds / row[1].seconds for row in rows),
        case.target,
        max(row[0].megabytes for row in rows),
        max(row[1].megabytes for row in rows),
        max(row[2] for row in rows),
        max(row[3] for row in rows),
        median(row[4] / row[1].seconds for row in rows),
    )


def as_dicts(results: list[Result]) -> list[dict[str, Any]]:
    """For a file, where what is not known is null."""
    rows = (asdict(result).items() for result in results)
    return [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row} for row in rows
    ]


def clock(device: torch.device) -> float:
    """Seconds: of the processor on a CPU, of the wall on a GPU once it has done what was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def cost(call: Callable[[], Any], device: torch.device) -> tuple[Cost, Any]:
    """Run once."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 1e6
    else:
        before = _reset_peak() / 1e3
    start = clock(device)
    result = call()
    seconds = clock(device) - start
    after = torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else _status("VmHWM") / 1e3
    if isinstance(result, Timed):
        return Cost(result.seconds, after - before), result.value
    return Cost(seconds, after - before), result


def relative(value: Tensor, exact: Tensor) -> float:
    """`||value - exact|| / ||exact||`."""
    return float((value.double() - exact).norm() / exact.norm())


def _reset_peak() -> float:
    """Give freed memory back, forget the peak, and return what is in use, in kB; NaN where this cannot be told."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return float("nan")
    return _status("VmRSS")


def _status(name: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(float(line.split()[1]) for line in lines if line.startswith(name + ":"))
