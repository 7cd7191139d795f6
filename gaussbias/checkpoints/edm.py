"""Network pickles of EDM and EDM2 (Karras et al. 2022, 2024), read without running what is in them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussbias.checkpoints.base import TrainedOn
from gaussbias.checkpoints.networks import AUGMENT, LEVELS, OF_EDM2, Description
from gaussbias.checkpoints.pickles import Refused, Stored, read_pickle, tensors_of
from gaussbias.system.errors import UserError
from gaussbias.system.files import printable, reason

CONSTANTS = ("sigma_data", "beta_d", "beta_min", "M", "epsilon_t", "C_1", "C_2", "sigma_min", "sigma_max")
NETWORK = "ema"
FILTER = "resample_filter"
UNCERTAINTY = ("logvar_fourier.", "logvar_linear.")
"""How names of EDM2's weights begin that have a part in training alone, and the argument that is about them."""
NOT_OF_THE_NETWORK = ("model_type", "use_fp16", "logvar_channels", *CONSTANTS)
KIMG = r"(?:network-snapshot|edm2-\w+-\w+)-(\d+)(?:-[\d.]+)?"
"""Names of files: of EDM2's, the length of the average comes after the thousands of images."""
RGB = "StandardRGBEncoder"
"""What encodes images as EDM does."""


@dataclass(frozen=True)
class Contents:
    """What an EDM pickle holds.

    Attributes:
        description: Of the network.
        weights: By EDM's names; `u` too, if there is one.
        notes: What is left out or of note, a sentence each.
        kimg: From the file's name, `network-snapshot-<kimg>.pkl` or one of EDM2's; `None` if it has another.
        data: Of `dataset_kwargs`: `max_size` (images, at most) and `xflip` (mirrored copies too), as far as they are
            there.
    """

    description: Description
    weights: dict[str, Tensor]
    notes: list[str]
    kimg: float | None
    data: dict[str, int]


def trained_on(data: Mapping[str, Any]) -> TrainedOn:
    """What `dataset_kwargs` say; EDM counts images and their mirrored copies when it sets `max_size`."""
    size, flip = data.get("max_size"), data.get("xflip")
    counts = () if not isinstance(size, int) or size < 1 else (size, size // 2) if flip else (size,)
    return TrainedOn(counts, bool(flip) if isinstance(flip, int) else None)


def read_edm(file: Path) -> Contents:
    """Read a network pickle.

    Raises:
        UserError: If it asks for anything but what such a pickle is made of, or is not one.
    """
    try:
        return _contents(read_pickle(file), file)
    except Refused as error:
        raise UserError(f"{file} was refused, and nothing in it was run: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        known = isinstance(error, (ValueError, OSError))
        why = reason(error) if known else f"it is damaged, or another program wrote it ({type(error).__name__})"
        raise UserError(f"expected a network pickle of EDM at {file}: {why}") from None


def _contents(tree: Any, file: Path) -> Contents:
    if not isinstance(tree, dict) or not isinstance(tree.get(NETWORK), Stored):
        what = f"with {', '.join(map(str, tree))[:100]}" if isinstance(tree, dict) else type(tree).__name__
        raise ValueError(f"expected a dict with the network {NETWORK}, found one {what}")
    outer: Stored = tree[NETWORK]
    modules = outer.attribute("_modules", {})
    part = "unet" if outer.name == OF_EDM2 else "model"
    inner = modules.get(part) if isinstance(modules, dict) else None
    if not isinstance(inner, Stored):
        raise ValueError(f"expected {outer.name} to hold a network `{part}`, found none")
    constants = {}
    for name in CONSTANTS:
        value = outer.attribute(name)
        if isinstance(value, float | int) and math.isfinite(value) and not (name == "sigma_min" and value == 0):
            constants[name] = float(value)
    description = Description(outer.name, constants, inner.name, _arguments(outer, inner))
    weights, notes = _weights(tensors_of(outer), part, file.stat().st_size)
    others = {str(name): value for name, value in tree.items() if name != NETWORK}
    if others:
        shown = ", ".join(f"{name} ({_kind(value)})" for name, value in others.items())
        notes.append(f"not used: {printable(shown)}")
    sources = [value.source for value in (outer, inner, *others.values()) if isinstance(value, Stored) and value.source]
    if sources:
        notes.append(f"not run: the source text of {len(sources)} classes, {max(sources):,} characters in the longest")
    if outer.attribute("use_fp16"):
        notes.append("made for float16; here it computes in float32")
    encoder = tree.get("encoder")
    if isinstance(encoder, Stored) and encoder.name != RGB:
        notes.append(f"latents, as its {printable(encoder.name)} makes them of images")
    match = re.fullmatch(KIMG, file.stem)
    about = tree.get("dataset_kwargs")
    stored = about if isinstance(about, dict) else {}
    data = {name: int(stored[name]) for name in ("max_size", "xflip") if isinstance(stored.get(name), int)}
    return Contents(description, weights, notes, float(match[1]) if match else None, data)


def _arguments(outer: Stored, inner: Stored) -> dict[str, Any]:
    """Arguments of the network's constructor, as they were stored: with it, or with what is around it."""
    own = inner.attribute("_init_kwargs")
    if isinstance(own, dict) and own:
        arguments = dict(own)
    else:
        around = outer.attribute("_init_kwargs")
        arguments = dict(around) if isinstance(around, dict) else {}
    if "img_channels" in arguments:
        channels = arguments.pop("img_channels")
        arguments["in_channels"] = channels
        arguments["out_channels"] = (
            channels * (1 + (outer.name == "iDDPMPrecond")) if isinstance(channels, int) else None
        )
    for name in NOT_OF_THE_NETWORK:
        arguments.pop(name, None)
    for name in ("img_resolution", "in_channels", "out_channels"):
        if not isinstance(arguments.get(name), int):
            kind = type(arguments.get(name)).__name__
            raise ValueError(f"expected a whole number as {name} of {inner.name}, found {kind}")
    return {str(name): _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    """An argument as JSON has it."""
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"expected numbers and texts as arguments of the network, found {type(value).__name__}")


def _weights(tensors: Mapping[str, Tensor], part: str, limit: int) -> tuple[dict[str, Tensor], list[str]]:
    weights, notes = {}, []
    for name, value in tensors.items():
        if name == LEVELS:
            weights[LEVELS] = value
            continue
        if name.startswith(UNCERTAINTY):
            continue
        inner = name.removeprefix(f"{part}.")
        if inner == name:
            raise ValueError(f"expected tensors of the network `{part}`, found {name}")
        if inner == AUGMENT:
            notes.append(f"left out: {AUGMENT}, since images are denoised without labels of augmentations")
        elif not inner.endswith(FILTER):  # they follow from the arguments
            weights[inner] = value
    if sum(value.nbytes for value in weights.values()) > limit:  # one tensor may have many names
        raise ValueError("its tensors are larger than the file")
    if not all(bool(torch.isfinite(value).all()) for value in weights.values() if value.is_floating_point()):
        raise ValueError("a weight is not finite")
    return weights, notes


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Stored) else type(value).__name__
