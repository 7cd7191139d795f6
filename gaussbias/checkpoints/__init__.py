"""Denoisers on disk: our own checkpoints and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gaussbias import backbones
from gaussbias.config import ModelConfig
from gaussbias.denoisers import Denoiser, EDMDenoiser
from gaussbias.errors import UserError

FORMAT = "gaussbias.denoiser/1"
EXPORT = "denoiser.safetensors"


def save_denoiser(
    denoiser: EDMDenoiser, model: dict[str, Any], shape: tuple[int, ...], folder: Path, **about: Any
) -> Path:
    """Write `denoiser.safetensors` (weights) and `denoiser.json` (how to rebuild it), for use without unpickling.

    Args:
        denoiser: The denoiser.
        model: The `model` section of its configuration, as a dict.
        shape: (C, H, W) of its images.
        folder: Where to write.
        about: More to say in the JSON file, such as `kimg` and `weights`.

    Returns:
        Path of the safetensors file.
    """
    path = folder / EXPORT
    weights = {name: value.detach().cpu().contiguous() for name, value in denoiser.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(weights, temporary, {"format": FORMAT})
    temporary.replace(path)
    description = {"format": FORMAT, "kind": "edm", "shape": list(shape), "model": model, **about}
    path.with_suffix(".json").write_text(json.dumps(description, indent=1) + "\n")
    return path


def load_denoiser(path: str | Path) -> Denoiser:
    """Load a denoiser, with its averaged weights, in eval mode, on the CPU.

    Args:
        path: A run folder, a checkpoint (.ckpt) of ours, or an exported `denoiser.safetensors`. From a run
            folder the newest of both is taken.

    Raises:
        UserError: If there is nothing that can be read.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        candidates = [file / EXPORT, file / "checkpoints" / "last.ckpt"]
        found = [candidate for candidate in candidates if candidate.exists()]
        if not found:
            raise UserError(f"expected {EXPORT} or checkpoints/last.ckpt in the run folder {file}, found neither")
        file = max(found, key=lambda candidate: candidate.stat().st_mtime)
    if not file.exists():
        raise UserError(f"expected a run folder, a checkpoint or an exported denoiser at {file}, found nothing")
    return _from_export(file) if file.suffix == ".safetensors" else load_checkpoint(file)[0]


def load_checkpoint(file: Path) -> tuple[EDMDenoiser, tuple[int, ...]]:
    """The denoiser in a checkpoint of ours, with its averaged weights, and the shape (C, H, W) of its images.

    Raises:
        UserError: For any other file; nothing in it is run.
    """
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        config = checkpoint["hyper_parameters"]["config"]
        model, shape = config["model"], config["shape"]
        prefix = "denoiser."
        items = checkpoint["state_dict"].items()
        weights = {name.removeprefix(prefix): value for name, value in items if name.startswith(prefix)}
    except Exception as error:  # torch.load has no base class for what a damaged or foreign file raises
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"expected a checkpoint of gaussbias at {file}: {reason}") from None
    return _rebuild(model, shape, weights, file), tuple(shape)


def _from_export(file: Path) -> EDMDenoiser:
    description = file.with_suffix(".json")
    try:
        about = json.loads(description.read_text())
        weights = load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot read the denoiser {file} and {description.name} beside it: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError(f"expected a description of format {FORMAT} in {description}")
    return _rebuild(about.get("model"), about.get("shape"), weights, file)


def _rebuild(model: Any, shape: Any, weights: dict[str, torch.Tensor], file: Path) -> EDMDenoiser:
    try:
        section = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), model))
        assert isinstance(section, ModelConfig)
        channels, height, width = shape
        denoiser = EDMDenoiser(backbones.build(section, (channels, height, width)), section.sigma_data)
        denoiser.load_state_dict(weights)
    except (OmegaConfBaseException, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the weights in {file} are not those of its model: {reason}") from None
    return denoiser.eval().requires_grad_(False)
