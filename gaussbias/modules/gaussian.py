"""The Gaussian baseline as a module of its own: mean and covariance by one pass under the Trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gaussbias.denoisers import GaussianDenoiser
from gaussbias.modules.summing import SummingModule
from gaussbias.moments import Eigenmoments, Moments
from gaussbias.probes import Batch, evaluate


class GaussianModule(SummingModule):
    """Estimates mean and covariance from the training batches, each image once, and denoises with them.

    Ranks add up their rows of each batch, and their sums are added when the module is validated. For pixels the sums
    are exact (`gaussbias.moments`), so the number of ranks changes nothing. What is measured during the pass belongs to
    the Gaussian of the images seen so far.

    Args:
        shape: (C, H, W) of the images.
        count: Training images; what comes after so many is the next pass, and left out.
        batch_size: Images in one step, over all devices.
        flip: Count the mirrored copy of each image as well.
        pixels: Whether the images are uint8.
        config: Stored in checkpoints.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        count: int,
        batch_size: int = 128,
        flip: bool = False,
        pixels: bool = True,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.count, self.batch_size, self.flip, self.pixels = count, batch_size, flip, pixels
        self.sums = Moments(shape, pixels)
        self.moments: Eigenmoments | None = None
        self._denoiser: list[GaussianDenoiser] = []  # in a list: it is made of the sums, and no part of a checkpoint
        self.save_hyperparameters({"config": config or {}}, logger=False)

    @property
    def denoiser(self) -> GaussianDenoiser:
        """That of the images seen until the last validation began."""
        return self._denoiser[0]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add this rank's rows of the batch of `step`, as far as they belong to the first pass."""
        images = batch["images"]
        first = int(batch["step"]) * self.batch_size + self.global_rank * len(images)
        images = images[: max(0, self.count - first)]
        if len(images):
            self.sums.update(images)
        self.count_step()

    def estimate(self) -> Eigenmoments:
        """Moments of the images that all ranks have seen; every rank comes here.

        Raises:
            ValueError: For fewer than 2 images.
        """

        def add(value: Tensor) -> Tensor:
            total = self.over_ranks(value)
            return total.clone() if total is value else total  # the covariance takes its place

        return self.sums.combined(add, self.flip)

    def on_validation_start(self) -> None:
        """Make the denoiser of the images seen so far."""
        self.moments = self.estimate()
        self._denoiser = [GaussianDenoiser(self.moments).to(self.device)]

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Evaluate the denoiser on a batch of the probe bank."""
        return evaluate(self.denoiser, batch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the sums of all ranks; every rank comes here."""
        checkpoint["sums"] = {name: self.over_ranks(getattr(self.sums, name)) for name in ("count", "total", "outer")}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give the sums to the first rank; the others begin at 0."""
        for name, value in checkpoint["sums"].items():
            mine = value if self.global_rank == 0 else torch.zeros_like(value)
            setattr(self.sums, name, mine.to(self.device))
