"""EDM's networks as safetensors, for use without pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from gaussbias.checkpoints.base import FORMAT, Loaded
from gaussbias.checkpoints.edm import Contents, trained_on
from gaussbias.checkpoints.networks import Description, load_network
from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, printable, reason, write

KIND = "edm_network"
MOST = 20
"""Notes that are read."""


def save_converted(contents: Contents, file: Path, labels: str | None = None, **about: Any) -> None:
    """Write weights to `file`, and the description to the .json beside it.

    Args:
        contents: Of an EDM pickle.
        file: Where to write, .safetensors.
        labels: With which a class-conditional network is loaded, unless it is told otherwise.
        about: More to say in the description, such as `source`.
    """
    description = contents.description
    text = {
        "format": FORMAT,
        "kind": KIND,
        "shape": list(description.shape),
        "preconditioning": description.preconditioning,
        "constants": description.constants,
        "network": description.network,
        "arguments": description.arguments,
        "labels": labels,
        "kimg": contents.kimg,
        "notes": contents.notes,
        "data": contents.data,
        **about,
    }
    described = json.dumps(text, indent=1) + "\n"
    weights = {name: value.detach().contiguous().clone() for name, value in contents.weights.items()}
    with complete(file) as temporary:
        save_file(weights, temporary, {"format": FORMAT})
    write(file.with_suffix(".json"), described)


def is_converted(file: Path) -> bool:
    """Whether a file is such a network."""
    try:
        return file.suffix == ".safetensors" and json.loads(file.with_suffix(".json").read_text())["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def load_converted(file: Path, labels: str | None = None) -> Loaded:
    """The denoiser of a converted network.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        about = json.loads(file.with_suffix(".json").read_text())
        description = Description(
            str(about["preconditioning"]),
            {str(name): float(value) for name, value in about["constants"].items()},
            str(about["network"]),
            dict(about["arguments"]),
        )
        weights = load_file(file)
        if sum(value.nbytes for value in weights.values()) > file.stat().st_size:
            raise ValueError("they are more than the file")
        chosen = about.get("labels") if labels is None else labels
        kimg = None if about.get("kimg") is None else float(about["kimg"])
        notes = [printable(str(note)) for note in list(about.get("notes") or [])[:MOST]]
        return load_network(description, weights, chosen, kimg, notes, trained_on(dict(about.get("data") or {})))
    except Exception as error:  # nested JSON, types that torch lacks, arguments that no network has, ...
        raise UserError(f"cannot read the network {file} and the .json beside it: {reason(error)}") from None
