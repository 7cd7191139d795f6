"""Ends training when it is asked to, on all ranks at the same point."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.signals import Stopped, StopRequest


class Stopping(pl.Callback):
    """Raises `Stopped` between two steps, or in the middle of a measurement, once any rank was asked to stop.

    The request has to be patient: a rank that stopped elsewhere would leave the others waiting.

    Between two steps ranks tell each other on the CPU while the step before is computed, so that nothing waits for a
    GPU: a request takes effect one step later.

    It comes first of all callbacks. In a measurement a rank that was asked leaves it at once, and meets the others
    before the first thing that ranks do together there; all leave, and the measurement is made when the run goes on.

    Args:
        request: Notes signals.
    """

    def __init__(self, request: StopRequest) -> None:
        self.request = request
        self._agreed = False
        self._hooks: list[RemovableHandle] = []
        self._ranks: Any = None
        self._asked: tuple[Tensor, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop before anything is done."""
        if trainer.world_size > 1:
            try:
                self._ranks = torch.distributed.new_group(backend="gloo")
            except RuntimeError as error:
                raise UserError(
                    "train.devices: expected processes that reach each other over the network, got "
                    f"{reason(error)!r}; set GLOO_SOCKET_IFNAME to the interface that they share"
                ) from None
        self._meet(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stop before this step."""
        if self._ranks is None:
            self._meet(trainer)
            return
        self._agreed = self._hear()
        if self._agreed:
            raise self.request.stopped()
        self._tell()

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the measurement before the next evaluation of a denoiser: on a slow machine a block takes minutes."""
        parts = (getattr(pl_module, name, None) for name in ("denoiser", "teacher"))
        self._hooks = [
            part.register_forward_pre_hook(lambda *_: self._leave()) for part in parts if isinstance(part, nn.Module)
        ]

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave the measurement."""
        self._leave()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Meet those who left."""
        self._unhook()
        self._meet(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Meet those who are still at work."""
        self._unhook()
        if isinstance(exception, Stopped) and not self._agreed:
            self._agree(trainer)

    def _leave(self) -> None:
        if self.request.received is not None:
            raise self.request.stopped()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _meet(self, trainer: pl.Trainer) -> None:
        if self._agree(trainer):
            raise self.request.stopped()

    def _agree(self, trainer: pl.Trainer) -> bool:
        """Whether any rank was asked to stop; every rank comes here."""
        asked = self.request.received is not None
        if self._ranks is not None:
            before = self._hear()
            self._tell()
            asked = self._hear() or before
        self._agreed = asked
        return asked

    def _tell(self) -> None:
        """Begin to add up how many ranks were asked."""
        flag = torch.tensor(int(self.request.received is not None))
        self._asked = flag, torch.distributed.all_reduce(flag, group=self._ranks, async_op=True)

    def _hear(self) -> bool:
        """Whether any rank was asked before all had last told."""
        if self._asked is None:
            return False
        flag, work = self._asked
        self._asked = None
        work.wait()
        return bool(flag)
