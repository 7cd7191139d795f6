"""Averages of the weights that are kept, so that averages of other lengths can be made of them afterwards."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import save_file
from torch import Tensor

from gaussbias.numerics.averages import exponent, kept_share
from gaussbias.system.errors import safely
from gaussbias.system.files import complete

PREFIX = "denoiser."


class KeptAverages(pl.Callback):
    """Averages of the weights of a denoiser with power-law profiles, written down from time to time.

    After step t an average keeps the share `(1 - 1/t)^(gamma + 1)` of what it was (Karras et al. 2024, Section 3.1,
    arXiv 2312.02696). `python -m gaussbias.ema` makes averages of other lengths of what was written.

    Args:
        lengths: Standard deviations of the profiles, over the time of training so far.
        folder: Where `<step>.safetensors` are written.
        steps: When.
        batch_size: Images in a step.
    """

    def __init__(self, lengths: Sequence[float], folder: Path, steps: Set[int], batch_size: int) -> None:
        self.folder, self.steps, self.batch_size = folder, steps, batch_size
        self.averages: dict[str, dict[str, Tensor]] = {}
        self._exponents = {f"{length:g}": exponent(length) for length in lengths}
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """The averages, and after which step."""
        return {"averages": self.averages, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.averages, self._step = state_dict["averages"], state_dict["step"]

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update all averages, and write them."""
        step = trainer.global_step
        if step <= self._step:
            return
        weights = {
            name.removeprefix(PREFIX): value.detach()
            for name, value in pl_module.named_parameters()
            if name.startswith(PREFIX)
        }
        for name in self._exponents:
            if name not in self.averages:
                self.averages[name] = {key: value.clone() for key, value in weights.items()}
                continue
            average = self.averages[name]
            moved = [value.to(weights[key].device) for key, value in average.items()]
            torch._foreach_lerp_(moved, [weights[key] for key in average], 1 - kept_share(step, self._exponents[name]))
            self.averages[name] = dict(zip(average, moved, strict=True))
        self._step = step
        if step in self.steps and trainer.is_global_zero:
            safely(f"the averages after step {step}", self._write)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{name}/{key}": value.cpu().contiguous()
            for name, average in self.averages.items()
            for key, value in average.items()
        }
        about = {
            "format": "gaussbias.averages/1",
            "step": str(self._step),
            "kimg": repr(self._step * self.batch_size / 1000),
        }
        with complete(self.folder / f"{self._step:08d}.safetensors") as temporary:
            save_file(tensors, temporary, about)
