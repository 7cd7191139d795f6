"""Room for large tensors."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from torch import Tensor

LARGE = 2**30
"""Bytes from which on a tensor lies in a file."""


def _take(file: int, size: int) -> None:
    """Make a file so large; where the system can it has its place on the disk by then, or `OSError` says it is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def room(rows: int, columns: int, device: torch.device) -> Tensor:
    """A float32 tensor (rows, columns) that is not filled.

    A large one on a CPU lies in a file without a name, in the folder of temporary files (`TMPDIR`): of what does not
    fit the memory the system writes to disk what is not in use.
    """
    if device.type != "cpu" or 4 * rows * columns < LARGE:
        return torch.empty(rows, columns, device=device)
    try:
        with tempfile.TemporaryFile() as file:
            _take(file.fileno(), 4 * rows * columns)
            return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=(rows, columns)))
    except OSError:
        return torch.empty(rows, columns)
