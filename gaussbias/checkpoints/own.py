"""Our own checkpoints and exports."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import load_file, save_file

from gaussbias import backbones
from gaussbias.checkpoints.base import FORMAT, Loaded, TrainedOn
from gaussbias.checkpoints.conditional import conditioned
from gaussbias.checkpoints.linear import load_linear
from gaussbias.config import ModelConfig, read_yaml
from gaussbias.denoisers import EDMDenoiser, GaussianDenoiser
from gaussbias.moments import Eigenmoments, stored_fingerprint
from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, reason, run_of, write
from gaussbias.system.run_folder import RunFolder

MOST_CLASSES = 2**20
"""Classes of a network, at most."""


def save_denoiser(
    denoiser: EDMDenoiser, model: dict[str, Any], shape: tuple[int, ...], folder: Path, **about: Any
) -> Path:
    """Write `denoiser.safetensors` (weights) and `denoiser.json` (how to rebuild it), for use without unpickling.

    Args:
        denoiser: The denoiser.
        model: The `model` section of its configuration, as a dict.
        shape: (C, H, W) of its images.
        folder: Where to write.
        about: More to say in the JSON file, such as `kimg` and `weights`; of its classes it is said how many there are.

    Returns:
        Path of the safetensors file.
    """
    path = RunFolder(folder).denoiser
    weights = {name: value.detach().cpu().contiguous() for name, value in denoiser.state_dict().items()}
    with complete(path) as temporary:
        save_file(weights, temporary, {"format": FORMAT})
    classes = {"classes": denoiser.classes} if denoiser.classes else {}
    model = {**model, "sigma_data": denoiser.sigma_data}  # which may have been measured
    description = {"format": FORMAT, "kind": "edm", "shape": list(shape), "model": model, **classes, **about}
    write(path.with_suffix(".json"), json.dumps(description, indent=1) + "\n")
    return path


def save_gaussian(moments: Eigenmoments, folder: Path, data_fingerprint: str, kimg: float) -> Path:
    """Write `moments.safetensors`, and `gaussian.json`, which says that a run's denoiser is that of its moments."""
    places = RunFolder(folder)
    moments.save(places.moments, data_fingerprint)
    name = places.moments.name
    about = {"format": FORMAT, "kind": "gaussian", "shape": list(moments.shape), "moments": name, "kimg": kimg}
    write(places.gaussian, json.dumps(about, indent=1) + "\n")
    return places.gaussian


def newest(folder: Path) -> Path:
    """The newest checkpoint or export of a run folder.

    Raises:
        UserError: If it has neither.
    """
    places = RunFolder(folder)
    if places.gaussian.exists():
        return places.moments
    for file in (places.linear, places.last, places.denoiser):  # an export is made of the last checkpoint
        if file.exists():
            return file
    names = f"{places.denoiser.name}, {places.linear.name} or checkpoints/last.ckpt"
    raise UserError(f"expected {names} in the run folder {folder}, found none")


def load_own(file: Path, weights: str = "ema", labels: str | None = None) -> Loaded:
    """The denoiser in a checkpoint (.ckpt) of ours, or in an export.

    Args:
        file: The file.
        weights: `ema`, the averaged ones where there is an average, or `raw`, which only a checkpoint has beside it.
        labels: Of a class-conditional network.

    Raises:
        UserError: If there is nothing that can be read, or it has no such weights or labels.
    """
    loaded = _load(file, weights)
    try:
        if isinstance(loaded.denoiser, EDMDenoiser):
            denoiser, classes = loaded.denoiser, loaded.denoiser.classes
            denoiser.backbone, denoiser.classes = conditioned(denoiser.backbone, classes, labels)
            if classes:
                loaded.notes.append(f"{classes} classes, labels={labels}")
                return replace(loaded, identity=repr((loaded.identity, labels)))
        elif labels is not None:
            raise ValueError(f"it has no classes: expected no labels, got {labels}")
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    return loaded


def _load(file: Path, weights: str) -> Loaded:
    """The denoiser in a file, with all its classes.

    Raises:
        UserError: If there is nothing that can be read, or it has no such weights.
    """
    if file.suffix != ".safetensors":
        network, shape, reached = load_checkpoint(file, weights)
        kind = f"checkpoint of gaussbias, {weights} weights"
        return Loaded(network, kind, shape, reached, trained_on=_trained_on(file))
    kind = _kind(file)
    if kind == "linear":
        surrogate, about = load_linear(file)
        return Loaded(surrogate, "linear surrogate", surrogate.shape, _number(about.get("kimg")))
    if kind == "moments":
        return _gaussian(file)
    denoiser, shape, stored, kimg = _from_export(file)
    if weights == "raw" and stored != "raw":
        raise UserError(f"expected raw weights in {file}, which has averaged ones; checkpoints have both")
    return Loaded(denoiser, f"export of gaussbias, {stored} weights", shape, kimg, trained_on=_trained_on(file))


def _trained_on(file: Path) -> TrainedOn:
    """The images of the run that a file lies in, as far as what is beside it can be read."""
    run = run_of(file)
    images = dropout = None
    if run is not None:
        with suppress(UserError):
            images = stored_fingerprint(RunFolder(run).moments)
        with suppress(UserError, OmegaConfBaseException):
            stored = read_yaml(RunFolder(run).config)
            if OmegaConf.select(stored, "data.labels"):
                dropout = bool(OmegaConf.select(stored, "model.label_dropout"))
    return TrainedOn(fingerprint=images or None, drops_labels=dropout)


def load_checkpoint(file: Path, kind: str = "ema") -> tuple[EDMDenoiser, tuple[int, ...], float]:
    """The denoiser in a checkpoint of ours, the shape (C, H, W) of its images, and how many kimg it was trained.

    Args:
        file: The checkpoint.
        kind: `ema`, its averaged weights if it has an average, or `raw`.

    Raises:
        UserError: For any other file; nothing in it is run.
    """
    try:
        check_archive(file)
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        config = checkpoint["hyper_parameters"]["config"]
        averaged = "current_model_state" in checkpoint
        if config["module"]["kind"] != "edm":
            raise ValueError(
                f"it is for --resume of a run of module.kind={config['module']['kind']}; give the run folder"
            )
        model, shape = config["model"], config["shape"]
        prefix = "denoiser."
        items = checkpoint["current_model_state" if averaged and kind == "raw" else "state_dict"].items()
        kimg = checkpoint["global_step"] * config["train"]["batch_size"] / 1000
        weights = {name.removeprefix(prefix): value for name, value in items if name.startswith(prefix)}
    except Exception as error:  # torch.load has no base class for what a damaged or foreign file raises
        known = isinstance(error, (ValueError, OSError)) and not isinstance(error, UnpicklingError)
        why = reason(error) if known else "it is damaged, or another program wrote it"
        raise UserError(f"expected a checkpoint of gaussbias at {file}: {why}") from None
    return _rebuild(model, shape, weights, file, config.get("classes", 0)), tuple(shape), kimg


def check_archive(file: Path) -> None:
    """Raise `ValueError` for a checkpoint that unpacks to more than it is: torch stores tensors as they are."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile:
        raise ValueError("it is damaged, or another program wrote it") from None
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is compressed")
    if sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise ValueError("it unpacks to more than it is")


def _from_export(file: Path) -> tuple[EDMDenoiser, tuple[int, ...], str, float | None]:
    """The denoiser, the shape of its images, which of its weights they are, and its kimg."""
    description = file.with_suffix(".json")
    try:
        about = json.loads(description.read_text())
        weights = load_file(file)
    except Exception as error:  # nested JSON, types that torch lacks, ...
        raise UserError(f"cannot read the denoiser {file} and {description.name} beside it: {reason(error)}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError(f"expected a description of format {FORMAT} in {description}")
    denoiser = _rebuild(about.get("model"), about.get("shape"), weights, file, about.get("classes", 0))
    return denoiser, tuple(about["shape"]), str(about.get("weights")), _number(about.get("kimg"))


def _kind(file: Path) -> str:
    """What a safetensors file holds: moments have no description beside them."""
    try:
        return str(json.loads(file.with_suffix(".json").read_text())["kind"])
    except Exception:
        return "moments" if stored_fingerprint(file) is not None else "edm"


def _gaussian(file: Path) -> Loaded:
    """The Gaussian denoiser of moments, and how many kimg they were taken from, if a run says it."""
    moments = Eigenmoments.load(file)
    if moments is None:
        raise UserError(f"cannot read the moments {file}")
    try:
        kimg = json.loads(RunFolder(file.parent).gaussian.read_text())["kimg"]
    except Exception:
        kimg = None
    return Loaded(GaussianDenoiser(moments).eval(), "Gaussian denoiser", moments.shape, _number(kimg))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53) else None


def _rebuild(model: Any, shape: Any, weights: dict[str, torch.Tensor], file: Path, classes: Any) -> EDMDenoiser:
    """The denoiser; no larger than its weights, whatever the description beside them says."""
    try:
        section = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), model))
        assert isinstance(section, ModelConfig)
        channels, height, width = shape
        if type(classes) is not int or not 0 <= classes <= MOST_CLASSES:
            raise ValueError(f"expected a number of classes up to {MOST_CLASSES:,}, got {classes!s:.40}")
        if section.sigma_data == "auto":
            raise ValueError("expected a number as sigma_data, got auto")
        if section.layers_per_block * len(section.channel_mult) > len(weights):
            raise ValueError(f"{len(weights)} tensors are too few for so many layers")
        if any(value.device.type != "cpu" for value in weights.values()):
            raise ValueError("a tensor is not there")
        if sum(value.nbytes for value in weights.values()) > file.stat().st_size:
            raise ValueError("they are more than the file")
        with torch.device("meta"):  # takes no memory
            backbone = backbones.build(section, (channels, height, width), classes)
            denoiser = EDMDenoiser(backbone, section.sigma_data, classes)
        denoiser.load_state_dict(weights, assign=True)
    except Exception as error:  # what a description from elsewhere leads to can raise anything
        raise UserError(f"the weights in {file} are not those of its model: {reason(error)}") from None
    return denoiser.eval().requires_grad_(False)
