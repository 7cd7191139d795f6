"""Denoisers on disk: our own files, network pickles of EDM, and diffusers' folders. No code in them is run."""

from __future__ import annotations

from pathlib import Path

from gaussbias.checkpoints.base import Loaded, TrainedOn
from gaussbias.checkpoints.conditional import labels_of
from gaussbias.checkpoints.converted import is_converted, load_converted, save_converted
from gaussbias.checkpoints.edm import Contents, read_edm, trained_on
from gaussbias.checkpoints.linear import load_linear, save_linear
from gaussbias.checkpoints.networks import build_denoiser, load_network
from gaussbias.checkpoints.own import (
    check_archive,
    load_checkpoint,
    load_own,
    newest,
    save_denoiser,
    save_gaussian,
)
from gaussbias.denoisers import Denoiser
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason
from gaussbias.system.run_folder import RunFolder

__all__ = [
    "Contents",
    "Loaded",
    "TrainedOn",
    "build_denoiser",
    "check_archive",
    "labels_of",
    "load",
    "load_checkpoint",
    "load_denoiser",
    "load_linear",
    "newest",
    "read_edm",
    "save_converted",
    "save_denoiser",
    "save_gaussian",
    "save_linear",
]

PICKLE = b"\x80"
"""How a pickle begins."""


def load_denoiser(path: str | Path, labels: str | int | None = None) -> Denoiser:
    """Load a denoiser, with its averaged weights, in eval mode, on the CPU; no code in the file is run.

    Args:
        path: Any of

            - a run folder (the newest of what the run trained), or a checkpoint (.ckpt) of ours;
            - an exported `denoiser.safetensors`, `linear.safetensors` or `moments.safetensors` (the Gaussian denoiser);
            - a network pickle (.pkl) of EDM or EDM2, or what `python -m gaussbias.convert` made of it;
            - a folder of diffusers: a pipeline of images of none or of numbered classes, or a `UNet2DModel` or
              `DiTTransformer2DModel` with its scheduler's configuration, with safetensors.
        labels: Of a class-conditional network: the number of a class, `average` for the mean over all, `none`, or
            `data`, which keeps all classes: `denoiser.given(labels)` is that of some.

    Raises:
        UserError: If there is nothing that can be read.
    """
    return load(Path(path), labels=None if labels is None else str(labels)).denoiser


def load(path: Path, weights: str = "ema", labels: str | None = None) -> Loaded:
    """A denoiser and what is known of it, from anything that `load_denoiser` reads.

    Args:
        path: A folder or a file.
        weights: `ema`, the averaged ones where there is an average, or `raw`, which only our checkpoints have as well.
        labels: Of a class-conditional network.

    Raises:
        UserError: If there is nothing that can be read, or it has no such weights.
    """
    file = path.expanduser()
    if file.name.startswith("diffusion_pytorch_model") and file.is_file():
        file = file.parent
    if not file.exists():
        raise UserError(f"expected a run folder, a checkpoint or an exported denoiser at {file}, found nothing")
    _check_edm_run(file)
    if file.is_dir() and _is_of_diffusers(file):
        from gaussbias.checkpoints.pipelines import load_pipeline

        loaded = load_pipeline(file, labels)
    else:
        file = newest(file) if file.is_dir() else file
        if is_converted(file):
            loaded = load_converted(file, labels)
        elif _is_pickle(file):
            loaded = _of_edm(file, labels)
        else:
            return load_own(file, weights, labels)
    if weights != "ema":
        raise UserError(f"expected averaged weights of {file}, the only ones that it has, got {weights}")
    return loaded


def _of_edm(file: Path, labels: str | None) -> Loaded:
    contents = read_edm(file)
    try:
        images = trained_on(contents.data)
        return load_network(contents.description, contents.weights, labels, contents.kimg, contents.notes, images)
    except Exception as error:  # what a description from elsewhere leads to can raise anything
        raise UserError(f"{file}: {reason(error)}") from None


def _check_edm_run(path: Path) -> None:
    """Raise `UserError` for what EDM's training leaves beside its network pickles, naming one of these."""
    state = path.name.startswith("training-state-") and path.suffix == ".pt"
    folder = path.parent if state else path
    snapshots = sorted(folder.glob("network-snapshot-*.pkl"))
    if state or (path.is_dir() and snapshots and not RunFolder(path).config.exists()):
        what = "what EDM goes on training from" if state else "a run of EDM"
        example = f"such as {snapshots[-1]}" if snapshots else "of which there is none beside it"
        raise UserError(
            f"expected a network pickle of EDM, found {what} at {path}; give network-snapshot-*.pkl, {example}"
        )


def _is_of_diffusers(folder: Path) -> bool:
    return (folder / "model_index.json").is_file() or (folder / "config.json").is_file()


def _is_pickle(file: Path) -> bool:
    try:
        if file.suffix == ".safetensors":  # of which some begin so, by their length
            return False
        with file.open("rb") as opened:
            return file.suffix == ".pkl" or opened.read(1) == PICKLE
    except OSError as error:
        raise UserError(f"cannot read {file}: {reason(error)}") from None
