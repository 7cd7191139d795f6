"""Strong generalisation: whether networks of disjoint halves of the data make the same samples.

Kadkhodaie et al. 2024 (arXiv 2310.02557); Li, Dai and Qu 2024 (arXiv 2410.24060), on strong generalisation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from gaussbias.analysis.table import Record
from gaussbias.history import timed_files
from gaussbias.history.measurements import standard_error
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

SHOWN = 10
"""Samples that are kept for a picture."""


LATENTS = ("seed", "samples", "sampler", "sampler_steps", "weights")
ALIKE = (
    *("model.channels", "data.subset_seed", "run.seed", "train.kimg"),
    *(f"probes.{name}" for name in LATENTS),  # else samples begin elsewhere
)
"""What two runs have in common whose samples are compared."""


@dataclass(frozen=True)
class Similarity:
    """How alike the samples of two networks are, which were trained on disjoint halves.

    Attributes:
        images: N of each.
        channels: Capacity of both.
        cosine: Mean cosine of samples from the same latents, after subtracting the mean of both training sets.
        se: Its standard error, over samples.
        gaussian: The same of the two Gaussian denoisers' samples.
        chance: The same of samples from different latents.
        samples: First samples of S1's network, S2's and the two Gaussians', (4, k, C, H, W) uint8.
    """

    images: int
    channels: int
    cosine: float
    se: float
    gaussian: float
    chance: float
    samples: np.ndarray


@dataclass(frozen=True)
class Samples:
    """The samples of a measurement.

    Attributes:
        network: (n, C, H, W), uint8, or of data that are no pixels in data units.
        gaussian: Those of the Gaussian denoiser from the same latents.
        classes: The classes that there are samples of, class after class, each from the same latents; none without
            labels.
    """

    network: np.ndarray
    gaussian: np.ndarray
    classes: tuple[int, ...] = ()

    def first(self) -> Samples:
        """Those in a picture; classes take turns."""
        places = np.arange(len(self.network)).reshape(max(1, len(self.classes)), -1).T.ravel()[:SHOWN]
        return Samples(self.network[places], self.gaussian[places])

    def is_like(self, other: Samples) -> bool:
        """Whether there are as many samples, of the same classes."""
        return self.network.shape == other.network.shape and self.classes == other.classes


def halves(runs: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Each finished run on S1 with each on S2 that is alike."""
    first, second = (
        [run for run in runs if run.finished and run.keys.get("data.half") == half] for half in ("S1", "S2")
    )
    return [(run, other) for run in first for other in second if are_alike(run, other)]


def are_alike(run: Record, other: Record, *differing: str) -> bool:
    """Whether two runs have as many images, and the same in all of `ALIKE` but for some keys."""
    keys = set(ALIKE) - set(differing)
    return run.images == other.images and all(run.keys.get(key) == other.keys.get(key) for key in keys)


def similarities(runs: Sequence[Record]) -> list[Similarity]:
    """Compare each run on S1 with that on S2 which is alike, by their last samples, where both have them."""
    measured = [similarity for pair in halves(runs) if (similarity := _compare(*pair)) is not None]
    return sorted(measured, key=lambda run: (run.channels, run.images))


def read_samples(run: Record, kimg: float | None = None) -> Samples | None:
    """All samples of a measurement of a run; `None` without any.

    Raises:
        UserError: If a file of samples cannot be read.
    """
    files = [] if run.folder is None else timed_files(RunFolder(run.folder).samples)
    files = [file for file in files if kimg is None or abs(float(file.stem) - kimg) < 1e-3]
    return samples_in(files[-1]) if files else None


def samples_in(file: Path) -> Samples | None:
    """All samples in a file of a measurement; `None` without any.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        with safe_open(file, "numpy") as opened:
            names = "network_samples", "gaussian_samples"
            if set(names) - set(opened.keys()):
                return None  # made before all samples were kept
            network, gaussian = map(opened.get_tensor, names)
            classes = tuple(map(int, json.loads((opened.metadata() or {}).get("classes", "[]"))))
            if len(network) != len(gaussian) or len(network) % max(1, len(classes)):
                raise ValueError(f"{len(network)} samples do not go with {len(classes)} classes")
            return Samples(network, gaussian, classes)
    except Exception as error:  # what a file from elsewhere leads to has no base class
        raise UserError(f"expected samples of a measurement at {file}: {reason(error)}") from None


def cosines(a: np.ndarray, b: np.ndarray, mean: np.ndarray, classes: int = 0) -> tuple[np.ndarray, float]:
    """Cosines of paired samples (n, d) about a mean (d,), and the mean cosine of all others.

    Of samples of so many classes the cosines are means over classes, all alike, one for each latent, (n / classes,),
    since those of one latent are not independent; and the others are those of other latents of the same class.
    """
    x, y = (part - mean for part in (a, b))
    x, y = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (x, y))
    x, y = (part.reshape(max(1, classes), -1, part.shape[1]) for part in (x, y))
    every = (x @ y.swapaxes(1, 2)).mean(0)
    pairs = np.diag(every)
    count = len(pairs)
    return pairs, float((every.sum() - pairs.sum()) / (count * (count - 1))) if count > 1 else float("nan")


def _compare(first: Record, second: Record) -> Similarity | None:
    a, b = read_samples(first), read_samples(second)
    if a is None or b is None or not a.is_like(b):
        return None
    mean = np.mean([mean_in(RunFolder(Path(run.folder or ".")).moments) for run in (first, second)], axis=0)
    pairs, chance = cosines(to_units(a.network), to_units(b.network), mean, len(a.classes))
    gaussian, _ = cosines(to_units(a.gaussian), to_units(b.gaussian), mean, len(a.classes))
    se = standard_error(pairs)
    one, other = a.first(), b.first()
    shown = np.stack([one.network, other.network, one.gaussian, other.gaussian])
    return Similarity(first.images, first.channels, float(pairs.mean()), se, float(gaussian.mean()), chance, shown)


def to_units(images: np.ndarray) -> np.ndarray:
    """Samples (n, C, H, W), uint8 or in data units, in data units, (n, d)."""
    flat = images.reshape(len(images), -1).astype(np.float64)
    return flat / 127.5 - 1 if images.dtype == np.uint8 else flat


def mean_in(file: Path) -> np.ndarray:
    """The mean (d,) in a file of moments; raises `UserError` if it cannot be read."""
    return moment_in(file, "mean")


def moment_in(file: Path, name: str) -> np.ndarray:
    """The `mean` (d,) or the `eigenvalues` (r,) in a file of moments.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        with safe_open(file, "numpy") as opened:
            found: np.ndarray = opened.get_tensor(name).astype(np.float64).reshape(-1)
            return found
    except Exception as error:  # what a file from elsewhere leads to has no base class
        raise UserError(f"expected moments at {file}: {reason(error)}") from None
