"""Image models of diffusers, from the folders that `save_pretrained` makes, with safetensors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
from diffusers import DiTTransformer2DModel
from torch import Tensor, nn

from gaussbias.checkpoints.base import Loaded
from gaussbias.checkpoints.conditional import conditioned
from gaussbias.checkpoints.diffusers_networks import (
    ImageNetwork,
    gives_variances,
    quiet,
    read_json,
    read_network,
    shape_of,
    variant,
)
from gaussbias.denoisers import DiscreteDenoiser, EDMDenoiser, FlowDenoiser, PreconditionedDenoiser
from gaussbias.denoisers.preconditioned import Coefficients
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason

PIPELINES = {"DDPMPipeline": "unet", "DDIMPipeline": "unet", "PNDMPipeline": "unet", "DiTPipeline": "transformer"}
"""Those that denoise images, or latents, from nothing or from a class; and what their network is called."""
SCHEDULERS = (
    *("DDPMScheduler", "DDPMParallelScheduler", "DDIMScheduler", "DDIMParallelScheduler", "PNDMScheduler"),
    *("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler", "LMSDiscreteScheduler"),
    *("KDPM2DiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "DPMSolverMultistepScheduler"),
    *("DPMSolverSinglestepScheduler", "DEISMultistepScheduler", "UniPCMultistepScheduler", "SASolverScheduler"),
)
"""Those that tell a network the number of the step whose noise an image has."""
EDM_SCHEDULERS = ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler")
FLOW_SCHEDULERS = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
"""Those that tell a network the time of the straight path between an image and noise, times the number of steps."""
TOLD_OTHERWISE = {"timestep_type": "continuous", "use_flow_sigmas": True, "invert_sigmas": True}
"""Settings with which a network is told or predicts something else than at its time steps."""
SCHEDULER = "scheduler_config.json"
MOST = 1_000_000
"""Steps of a scheduler."""


def load_pipeline(folder: Path, labels: str | None = None) -> Loaded:
    """The denoiser of a pipeline or of its network.

    Args:
        folder: With `model_index.json`, `scheduler/`, and `unet/` or `transformer/`, or what these hold beside it; or
            with `config.json` of a `UNet2DModel` or `DiTTransformer2DModel`, and `scheduler_config.json` in it or in
            `scheduler/` beside it.
        labels: Of a class-conditional network: the number of a class, `data`, `average`, or of a transformer `none`.

    Raises:
        UserError: For anything else.
    """
    try:
        place, scheduler = _places(folder)
        settings = read_json(scheduler)
        network = read_network(place)
        image = ImageNetwork(network)
        none = image.null_label is not None
        denoiser, kind = _denoiser(settings, *conditioned(image, image.classes, labels, none=none))
        denoiser.knows_none = none
        shape = shape_of(network)
    except UserError:
        raise
    except Exception as error:  # diffusers' errors have no base class
        raise UserError(f"cannot read the diffusers folder {folder}: {reason(error)}") from None
    notes = [_units(folder, isinstance(network, DiTTransformer2DModel))]
    if gives_variances(network):
        notes.append("of the output the first half is used; the second is a variance")
    if (name := variant(place)) is not None:
        notes.append(f"weights of the variant {name}")
    if settings.get("clip_sample") or settings.get("thresholding"):
        notes.append("its sampler clips denoised images; the denoiser here does not")
    if image.classes:
        notes.append(f"{image.classes} classes, labels={labels}")
    return Loaded(
        denoiser.eval().requires_grad_(False),
        f"diffusers, {type(network).__name__} with {settings['_class_name']} ({kind})",
        shape,
        None,
        notes,
        repr((sorted(dict(network.config).items(), key=str), sorted(settings.items(), key=str), labels)),
    )


def _units(folder: Path, transformer: bool) -> str:
    """What its images are, as far as it says so."""
    if not transformer:
        return "images in -1..1"
    autoencoder = folder / "vae" / "config.json"
    factor = read_json(autoencoder).get("scaling_factor") if autoencoder.is_file() else None
    times = f"times {factor:g}" if isinstance(factor, float | int) else "times its scaling_factor"
    return f"latents, what its autoencoder gives {times}"


def _places(folder: Path) -> tuple[Path, Path]:
    """The folder of the network, and the file of the scheduler's configuration."""
    if (folder / "model_index.json").is_file():
        name = str(read_json(folder / "model_index.json").get("_class_name"))
        if name not in PIPELINES:
            raise UserError(
                f"{folder}: expected a pipeline that denoises images of none or of numbered classes "
                f"({', '.join(PIPELINES)}), found {name:.60}"
            )
        parts = (PIPELINES[name], "scheduler")
        network, scheduler = (folder / part if (folder / part).is_dir() else folder for part in parts)
        return network, scheduler / SCHEDULER
    for place in (folder, folder / "scheduler", folder.parent / "scheduler"):
        if (place / SCHEDULER).is_file():
            return folder, place / SCHEDULER
    raise UserError(
        f"{folder}: expected {SCHEDULER} in it or in scheduler/ beside it, which says what noise its steps have; found "
        "none"
    )


class _NegatedEDM(EDMDenoiser):
    """EDM's preconditioning of diffusers with `v_prediction`: c_out has the other sign."""

    def coefficients(self, sigma: Tensor) -> Coefficients:
        c_skip, c_out, c_in, c_noise = super().coefficients(sigma)
        return c_skip, -c_out, c_in, c_noise


def _denoiser(settings: dict[str, Any], backbone: nn.Module, labels: int) -> tuple[PreconditionedDenoiser, str]:
    """The denoiser, of so many classes, and what its network predicts."""
    name = settings.get("_class_name")
    if name not in (*SCHEDULERS, *EDM_SCHEDULERS, *FLOW_SCHEDULERS):
        raise ValueError(
            f"expected a scheduler that tells its network the time step, or one of EDM or of flow matching, found "
            f"{name!s:.60}, whose network may be told or predict something else"
        )
    for setting, value in TOLD_OTHERWISE.items():
        if settings.get(setting) == value:
            raise ValueError(f"expected {name} that tells its network the time step, found {setting}={value}")
    kind: Any = getattr(diffusers, str(name))
    if not 2 <= settings.get("num_train_timesteps", 1000) <= MOST:
        raise ValueError(f"expected 2 to {MOST:,} steps, found {settings['num_train_timesteps']}")
    with quiet():
        scheduler: Any = kind.from_config(settings)
    if name in FLOW_SCHEDULERS:
        return _flow(scheduler, backbone, labels), "velocity"
    prediction = str(getattr(scheduler.config, "prediction_type", "epsilon"))
    if name in EDM_SCHEDULERS:
        if prediction not in ("epsilon", "v_prediction"):
            raise ValueError(f"expected {name} with epsilon or v_prediction, found {prediction}")
        made = (EDMDenoiser if prediction == "epsilon" else _NegatedEDM)(backbone, scheduler.config.sigma_data, labels)
        made.sigma_range = float(scheduler.config.sigma_min), float(scheduler.config.sigma_max)
        return made, prediction
    return DiscreteDenoiser(backbone, scheduler.alphas_cumprod, prediction, labels), prediction


def _flow(scheduler: Any, backbone: nn.Module, labels: int) -> FlowDenoiser:
    """The denoiser of a network of flow matching, between the times of the scheduler that leave some of the image."""
    denoiser = FlowDenoiser(backbone, float(scheduler.config.num_train_timesteps), classes=labels)
    times = scheduler.sigmas.double()
    times = times[(times > 0) & (times < 1)]
    least, most = float(times.min()), float(times.max())
    denoiser.sigma_range = least / (1 - least), most / (1 - most)
    return denoiser
