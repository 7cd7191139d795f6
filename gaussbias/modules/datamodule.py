"""Training batches and probe loaders, as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from gaussbias.config import Config, ModelConfig
from gaussbias.data import Images, read_labelled
from gaussbias.data.images import mirror
from gaussbias.data.rows import Near
from gaussbias.noise import karras_sigmas
from gaussbias.numerics.seeding import generator
from gaussbias.probes.bank import Batch, ProbeBank
from gaussbias.probes.classes import FewOfClass, bank_of
from gaussbias.probes.compared import ImageSet
from gaussbias.system.errors import UserError


class TrainingBatches(IterableDataset[dict[str, Any]]):
    """Endless batches, each a function of (seed, step): every image once an epoch, in an order of its own.

    Args:
        images: (N, C, H, W), uint8 or float32, on any device.
        batch_size: Images in the batch of all ranks together.
        seed: Of the order and of the mirroring.
        flip: Mirror half of the images, at random.
        start: First step.
        rank: This process ...
        world_size: ... of so many; each takes its rows of the same global batch.
        replace: Draw images independently, with replacement, instead of each once an epoch.
        labels: Classes (N,), int64, which batches then have as well.
    """

    def __init__(
        self,
        images: Tensor,
        batch_size: int,
        seed: int = 0,
        flip: bool = False,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        replace: bool = False,
        labels: Tensor | None = None,
    ) -> None:
        self.images, self.batch_size, self.seed, self.flip, self.start = images, batch_size, seed, flip, start
        self.replace, self.labels = replace, labels
        share = batch_size // world_size
        self.rows = slice(rank * share, (rank + 1) * share)
        self._orders: dict[int, Tensor] = {}

    def indices(self, step: int) -> Tensor:
        """Positions of the images of this rank's rows at a step."""
        count = len(self.images)
        if self.replace:
            return torch.randint(count, (self.batch_size,), generator=generator("draw", self.seed, step))[self.rows]
        places = torch.arange(step * self.batch_size, (step + 1) * self.batch_size)[self.rows]
        epochs, within = places // count, places % count
        first = step * self.batch_size
        needed = range((first + self.rows.start) // count, (first + self.rows.stop - 1) // count + 1)
        self._orders = {e: self._orders[e] if e in self._orders else self._order(e) for e in needed}
        return torch.cat([order[within[epochs == epoch]] for epoch, order in self._orders.items()])

    def _order(self, epoch: int) -> Tensor:
        return torch.randperm(len(self.images), generator=generator("order", self.seed, epoch))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Batches from `start` on: `images` (b, C, H, W), `step`, and of images with classes `labels` (b,)."""
        step = self.start
        while True:
            # a copy of so few numbers from the host is staged at once: there is nothing to wait for
            chosen = self.indices(step)
            images = self.images[chosen.to(self.images.device, non_blocking=True)]
            if self.flip:
                random = generator("flip", self.seed, step)
                mirrored = (torch.rand(self.batch_size, generator=random) < 0.5)[self.rows]
                mirrored = mirrored.to(images.device, non_blocking=True)
                images = torch.where(mirrored[:, None, None, None], mirror(images), images)
            yield {"images": images, "step": step, **({} if self.labels is None else {"labels": self.labels[chosen]})}
            step += 1


class ImageDataModule(pl.LightningDataModule):
    """Images for training and a probe bank for measuring.

    The images stay one tensor, on the training device if they take less than a quarter of its free memory.
    Validation is measurement: `val_dataloader` returns the bank's loaders.

    Args:
        images: Training images (N, C, H, W), uint8 or float32.
        heldout: Images of the same shape that are not trained on.
        bank: The probe bank.
        batch_size: Images in one step, over all devices.
        seed: Of the order of the images and of the mirroring.
        flip: Mirror half of the images, at random.
        batches: Images of the training batches, if not the training images.
        replace: Draw them independently, with replacement, instead of each once an epoch.
        labels: Classes of the training images (N,), int64, for a network that is told them.
        heldout_labels: Those of the held-out images.
        classes: How many there are; 0 without labels.
    """

    def __init__(
        self,
        images: Tensor,
        heldout: Tensor,
        bank: ProbeBank,
        batch_size: int,
        seed: int = 0,
        flip: bool = False,
        batches: Tensor | None = None,
        replace: bool = False,
        labels: Tensor | None = None,
        heldout_labels: Tensor | None = None,
        classes: int = 0,
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer blocks of latents than devices
        self.images, self.heldout, self.bank = images, heldout, bank
        self.batch_size, self.seed, self.flip = batch_size, seed, flip
        self.batches, self.replace = images if batches is None else batches, replace
        self.labels, self.heldout_labels, self.classes = labels, heldout_labels, classes

    def setup(self, stage: str) -> None:
        """Check that the batch and the blocks can be shared out."""
        self.check_shares(self._trainer.world_size)

    def check_shares(self, world_size: int) -> None:
        """Raise `UserError` unless every one of so many devices gets rows of a batch and blocks of draws."""
        if self.batch_size % world_size:
            fits = max(n for n in range(1, world_size) if self.batch_size % n == 0)
            raise UserError(
                f"train.batch_size: expected a multiple of the {world_size} devices, got {self.batch_size}; set "
                f"train.devices for {fits} in all, or train.batch_size={-(-self.batch_size // world_size) * world_size}"
            )
        if self.bank.blocks < world_size:
            block = -(-self.bank.block * self.bank.blocks // (2 * world_size)) * 2
            raise UserError(
                f"probes.block: expected a block of draws for each of the {world_size} devices, got {self.bank.blocks} "
                f"blocks of {self.bank.block}; set train.devices for fewer, or probes.draws={block * world_size} "
                f"probes.block={block}"
            )

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        """Endless batches that go on from the trainer's step."""
        trainer = self._trainer
        batches = TrainingBatches(
            Near(self.batches).on(trainer.strategy.root_device),
            self.batch_size,
            self.seed,
            self.flip,
            start=trainer.global_step,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            replace=self.replace,
            labels=self.labels,
        )
        return DataLoader(batches, batch_size=None)

    @property
    def set(self) -> ImageSet:
        """The images that are measured on."""
        return ImageSet(self.bank, self.images, self.heldout, self.labels, self.heldout_labels)

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """The probe loaders: one per pool, and one of sampling latents."""
        return self.bank.loaders(self._trainer.global_rank, self._trainer.world_size)

    @property
    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None, "an ImageDataModule makes loaders for the Trainer that it is given to"
        return self.trainer


def build_data(config: Config, sampler_sigmas: Sequence[float] | None = None) -> ImageDataModule:
    """Read the images that a configuration asks for, and no others.

    Args:
        config: The configuration.
        sampler_sigmas: Noise levels of the sampler, if not EDM's from 80 to 0.002.

    Raises:
        UserError: If they cannot be read, or are too few.
    """
    data, probes = config.data, config.probes
    given = read_labelled(data)
    images, heldout = given.training, given.heldout
    height, width = images.shape[-2:]
    pools = {"train": images, "heldout": heldout}
    sigmas = karras_sigmas(10) if probes.sigmas is None else probes.sigmas
    if sampler_sigmas is None:  # a surrogate has maps for its own levels only
        sampler_sigmas = sigmas if config.module.kind == "linear" else karras_sigmas(probes.sampler_steps)
    measured = {name: pools[name] for name in probes.pools if name in pools}
    arguments: dict[str, Any] = {
        "draws": probes.draws,
        "sigmas": sigmas,
        "block": probes.block,
        "flip": data.flip,
        "samples": probes.samples,
        "sampler": probes.sampler,
        "sampler_sigmas": sampler_sigmas,
        "seed": probes.seed,
        "points": [name for name in probes.pools if name not in pools],
    }
    bank = _bank(measured, given, arguments)
    if config.module.kind == "edm":
        check_sides(config.model, height, width)
    fitted = config.module.kind == "linear"  # to independent draws of a pool
    batches = heldout if fitted and config.linear.pool == "heldout" else images
    return ImageDataModule(
        images,
        heldout,
        bank,
        config.train.batch_size,
        config.run.seed,
        data.flip,
        batches,
        replace=fitted,
        labels=given.labels,
        heldout_labels=given.heldout_labels,
        classes=given.classes,
    )


def _bank(pools: dict[str, Tensor], images: Images, arguments: dict[str, Any]) -> ProbeBank:
    """The draws, of all images or of their classes."""
    if images.labels is None or images.heldout_labels is None:
        return bank_of(pools, **arguments)
    try:
        return bank_of(pools, {"train": images.labels, "heldout": images.heldout_labels}, **arguments)
    except FewOfClass as error:
        key = "data.n_train" if error.pool == "train" else "data.n_heldout"
        text = str(error).rstrip(".")
        raise UserError(f"{key}: {text[0].lower()}{text[1:]}; raise it, or leave it out with data.classes") from None


def check_sides(model: ModelConfig, height: int, width: int) -> None:
    """Raise `UserError` for images whose sides a network cannot take."""
    if model.backbone in ("ddpmpp", "ncsnpp", "adm") and height != width:
        raise UserError(
            f"model.backbone: {model.backbone} takes square images, got {height} x {width}; set data.resolution"
        )
    if height % model.patch or width % model.patch:
        raise UserError(
            f"model.patch: expected a divisor of the sides, got {model.patch} for images of {height} x {width}"
        )
    height, width = height // model.patch, width // model.patch
    if model.backbone != "mlp":
        halvings = 2 ** (len(model.channel_mult) - 1)
        if height % halvings or width % halvings:
            raise UserError(
                f"model.channel_mult: {len(model.channel_mult)} levels halve the image "
                f"{len(model.channel_mult) - 1} times, expected sides divisible by {halvings}, "
                f"got images of {height} x {width}" + (" patches" if model.patch > 1 else "")
            )
        sizes = [height >> level for level in range(len(model.channel_mult))]
        if set(model.attention) - set(sizes):
            raise UserError(
                f"model.attention: expected some of {', '.join(map(str, sizes))}, the resolutions of the network's "
                f"levels, got {model.attention}"
            )
