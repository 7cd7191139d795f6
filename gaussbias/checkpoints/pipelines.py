"""Unconditional image models of diffusers, from the folders that `save_pretrained` makes, with safetensors alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
from diffusers import UNet2DModel
from safetensors import safe_open
from torch import Tensor, nn

from gaussbias.checkpoints.base import Loaded
from gaussbias.checkpoints.conditional import conditioned
from gaussbias.denoisers import EDMDenoiser, PreconditionedDenoiser
from gaussbias.denoisers.discrete import DiscreteDenoiser
from gaussbias.denoisers.preconditioned import Coefficients
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason

PIPELINES = ("DDPMPipeline", "DDIMPipeline", "PNDMPipeline")
"""Those that denoise images in -1..1 without conditions."""
SCHEDULERS = (
    *("DDPMScheduler", "DDPMParallelScheduler", "DDIMScheduler", "DDIMParallelScheduler", "PNDMScheduler"),
    *("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler", "LMSDiscreteScheduler"),
    *("KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "DPMSolverMultistepScheduler"),
    *("DPMSolverSinglestepScheduler", "DEISMultistepScheduler", "UniPCMultistepScheduler", "SASolverScheduler"),
)
"""Those that tell a network the number of the step whose noise an image has."""
EDM_SCHEDULERS = ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler")
TOLD_OTHERWISE = {"timestep_type": "continuous", "use_flow_sigmas": True}
"""Settings with which a network is told or predicts something else than at its time steps."""
WEIGHTS = "diffusion_pytorch_model*.safetensors"
SCHEDULER = "scheduler_config.json"
MOST = 1_000_000
"""Steps of a scheduler."""


def load_pipeline(folder: Path, labels: str | None = None) -> Loaded:
    """The denoiser of a pipeline or of a U-Net.

    Args:
        folder: With `model_index.json`, `unet/` and `scheduler/`, or what these hold beside it; or with `config.json`
            of a `UNet2DModel`, and `scheduler_config.json` in it or in `scheduler/` beside it.
        labels: Of a class-conditional network: the number of a class, `data` or `average`.

    Raises:
        UserError: For anything else.
    """
    try:
        unet, scheduler = _places(folder)
        settings = _read(scheduler)
        network = _network(unet)
        classes = _classes(network)
        denoiser, kind = _denoiser(settings, *conditioned(_Network(network), classes, labels, none=False))
        denoiser.knows_none = False
        shape = _shape(network)
    except UserError:
        raise
    except Exception as error:  # diffusers' errors have no base class
        raise UserError(f"cannot read the diffusers folder {folder}: {reason(error)}") from None
    notes = ["images in -1..1"]
    if network.config.out_channels != network.config.in_channels:
        notes.append("of the output the first half is used; the second is a variance")
    if (variant := _variant(unet)) is not None:
        notes.append(f"weights of the variant {variant}")
    if settings.get("clip_sample") or settings.get("thresholding"):
        notes.append("its sampler clips denoised images; the denoiser here does not")
    if classes:
        notes.append(f"{classes} classes, labels={labels}")
    return Loaded(
        denoiser.eval().requires_grad_(False),
        f"diffusers, UNet2DModel with {settings['_class_name']} ({kind})",
        shape,
        None,
        notes,
        repr((sorted(dict(network.config).items(), key=str), sorted(settings.items(), key=str), labels)),
    )


def _shape(network: UNet2DModel) -> tuple[int, int, int]:
    """(C, H, W) of the images."""
    channels, outputs, size = (getattr(network.config, name) for name in ("in_channels", "out_channels", "sample_size"))
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise ValueError(f"expected the size of its images as sample_size, found {size}")
    if outputs not in (channels, 2 * channels):
        raise ValueError(f"{outputs} channels of output do not go with {channels} of images")
    return channels, sides[0], sides[1]


def _places(folder: Path) -> tuple[Path, Path]:
    """The folder of the U-Net, and the file of the scheduler's configuration."""
    if (folder / "model_index.json").is_file():
        name = str(_read(folder / "model_index.json").get("_class_name"))
        if name not in PIPELINES:
            raise UserError(
                f"{folder}: expected a pipeline that denoises images without conditions ({', '.join(PIPELINES)}), "
                f"found {name}"
            )
        unet, scheduler = (folder / name if (folder / name).is_dir() else folder for name in ("unet", "scheduler"))
        return unet, scheduler / SCHEDULER
    for place in (folder, folder / "scheduler", folder.parent / "scheduler"):
        if (place / SCHEDULER).is_file():
            return folder, place / SCHEDULER
    raise UserError(
        f"{folder}: expected {SCHEDULER} in it or in scheduler/ beside it, which says what noise its steps have; found "
        "none"
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        about = json.loads(file.read_bytes())
        if not isinstance(about, dict):
            raise ValueError("it is no dict")
    except Exception as error:  # nested JSON
        raise UserError(f"cannot read {file}: {reason(error)}") from None
    return about


def _network(folder: Path) -> UNet2DModel:
    settings = _read(folder / "config.json")
    name = settings.get("_class_name")
    if name != "UNet2DModel":
        raise UserError(f"{folder}: expected a UNet2DModel, found {name}")
    if not list(folder.glob(WEIGHTS)):
        others = ", ".join(sorted(p.name for p in folder.glob("*.bin"))) or "none"
        raise UserError(
            f"{folder}: expected weights as safetensors, found {others}; save it again with safe_serialization=True"
        )
    embedding = settings.get("time_embedding_type", "positional")
    if embedding != "positional":
        raise UserError(
            f"{folder}: expected time_embedding_type=positional, which takes any time step, found {embedding}"
        )
    variant = _variant(folder)
    _check_weights(folder, settings)
    with _quiet():
        network, about = UNet2DModel.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
            variant=variant,
        )
    missing = [*about["missing_keys"], *about["unexpected_keys"], *about["mismatched_keys"]]
    if missing:  # diffusers fills them with random numbers, and warns
        raise UserError(f"{folder}: the weights are not those of its config.json ({missing[0]})")
    return network.float()


def _check_weights(folder: Path, settings: dict[str, Any]) -> None:
    """Raise `UserError` for files that are no safetensors, and for more layers than they have tensors for."""
    if "quantization_config" in settings:
        raise UserError(f"{folder}: expected weights that are not quantised, found quantization_config")
    for index in folder.glob("diffusion_pytorch_model*.index.json"):
        others = [name for name in set(_read(index).get("weight_map", {}).values()) if not _is_safe(name)]
        if others:
            raise UserError(f"{folder}: expected weights as safetensors, found {others[0]!s:.100} in {index.name}")
    tensors = 0
    for file in folder.glob(WEIGHTS):
        with safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    levels, layers = settings.get("block_out_channels", ()), settings.get("layers_per_block", 2)
    if not isinstance(levels, list) or not isinstance(layers, int) or len(levels) * layers > tensors:
        raise UserError(f"{folder}: {tensors} tensors are too few for the layers that config.json asks for")


def _variant(folder: Path) -> str | None:
    """The variant of the weights in a folder, such as fp16; `None` if there are those without one."""
    variants: set[str | None] = set()
    for file in folder.glob(WEIGHTS):
        match = re.fullmatch(r"diffusion_pytorch_model(?:\.([\w-]+?))?(?:-\d+-of-\d+)?\.safetensors", file.name)
        if match:
            variants.add(match[1])
    if None in variants:
        return None
    if len(variants) != 1:
        names = ", ".join(sorted(file.name for file in folder.glob(WEIGHTS)))
        raise UserError(f"{folder}: expected weights of one variant, found {names}; leave one of them")
    return variants.pop()


def _is_safe(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without diffusers' advice."""
    before = diffusers.utils.logging.get_verbosity()
    diffusers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        diffusers.utils.logging.set_verbosity(before)


def _classes(network: UNet2DModel) -> int:
    """The number of classes of a network."""
    classes = network.config.num_class_embeds or 0
    if network.class_embedding is None:
        return 0
    if not classes or network.config.class_embed_type is not None:
        raise ValueError(f"expected numbered classes, found class_embed_type={network.config.class_embed_type}")
    return int(classes)


class _Network(nn.Module):
    """A U-Net as F(x, t), of which one with classes gets one-hot rows as well."""

    def __init__(self, network: UNet2DModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None) -> Tensor:
        numbers = None if labels is None else labels.argmax(1)
        result: Tensor = self.network(x, time, class_labels=numbers).sample
        return result


class _NegatedEDM(EDMDenoiser):
    """EDM's preconditioning of diffusers with `v_prediction`: c_out has the other sign."""

    def coefficients(self, sigma: Tensor) -> Coefficients:
        c_skip, c_out, c_in, c_noise = super().coefficients(sigma)
        return c_skip, -c_out, c_in, c_noise


def _denoiser(settings: dict[str, Any], backbone: nn.Module, labels: int) -> tuple[PreconditionedDenoiser, str]:
    """The denoiser, of so many classes, and what its network predicts."""
    name = settings.get("_class_name")
    if name not in (*SCHEDULERS, *EDM_SCHEDULERS):
        raise ValueError(
            f"expected a scheduler that tells its network the time step, or one of EDM, found {name!s:.60}, whose "
            "network may be told or predict something else"
        )
    for setting, value in TOLD_OTHERWISE.items():
        if settings.get(setting) == value:
            raise ValueError(f"expected {name} that tells its network the time step, found {setting}={value}")
    kind: Any = getattr(diffusers, str(name))
    if not 2 <= settings.get("num_train_timesteps", 1000) <= MOST:
        raise ValueError(f"expected 2 to {MOST:,} steps, found {settings['num_train_timesteps']}")
    with _quiet():
        scheduler: Any = kind.from_config(settings)
    prediction = str(getattr(scheduler.config, "prediction_type", "epsilon"))
    if name in EDM_SCHEDULERS:
        if prediction not in ("epsilon", "v_prediction"):
            raise ValueError(f"expected {name} with epsilon or v_prediction, found {prediction}")
        made = (EDMDenoiser if prediction == "epsilon" else _NegatedEDM)(backbone, scheduler.config.sigma_data, labels)
        made.sigma_range = float(scheduler.config.sigma_min), float(scheduler.config.sigma_max)
        return made, prediction
    return DiscreteDenoiser(backbone, scheduler.alphas_cumprod, prediction, labels), prediction
