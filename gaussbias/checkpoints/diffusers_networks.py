"""The networks of diffusers that denoise images, from their folders: U-Nets and diffusion transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
from diffusers import DiTTransformer2DModel, UNet2DModel
from safetensors import safe_open
from torch import Tensor, nn

from gaussbias.denoisers.wrapped import numbers
from gaussbias.system.errors import UserError
from gaussbias.system.files import reason

Network: TypeAlias = UNet2DModel | DiTTransformer2DModel
KINDS: dict[str, Any] = {"UNet2DModel": UNet2DModel, "DiTTransformer2DModel": DiTTransformer2DModel}
WEIGHTS = "diffusion_pytorch_model*.safetensors"


def read_network(folder: Path) -> Network:
    """The network in a folder, in float32, with all weights in their places.

    Raises:
        UserError: For another network, weights that are no safetensors or not its own, and a network that does not take
            any time.
    """
    settings = read_json(folder / "config.json")
    name = settings.get("_class_name")
    if name not in KINDS:
        raise UserError(f"{folder}: expected one of {', '.join(KINDS)}, found {name!s:.60}")
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
    _check_weights(folder, settings)
    with quiet():
        network, about = KINDS[name].from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
            variant=variant(folder),
        )
    missing = [*about["missing_keys"], *about["unexpected_keys"], *about["mismatched_keys"]]
    if missing:  # diffusers fills them with random numbers, and warns
        raise UserError(f"{folder}: the weights are not those of its config.json ({missing[0]})")
    whole: Network = network.float()
    return whole


def _check_weights(folder: Path, settings: dict[str, Any]) -> None:
    """Raise `UserError` for files that are no safetensors, and for more layers than they have tensors for."""
    if "quantization_config" in settings:
        raise UserError(f"{folder}: expected weights that are not quantised, found quantization_config")
    for index in folder.glob("diffusion_pytorch_model*.index.json"):
        others = [name for name in set(read_json(index).get("weight_map", {}).values()) if not _is_safe(name)]
        if others:
            raise UserError(f"{folder}: expected weights as safetensors, found {others[0]!s:.100} in {index.name}")
    tensors = 0
    for file in folder.glob(WEIGHTS):
        with safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    levels, layers = settings.get("block_out_channels", [1]), settings.get("layers_per_block", 2)
    layers = settings.get("num_layers", layers)
    if not isinstance(levels, list) or not isinstance(layers, int) or len(levels) * layers > tensors:
        raise UserError(f"{folder}: {tensors} tensors are too few for the layers that config.json asks for")


def _is_safe(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors")


def variant(folder: Path) -> str | None:
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


def shape_of(network: Network) -> tuple[int, int, int]:
    """(C, H, W) of the images.

    Raises:
        ValueError: If its configuration does not say it, or the output does not go with it.
    """
    channels, size = network.config.in_channels, network.config.sample_size
    outputs = network.config.out_channels or channels
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise ValueError(f"expected the size of its images as sample_size, found {size}")
    if outputs not in (channels, 2 * channels):
        raise ValueError(f"{outputs} channels of output do not go with {channels} of images")
    return channels, sides[0], sides[1]


def gives_variances(network: Network) -> bool:
    """Whether the second half of its output is a variance."""
    channels = network.config.in_channels
    return bool((network.config.out_channels or channels) != channels)


class ImageNetwork(nn.Module):
    """A network of diffusers as F(x, t), of which one with classes gets one-hot rows as well.

    Attributes:
        classes: Number of classes; 0 without.
        null_label: The label of a transformer for no class; `None`: it cannot be told none.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.null_label: int | None = None
        if isinstance(network, DiTTransformer2DModel):
            self.classes = int(network.config.num_embeds_ada_norm)
            table = network.transformer_blocks[0].norm1.emb.class_embedder.embedding_table
            self.null_label = self.classes if len(table.weight) > self.classes else None
        else:
            self.classes = _classes(network)

    def forward(self, x: Tensor, time: Tensor, labels: Tensor | None = None) -> Tensor:
        """The output (B, C or 2 C, H, W), of images (B, C, H, W), times (B,) and rows (B, classes)."""
        given = None if labels is None else numbers(labels, self.null_label)
        result: Tensor = self.network(x, time, given).sample
        return result


def _classes(network: UNet2DModel) -> int:
    """The number of classes of a U-Net."""
    if network.class_embedding is None:
        return 0
    classes = network.config.num_class_embeds or 0
    if not classes or network.config.class_embed_type is not None:
        raise ValueError(f"expected numbered classes, found class_embed_type={network.config.class_embed_type}")
    return int(classes)


def read_json(file: Path) -> dict[str, Any]:
    """A dict from a file.

    Raises:
        UserError: If there is none.
    """
    try:
        about = json.loads(file.read_bytes())
        if not isinstance(about, dict):
            raise ValueError("it is no dict")
    except Exception as error:  # nested JSON
        raise UserError(f"cannot read {file}: {reason(error)}") from None
    return about


@contextmanager
def quiet() -> Iterator[None]:
    """Without diffusers' advice."""
    before = diffusers.utils.logging.get_verbosity()
    diffusers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        diffusers.utils.logging.set_verbosity(before)
