"""The networks of EDM's and EDM2's checkpoints from their descriptions: class names, arguments and weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gaussbias.backbones.dhariwal import DhariwalUNet
from gaussbias.backbones.edm2 import MagnitudePreservingUNet
from gaussbias.backbones.songunet import SongUNet
from gaussbias.checkpoints.base import Loaded, TrainedOn
from gaussbias.checkpoints.conditional import conditioned
from gaussbias.denoisers import (
    EDMDenoiser,
    IDDPMDenoiser,
    PreconditionedDenoiser,
    VEDenoiser,
    VPDenoiser,
    iddpm_levels,
)

NETWORKS: dict[str, type[nn.Module]] = {
    "SongUNet": SongUNet,
    "DhariwalUNet": DhariwalUNet,
    "UNet": MagnitudePreservingUNet,
}
OF_EDM2 = "Precond"
"""The preconditioning of EDM2, that of EDM."""
PRECONDITIONINGS = ("EDMPrecond", "VPPrecond", "VEPrecond", "iDDPMPrecond", OF_EDM2)
UNUSED = ("augment_dim", "label_dropout")
"""Arguments that mean something only in training."""
AUGMENT = "map_augment.weight"
"""What takes the labels of augmentations, which are absent when images are denoised."""
LEVELS = "u"
"""The noise levels of iDDPM, beside the weights."""
TEXTS = ("embedding_type", "encoder_type", "decoder_type")
LISTS = ("channel_mult", "attn_resolutions", "resample_filter")
FRACTIONS = ("dropout", "label_balance", "concat_balance", "res_balance", "attn_balance")
OPTIONAL = ("channel_mult_noise", "channel_mult_emb", "clip_act")
"""Arguments of EDM2's network that may be None."""
LONGEST, LARGEST = 16, 2**20
"""The longest of these lists, and the largest number in them and elsewhere."""
MOST_STEPS = 100_000
"""Noise levels of iDDPM, at most."""
ROUND_OFF = 2e-3
"""Relative error of these levels: EDM computes them in float32."""


@dataclass(frozen=True)
class Description:
    """A network of EDM or EDM2, without its weights.

    Attributes:
        preconditioning: One of `PRECONDITIONINGS`.
        constants: Of the preconditioning, by EDM's names: `sigma_data`, `beta_d`, `beta_min`, `M`, `epsilon_t`, `C_1`,
            `C_2`, `sigma_min`, `sigma_max`; those that are missing have EDM's values.
        network: One of `NETWORKS`.
        arguments: Of its constructor.
    """

    preconditioning: str
    constants: dict[str, float]
    network: str
    arguments: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        side = self.arguments["img_resolution"]
        return self.arguments["in_channels"], side, side

    @property
    def classes(self) -> int:
        """Number of classes; 0 has none."""
        return int(self.arguments.get("label_dim", 0))


def build_denoiser(
    description: Description, weights: Mapping[str, Tensor], labels: str | None = None
) -> PreconditionedDenoiser:
    """The denoiser, in eval mode, on the CPU, in float32.

    Args:
        description: What it is.
        weights: Of the network, by EDM's names; with `u`, the noise levels of iDDPM, if they are stored.
        labels: Of a class-conditional network: `data`, `average`, `none` or the number of a class.

    Raises:
        ValueError: For what is not known, or weights that are not those of the network.
    """
    network, weights = build_network(description, len(weights)), dict(weights)
    levels = weights.pop(LEVELS, None)
    network.load_state_dict(weights, assign=True)  # checks names and shapes
    network.float()
    backbone, classes = conditioned(network, description.classes, labels)
    denoiser = precondition(description, backbone, levels, classes).eval().requires_grad_(False)
    missing = [name for name, value in (*denoiser.named_buffers(), *denoiser.named_parameters()) if value.is_meta]
    if missing:  # torch computes with them, and what comes out means nothing
        raise ValueError(f"it lacks {', '.join(missing)}")
    return denoiser


def load_network(
    description: Description,
    weights: Mapping[str, Tensor],
    labels: str | None,
    kimg: float | None,
    notes: Sequence[str],
    images: TrainedOn,
) -> Loaded:
    """The denoiser, with what is known of it.

    Raises:
        ValueError: As `build_denoiser` does.
    """
    classes = [f"{description.classes} classes, labels={labels}"] if description.classes else []
    edm2 = description.preconditioning == OF_EDM2
    drops = bool(description.arguments.get("label_dropout")) if classes else None  # EDM2 never drops labels
    return Loaded(
        build_denoiser(description, weights, labels),
        "EDM2" if edm2 else f"{description.preconditioning} of EDM with {description.network}",
        description.shape,
        kimg,
        [*notes, *classes],
        repr((description, labels)),
        replace(images, drops_labels=drops),
    )


def build_network(description: Description, tensors: int) -> nn.Module:
    """The network on the meta device, which takes no memory.

    Raises:
        ValueError: For a class or an argument that is not known, or more layers than so many tensors are enough for.
    """
    if description.network not in NETWORKS:
        raise ValueError(f"expected a network {', '.join(NETWORKS)}, found {description.network}")
    kind = NETWORKS[description.network]
    known = inspect.signature(kind).parameters
    given = {name: value for name, value in description.arguments.items() if name not in UNUSED}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{description.network} has no arguments {', '.join(unknown)}")
    for name, value in given.items():
        _check_argument(name, value)
    levels, blocks = (given.get(name, known[name].default) for name in ("channel_mult", "num_blocks"))
    if len(levels) * blocks > tensors:
        raise ValueError(f"{tensors} tensors are too few for {len(levels)} levels of {blocks} blocks")
    channels, outputs = (int(given.get(name, 0)) for name in ("in_channels", "out_channels"))
    if outputs != channels * (1 + (description.preconditioning == "iDDPMPrecond")):
        raise ValueError(f"{outputs} channels of output do not go with {channels} of images")
    with torch.device("meta"):
        return kind(**given)


def _check_argument(name: str, value: Any) -> None:
    """Raise `ValueError` for an argument of another type than networks have, or so large that building them is slow."""
    if name in TEXTS:
        good = isinstance(value, str)
    elif name in LISTS:
        good = isinstance(value, list | tuple) and len(value) <= LONGEST and all(_is_size(item) for item in value)
    elif name in FRACTIONS:
        good = isinstance(value, float | int) and 0 <= value < 1
    elif name in OPTIONAL and value is None:
        good = True
    else:
        good = _is_size(value)
    if not good:
        raise ValueError(f"the argument {name} of its network has another type, or is too large")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def precondition(
    description: Description, backbone: nn.Module, levels: Tensor | None = None, classes: int = 0
) -> PreconditionedDenoiser:
    """The denoiser of a network with so many classes, with the noise levels of iDDPM if they are stored.

    Raises:
        ValueError: For a preconditioning that is not known.
    """
    name, constants = description.preconditioning, description.constants
    if name in ("EDMPrecond", OF_EDM2):
        denoiser: PreconditionedDenoiser = EDMDenoiser(backbone, constants.get("sigma_data", 0.5), classes)
    elif name == "VPPrecond":
        denoiser = VPDenoiser(
            backbone,
            constants.get("beta_d", 19.9),
            constants.get("beta_min", 0.1),
            int(constants.get("M", 1000)),
            constants.get("epsilon_t", 1e-5),
            classes,
        )
    elif name == "VEPrecond":
        denoiser = VEDenoiser(backbone, classes=classes)
    elif name == "iDDPMPrecond":
        steps = int(constants.get("M", 1000))
        if not 2 <= steps <= MOST_STEPS:
            raise ValueError(f"expected 2 to {MOST_STEPS:,} steps M of iDDPM, found {steps}")
        known = iddpm_levels(constants.get("C_1", 0.001), constants.get("C_2", 0.008), steps)
        if levels is not None and (
            levels.shape != known.shape or not torch.allclose(levels.double(), known, rtol=ROUND_OFF, atol=0)
        ):
            raise ValueError("its noise levels u are not those of its constants C_1, C_2 and M")
        denoiser = IDDPMDenoiser(backbone, known if levels is None else levels, classes)
    else:
        raise ValueError(f"expected a preconditioning {', '.join(PRECONDITIONINGS)}, found {name}")
    low, high = denoiser.sigma_range
    denoiser.sigma_range = constants.get("sigma_min", low), constants.get("sigma_max", high)
    return denoiser
