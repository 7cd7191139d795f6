"""Strong generalisation: whether networks that were trained on disjoint images make the same samples.

Kadkhodaie et al. 2024 (arXiv 2310.02557); Li, Dai and Qu 2024 (arXiv 2410.24060), on strong generalisation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaussbias.analysis.halves import Samples, cosines, mean_in, samples_in, to_units
from gaussbias.figures.lens import draw_strong
from gaussbias.history.measurements import standard_error
from gaussbias.lens.results import Looked
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason, write
from gaussbias.system.run_folder import RunFolder

FILE = "strong.json"


@dataclass(frozen=True)
class Strong:
    """How alike samples from the same latents are.

    Attributes:
        names: Both networks, and the Gaussian denoisers of their training images.
        cosine: Mean cosines (4, 4), after subtracting the mean of both training sets.
        se: Their standard errors over samples.
        chance: Mean cosine of the two networks' samples from different latents.
        samples: How many.
        picture: File of the picture.
    """

    names: list[str]
    cosine: np.ndarray
    se: np.ndarray
    chance: float
    samples: int
    picture: Path


def compare_halves(pair: Sequence[Looked], moments: Sequence[Path], out: Path) -> Strong:
    """Compare samples of two networks with each other and with those of both Gaussians; writes `strong.json`.

    Args:
        pair: Both, looked at with the same latents, each with its own training images.
        moments: Files of the moments of these.
        out: Where to write.

    Raises:
        UserError: If something cannot be read or written.
    """
    mean = np.mean([mean_in(file) for file in moments], axis=0)
    sets = [_samples(result) for result in pair]
    names = [*(result.subject.name for result in pair), "Gaussian of S1", "Gaussian of S2"]
    one, other = sets
    if not one.is_like(other):
        raise UserError(
            f"--strong: expected as many samples of the same classes of both, got {len(one.network)} of "
            f"{_classes(one)} and {len(other.network)} of {_classes(other)}; give the classes of both as data.classes"
        )
    flat = [to_units(pixels) for pixels in (*(each.network for each in sets), *(each.gaussian for each in sets))]
    size = len(names)
    cosine, se, chance = np.ones((size, size)), np.zeros((size, size)), float("nan")
    for i in range(size):
        for j in range(i + 1, size):
            pairs, others = cosines(flat[i], flat[j], mean, len(one.classes))
            cosine[i, j] = cosine[j, i] = pairs.mean()
            se[i, j] = se[j, i] = standard_error(pairs)
            chance = others if (i, j) == (0, 1) else chance
    first = [each.first() for each in sets]
    shown = [*(each.network for each in first), *(each.gaussian for each in first)]
    picture = draw_strong(names, cosine, shown, RunFolder(out).figures / "strong.png")
    strong = Strong(names, cosine, se, chance, len(flat[0]), picture)
    about = {"names": names, "cosine": cosine.tolist(), "se": se.tolist(), "chance": chance, "samples": strong.samples}
    try:
        write(out / FILE, json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    return strong


def _classes(samples: Samples) -> str:
    return f"the classes {', '.join(map(str, samples.classes))}" if samples.classes else "no classes"


def _samples(result: Looked) -> Samples:
    samples = samples_in(result.samples)
    if samples is None:
        raise UserError(f"expected all samples at {result.samples}, found those of pictures alone")
    return samples
