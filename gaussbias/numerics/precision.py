"""Float32 as it is, for what is measured: GPUs round products to 10 or 7 bits where they may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_BACKENDS: Any = torch.backends
_FLOAT32: list[Any] = [
    *(_BACKENDS.cuda.matmul, _BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn),
    *(_BACKENDS.mkldnn.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn),
]
"""Whatever computes in float32 has a precision for it: `ieee`, `tf32`, `bf16`, or `none`, that of all."""


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Neither mixed precision nor TF32, whose round-off of 1e-3 to 1e-2 would be measured as nonlinearity.

    Nor cuDNN's trials, which would take seconds for each new size of a batch. Afterwards all is as it was, whichever of
    torch's two ways it was set by: one of them cannot be read once the other was used.
    """
    cudnn = torch.backends.cudnn
    precisions, legacy, trials = [part.fp32_precision for part in _FLOAT32], _legacy(), cudnn.benchmark
    try:
        if legacy is not None:
            torch.set_float32_matmul_precision("highest")
            cudnn.allow_tf32 = False
        for part in _FLOAT32:
            part.fp32_precision = "ieee"
        cudnn.benchmark = False
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy[0])
            cudnn.allow_tf32 = legacy[1]
        for part, precision in zip(_FLOAT32, precisions, strict=True):
            part.fp32_precision = "none"  # that of all backends, which may be what it was
            if part.fp32_precision != precision:
                part.fp32_precision = precision
        cudnn.benchmark = trials


def _legacy() -> tuple[str, bool] | None:
    """What torch's older settings say; `None` if newer ones were used, after which they cannot be read."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None
