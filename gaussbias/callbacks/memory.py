"""What the memory of a GPU is full of, for whoever ran out of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gaussbias.callbacks.base import callbacks_of, root_device
from gaussbias.callbacks.ema import EMA
from gaussbias.callbacks.measuring import ProbeCallback
from gaussbias.callbacks.private import average_of, datamodule_of
from gaussbias.data.rows import copied_bytes
from gaussbias.denoisers import PreconditionedDenoiser
from gaussbias.modules import LinearModule, SummingModule
from gaussbias.system.terminal import is_out_of_memory


class OutOfMemory(pl.Callback):
    """Takes down what a GPU held when its memory was full: once the exception is elsewhere, that is gone.

    Attributes:
        said: In a line: what was done, what it held, and what to do; empty if that did not happen.
    """

    said = ""
    _begun = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From here on there are measurements and steps."""
        self._begun = True

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Look at the memory."""
        if isinstance(exception, RuntimeError) and root_device(trainer).type == "cuda" and is_out_of_memory(exception):
            self.said = _out_of_memory(trainer, pl_module, self._begun)


def _out_of_memory(trainer: pl.Trainer, module: pl.LightningModule, begun: bool) -> str:
    device = root_device(trainer)
    total = torch.cuda.get_device_properties(device).total_memory
    held = sorted(_held(trainer, module).items(), key=lambda item: -item[1])
    what = "in a measurement" if trainer.validating else "in a training step" if begun else "before the first step"
    return (
        f"the memory of GPU {device.index} ({_told(total)}) is full {what}; it holds "
        f"{', '.join(f'{_told(size)} of {name}' for name, size in held if size)}, and what is computed from them; "
        f"{_advice(trainer, module, begun)}"
    )


def _advice(trainer: pl.Trainer, module: pl.LightningModule, begun: bool) -> str:
    data = datamodule_of(trainer)
    smaller = "begin another run with fewer images (data.n_train) or a smaller data.resolution"
    network: Any = module.teacher if isinstance(module, LinearModule) else module.denoiser
    if not begun or not isinstance(network, PreconditionedDenoiser):
        return smaller
    share = data.batch_size // trainer.world_size
    fewer = max(1, min(share, network.at_once or share) // 2)
    advice = f"go on by --resume with train.microbatch={fewer}, images that the network is given at once"
    block = _smaller(data.bank.block, data.bank.block * data.bank.blocks)
    if isinstance(module, LinearModule):
        return f"{advice}, or {smaller}, since a fit takes matrices of as many rows as an image has numbers"
    if trainer.validating and block is not None:
        return f"{advice}, or begin another run with probes.block={block}, draws that are measured at once"
    return advice


def _smaller(block: int, draws: int) -> int | None:
    """The largest size of blocks of at most half as many draws."""
    return next((size for size in range(block // 4 * 2, 1, -2) if draws % size == 0), None)


def _held(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, int]:
    averages = [model for average in callbacks_of(trainer, EMA) if (model := average_of(average)) is not None]
    states: list[Any] = [optimizer.state for optimizer in trainer.optimizers]
    measuring = callbacks_of(trainer, ProbeCallback)
    own = "sums and maps" if isinstance(module, SummingModule) else "weights and their average"
    return {
        own: nbytes([*_state(module), *(part for model in averages for part in _state(model))]),
        "the optimizer": nbytes(leaf for state in states for leaf in tree_leaves(dict(state))),
        "images": copied_bytes(),
        "baselines": nbytes(measuring[0].references.tensors()) if measuring else 0,
    }


def _state(module: torch.nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def nbytes(values: Iterable[Any]) -> int:
    """Bytes on GPUs of the tensors among some values, each once."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.device.type == "cuda"]
    return sum(value.nbytes for value in {id(value): value for value in tensors}.values())


def _told(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"
