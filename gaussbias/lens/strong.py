"""Strong generalisation: whether networks that were trained on disjoint images make the same samples.

Kadkhodaie et al. 2024 (arXiv 2310.02557); Li, Dai and Qu 2024 (arXiv 2410.24060), Figure 8.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from gaussbias.analysis.halves import SHOWN, cosines
from gaussbias.errors import UserError
from gaussbias.figures.lens import draw_strong
from gaussbias.files import reason, write
from gaussbias.lens.looking import Looked
from gaussbias.moments import Eigenmoments

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
    means = []
    for file in moments:
        found = Eigenmoments.load(file)
        if found is None:
            raise UserError(f"cannot read the moments {file}")
        means.append(found.mean.double().numpy())
    mean = (means[0] + means[1]) / 2
    names, pixels = [], []
    for kind in ("network", "gaussian"):
        for number, one in enumerate(pair):
            names.append(one.subject.name if kind == "network" else f"Gaussian of S{number + 1}")
            pixels.append(_samples(one, kind))
    flat = [part.reshape(len(part), -1).astype(np.float64) / 127.5 - 1 for part in pixels]
    size = len(names)
    cosine, se, chance = np.ones((size, size)), np.zeros((size, size)), float("nan")
    for i in range(size):
        for j in range(i + 1, size):
            pairs, others = cosines(flat[i], flat[j], mean)
            cosine[i, j] = cosine[j, i] = pairs.mean()
            se[i, j] = se[j, i] = pairs.std(ddof=1) / len(pairs) ** 0.5
            chance = others if (i, j) == (0, 1) else chance
    picture = draw_strong(names, cosine, [part[:SHOWN] for part in pixels], out / "figures" / "strong.png")
    strong = Strong(names, cosine, se, chance, len(flat[0]), picture)
    about = {"names": names, "cosine": cosine.tolist(), "se": se.tolist(), "chance": chance, "samples": strong.samples}
    try:
        write(out / FILE, json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--out: cannot write to {out}: {reason(error)}") from None
    return strong


def _samples(one: Looked, kind: str) -> np.ndarray:
    try:
        with safe_open(one.samples, "numpy") as opened:
            found: np.ndarray = opened.get_tensor(f"{kind}_samples")
            return found
    except Exception as error:  # what a damaged file leads to has no base class
        raise UserError(f"expected samples at {one.samples}: {reason(error)}") from None
