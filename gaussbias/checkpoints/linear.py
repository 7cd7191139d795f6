"""Linear surrogates on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gaussbias.denoisers import LinearDenoiser
from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, reason, write
from gaussbias.system.run_folder import RunFolder

FORMAT = "gaussbias.linear/1"


def save_linear(
    denoiser: LinearDenoiser, folder: Path, levels: Sequence[Mapping[str, float]] = (), **about: Any
) -> Path:
    """Write `linear.safetensors` (`sigmas`, `weights`, `biases`) and `linear.json` (shape, and what is known of it).

    Args:
        denoiser: The surrogate.
        folder: Where to write.
        levels: What is known of the fit of each level.
        about: More to say, such as `teacher`, `pool` and `kimg`.

    Returns:
        Path of the safetensors file.
    """
    path = RunFolder(folder).linear
    tensors = {name: getattr(denoiser, name).detach().cpu().contiguous() for name in ("sigmas", "weights", "biases")}
    with complete(path) as temporary:
        save_file(tensors, temporary, {"format": FORMAT})
    known = [{name: value for name, value in level.items() if math.isfinite(value)} for level in levels]
    text = {"format": FORMAT, "kind": "linear", "shape": list(denoiser.shape), **about, "levels": known}
    write(path.with_suffix(".json"), json.dumps(text, indent=1) + "\n")
    return path


def load_linear(file: Path) -> tuple[LinearDenoiser, dict[str, Any]]:
    """A surrogate, in eval mode, and the description beside it.

    Raises:
        UserError: If it cannot be read.
    """
    description = file.with_suffix(".json")
    try:
        about = json.loads(description.read_text())
        tensors = load_file(file)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError(f"expected a description of format {FORMAT} in {description.name}")
        wrong = [name for name, value in tensors.items() if not bool(torch.isfinite(value).all())]
        if wrong:
            raise ValueError(f"values that are not finite in {', '.join(wrong)}")
        shape = tuple(int(side) for side in about["shape"])
        if not len(tensors["sigmas"]) or math.prod(shape) != tensors["biases"].shape[-1]:
            raise ValueError("no noise levels, or images of another shape")
        denoiser = LinearDenoiser(tensors["sigmas"], tensors["weights"], tensors["biases"], shape)
    except Exception as error:  # nested JSON, types that torch lacks, ...
        raise UserError(f"cannot read the surrogate {file} and {description.name} beside it: {reason(error)}") from None
    return denoiser.eval().requires_grad_(False), about
