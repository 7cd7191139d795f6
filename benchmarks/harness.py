"""What a benchmark is, and how time and memory are taken."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


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
        flops: Floating-point operations that the usual way would count for our way.
        dtype: Of most of them.
    """

    name: str
    size: str
    usual: Callable[[], Any]
    ours: Callable[[], Any]
    error: Callable[[Any], float]
    target: float
    flops: float
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Cost:
    """Seconds (of the processor on a CPU, of synchronised device time on a GPU) and MB above the start."""

    seconds: float
    megabytes: float


def cost(call: Callable[[], Any], device: torch.device) -> tuple[Cost, Any]:
    """Run once."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated, start = torch.cuda.memory_allocated(), time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        return Cost(time.perf_counter() - start, (torch.cuda.max_memory_allocated() - allocated) / 1e6), result
    before = _reset_peak()
    start = time.process_time()
    result = call()
    seconds = time.process_time() - start
    return Cost(seconds, (_status("VmHWM") - before) / 1e3), result


def peak(dtype: torch.dtype, device: torch.device, size: int = 2048) -> float:
    """Floating-point operations a second of the best of ten square products."""
    a = torch.randn(size, size, dtype=dtype, device=device)
    return max(2 * size**3 / cost(lambda: a @ a, device)[0].seconds for _ in range(10))


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
