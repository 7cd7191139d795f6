"""Measures a denoiser in any training loop or notebook: no Trainer, no run folder, no configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gaussbias.denoisers import Denoiser, Evaluate
from gaussbias.denoisers.theories import Theory
from gaussbias.history import HistoryFile
from gaussbias.metrics.frechet import Features
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes.bank import ProbeBank
from gaussbias.probes.base import Probe
from gaussbias.probes.classes import bank_of
from gaussbias.probes.compared import ImageSet, compared
from gaussbias.probes.instruments import EMA
from gaussbias.probes.measured import Measured
from gaussbias.probes.references import LIKENED, References
from gaussbias.probes.registry import Make, build


class Ruler:
    """Measures denoisers on fixed draws: what `python -m gaussbias.fit` logs, with standard errors.

        ruler = Ruler(images, heldout)
        measured = ruler(network)
        print(measured["gaussian/rmse/heldout"])

    The names of values are those of docs/metrics.md. Each call measures the same draws, so `measured - earlier` has the
    differences with errors of their own. In several processes that torch.distributed has joined every one has to call
    it; they share out the blocks of draws, and all get the same values.

    Args:
        images: Training images (N, C, H, W), uint8, or floating point in the units that the denoiser takes.
        heldout: Images of the same kind that are not trained on; at least 2.
        draws: Noisy images in each pool, in 16 blocks or more.
        sigmas: Noise levels; `None` is EDM's grid of 10 from 80 to 0.002.
        samples: Samples that are drawn at each measurement; 0 for none.
        sampler: `heun` or `euler`.
        sampler_sigmas: Descending noise levels of the sampler; `None` is EDM's grid of 18.
        flip: Whether the network is trained on mirrored copies too, which then count in all references.
        pools: What is measured on: `train`, `heldout`, `trajectory`, `noise`.
        seed: Of the draws.
        device: Where to measure; `None` is where the denoiser's parameters are. Functions have none: they are measured
            where the last module was, else on the CPU.
        moments: Of the training images, if they are known already.
        features: A network of your own for `samples/fid`.
        also: Makers of further probes, called with the references.
        theories: Further denoisers to compare with, by name: each called with images, moments and `flip`.
        theory_samples: From how many latents they make samples as well.
        labels: The classes of the training images (N,), whole numbers from 0, for a denoiser that is told them: it is
            called with labels (B,) as well, and measured on each class, with the references of the class; values are
            means over classes.
        heldout_labels: Those of the held-out images.
        guidance: Weights of classifier-free guidance whose samples are measured as well; the denoiser is then called
            with the label -1 too, which is no class.
        each: Whether the values of each class are given as well, as `class_<c>/...`.

    Raises:
        ValueError: For images of other shapes, labels that are no number of a class for each image, and draws that make
            no blocks.
    """

    def __init__(
        self,
        images: Tensor,
        heldout: Tensor,
        *,
        draws: int = 512,
        sigmas: Sequence[float] | None = None,
        samples: int = 200,
        sampler: str = "heun",
        sampler_sigmas: Sequence[float] | None = None,
        flip: bool = False,
        pools: Sequence[str] = ("train", "heldout"),
        seed: int = 0,
        device: torch.device | str | None = None,
        moments: Eigenmoments | None = None,
        features: Features | None = None,
        also: Iterable[Make] = (),
        theories: Mapping[str, Theory] | None = None,
        theory_samples: int = LIKENED,
        labels: Tensor | None = None,
        heldout_labels: Tensor | None = None,
        guidance: Sequence[float] = (),
        each: bool = False,
    ) -> None:
        for name, part in (("images", images), ("heldout", heldout)):
            if part.ndim != 4 or len(part) < 2 or part.shape[1:] != images.shape[1:]:
                raise ValueError(
                    f"Expected `{name}` of a shape (N, C, H, W), at least 2 and all of one size, but got "
                    f"{tuple(part.shape)}."
                )
        if (labels is None) != (heldout_labels is None) or (guidance and labels is None):
            raise ValueError("Expected `labels` and `heldout_labels`, both of them, with `guidance` too.")
        for name, own, part in (("labels", labels, images), ("heldout_labels", heldout_labels, heldout)):
            if own is None:
                continue
            whole = isinstance(own, Tensor) and own.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
            if not whole or own.shape != (len(part),) or int(own.min()) < 0:
                what = f"{own.dtype} of shape {tuple(own.shape)}" if isinstance(own, Tensor) else type(own).__name__
                least = f", the least of them {int(own.min())}" if whole and own.numel() else ""
                raise ValueError(
                    f"Expected `{name}` to be a tensor of shape ({len(part)},), whole numbers from 0, but got {what}"
                    f"{least}."
                )
        there = {"train": images, "heldout": heldout}
        self.bank = bank_of(
            {pool: there[pool] for pool in pools if pool in there},
            None if labels is None or heldout_labels is None else {"train": labels, "heldout": heldout_labels},
            draws=draws,
            sigmas=karras_sigmas(10) if sigmas is None else sigmas,
            flip=flip,
            samples=samples,
            sampler=sampler,
            sampler_sigmas=karras_sigmas(18) if sampler_sigmas is None else sampler_sigmas,
            seed=seed,
            points=[pool for pool in pools if pool not in there],
        )

        def others(_: ProbeBank, images: Tensor, moments: Eigenmoments) -> dict[str, Denoiser]:
            return {name: make(images, moments, flip) for name, make in (theories or {}).items()}

        def probes(references: References) -> dict[str, list[Probe]]:
            weights = guidance if references.whole is not None else ()
            return {EMA: build(references, also, features, theory_samples=theory_samples, guidance=weights)}

        moments = estimate(images, flip) if moments is None else moments
        known = compared(ImageSet(self.bank, images, heldout, labels, heldout_labels), moments, others)
        self.references, self.instruments = known.whole, known.instruments(probes, each)
        self._given = None if device is None else torch.device(device)
        self._last = torch.device("cpu")
        self._files: dict[Path, HistoryFile] = {}

    def __call__(self, denoiser: Evaluate, kimg: float | None = None) -> Measured:
        """Measure a denoiser; a module is put into evaluation mode meanwhile.

        Args:
            denoiser: Called with images (B, C, H, W) and noise levels (B,), gives clean images. Of a module in
                `DistributedDataParallel` the one within is called, since ranks have unequal numbers of blocks; one
                whose parameters are spread over processes (FSDP) cannot be measured.
            kimg: How long it was trained, in thousands of images; only noted.
        """
        if isinstance(denoiser, DistributedDataParallel):
            denoiser = denoiser.module
        if isinstance(denoiser, Denoiser):  # before anything is measured
            for sigma in (*self.bank.sigmas, *(self.bank.sampler_sigmas if self.bank.samples else ())):
                _check_level(denoiser, sigma)
        parameter = next(denoiser.parameters(), None) if isinstance(denoiser, nn.Module) else None
        self._last = self._last if parameter is None else parameter.device
        device = self._last if self._given is None else self._given
        self.instruments.to(device)
        with _evaluating(denoiser):
            for _ in self.instruments.measure({EMA: denoiser}, device):
                pass
        return self.instruments.result(kimg)

    def log(self, measured: Measured, *targets: str | Path | Any) -> None:
        """Log all values of a measurement as one row.

        Args:
            measured: What a call gave.
            targets: A csv file, which gets a row more (`gaussbias.history.load` reads its folder if its name is
                history.csv), or an object with a method `log`, such as a W&B run.
        """
        row = ({} if measured.kimg is None else {"kimg": measured.kimg}) | measured.row
        for target in targets:
            if isinstance(target, str | Path):
                file = self._files.setdefault(Path(target), HistoryFile(Path(target), from_kimg=float("inf")))
                file.append(row)
            else:
                target.log(row)


def _check_level(denoiser: Denoiser, sigma: float) -> None:
    """Raise `ValueError` for a noise level that a denoiser was not made for."""
    try:
        denoiser.check_sigma(sigma)
    except ValueError as error:
        raise ValueError(
            f"{error} The denoiser takes noise levels of {denoiser.told_range()}: give `sigmas` and `sampler_sigmas`, "
            "such as karras_sigmas(10, *denoiser.sigma_range)."
        ) from None


@contextmanager
def _evaluating(denoiser: Evaluate) -> Iterator[None]:
    """A module in evaluation mode; afterwards each part is as it was."""
    modules = list(denoiser.modules()) if isinstance(denoiser, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
