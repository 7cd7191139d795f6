"""Which of a job's processes this is, before anything heavy is imported."""

from __future__ import annotations

import os


def is_first() -> bool:
    """Whether this process is global rank 0: Lightning, torchrun and SLURM tell it by these variables."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)
