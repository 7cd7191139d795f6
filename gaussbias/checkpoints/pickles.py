"""EDM's pickles as inert trees of names, numbers and tensors: nothing that is in them is run.

A pickle is a programme that calls what it names. This reader knows the few names of EDM's checkpoints, gives each of
them a stand-in that only stores its arguments, and refuses all others. In particular

- classes come with their source text, which EDM executes; here its length is all that is looked at;
- tensors' bytes are a pickle of their own, for which EDM's `torch.storage._load_from_bytes` would run anything; here
  `torch.load(weights_only=True)` reads them.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ZIP = b"PK"
NUMBERS = {"f8": float, "f4": float, "i8": int, "i4": int, "b1": bool}
MOST = 100_000
"""Parts of a network."""


class Refused(ValueError):
    """A pickle asks for what is no part of a checkpoint."""


@dataclass
class Stored:
    """An object that was stored with its class.

    Attributes:
        name: Of the class.
        source: Length of the source text that was stored with it, in characters.
        state: What was stored: a dict of attributes, of which `_modules`, `_parameters` and `_buffers` are a network's.
    """

    name: str
    source: int = 0
    state: Any = field(default_factory=dict)

    def __setstate__(self, state: Any) -> None:
        """What unpickling calls: keep it."""
        self.state = state

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or one of the constructor's arguments by name."""
        found = self.state if isinstance(self.state, dict) else {}
        arguments = found.get("_init_kwargs")
        return found.get(name, arguments.get(name, default) if isinstance(arguments, dict) else default)


def read_pickle(file: Path) -> Any:
    """What a pickle of EDM holds: dicts, lists, numbers, tensors and `Stored` objects.

    Raises:
        Refused: If it names anything else, before that is looked up.
        ValueError: If it is damaged, or its tensors are larger than the file.
    """
    limit = file.stat().st_size
    with file.open("rb") as opened:
        return _Unpickler(opened, limit).load()


class _Unpickler(pickle.Unpickler):
    """Knows the globals of EDM's checkpoints; made anew for each file, so that a file can change none but its own."""

    def __init__(self, file: Any, limit: int) -> None:
        super().__init__(file)
        self._known = _stand_ins(limit)

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a global."""
        known = self._known.get((module.replace("numpy._core.", "numpy.core."), name))
        if known is None:
            raise Refused(f"it asks for {module}.{name}, which is no part of a checkpoint of EDM")
        return known

    def persistent_load(self, pid: Any) -> Any:
        """Nothing is stored outside of the file."""
        raise Refused("it asks for an object outside of the file")


def _stand_ins(limit: int) -> dict[tuple[str, str], Callable[..., Any]]:
    """What stands for each global.

    Args:
        limit: Bytes that tensors have at most.
    """

    class Dict(dict[Any, Any]):
        """For `EasyDict`, whose attributes are its items."""

    class Module(Stored):
        """For containers of modules, which are stored by their state alone."""

        def __init__(self) -> None:
            super().__init__("ModuleDict")

    def persistent(about: Any) -> Stored:
        if not isinstance(about, dict) or about.get("type") != "class" or not isinstance(about.get("class_name"), str):
            raise Refused("it has an object that is not of a class")
        source = about.get("module_src")
        return Stored(about["class_name"], len(source) if isinstance(source, str) else 0, about.get("state"))

    def storage(data: Any) -> torch.storage.TypedStorage:
        if not isinstance(data, bytes) or data.startswith(ZIP):
            raise Refused("the bytes of a tensor are not those of a tensor")
        try:
            loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load has no base class for what foreign bytes raise
            raise Refused("the bytes of a tensor are not those of a tensor") from error
        if not isinstance(loaded, torch.storage.TypedStorage):
            raise Refused("the bytes of a tensor are not those of a tensor")
        return loaded

    def tensor(stored: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        if not isinstance(stored, torch.storage.TypedStorage):
            raise Refused("a tensor has no storage")
        flat = torch.empty(0, dtype=stored.dtype).set_(stored)
        count = math.prod(size)
        if count > flat.numel() or count * flat.element_size() > limit:
            raise Refused("a tensor is larger than its storage")
        return torch.as_strided(flat, size, stride, offset)

    def parameter(data: Any, *_: Any) -> Tensor:
        if not isinstance(data, Tensor):
            raise Refused("a parameter is no tensor")
        return data

    def dtype(kind: Any, *_: Any) -> Stored:
        return Stored(kind if isinstance(kind, str) else "")

    def scalar(kind: Any, data: Any = b"") -> float | int | bool:
        name = kind.name if isinstance(kind, Stored) else ""
        if name not in NUMBERS or not isinstance(data, bytes):
            raise Refused(f"it has a number of another type than {', '.join(NUMBERS)}")
        import numpy as np

        number: float | int | bool = NUMBERS[name](np.frombuffer(data, f"<{name}", 1)[0])
        return number

    return {
        ("torch_utils.persistence", "_reconstruct_persistent_obj"): persistent,
        ("dnnlib.util", "EasyDict"): Dict,
        ("collections", "OrderedDict"): OrderedDict,
        ("torch.nn.modules.container", "ModuleDict"): Module,
        ("torch._utils", "_rebuild_parameter"): parameter,
        ("torch._utils", "_rebuild_tensor_v2"): tensor,
        ("torch.storage", "_load_from_bytes"): storage,
        ("numpy", "dtype"): dtype,
        ("numpy.core.multiarray", "scalar"): scalar,
    }


def tensors_of(module: Any) -> dict[str, Tensor]:
    """Parameters and buffers of a stored network by their dotted names.

    Raises:
        ValueError: If it is not one.
    """
    found: dict[str, Tensor] = {}
    waiting = [("", module)]
    for _ in range(MOST):  # parts may hold one another
        if not waiting:
            return found
        name, part = waiting.pop()
        for inner, value in _own(part, found, name):
            waiting.append((f"{name}{inner}.", value))
    raise ValueError("the network has too many parts")


def _own(module: Any, found: dict[str, Tensor], prefix: str) -> list[tuple[str, Any]]:
    """Add the tensors of a module alone to `found`; returns its parts."""
    state = module.state if isinstance(module, Stored) else None
    if not isinstance(state, dict):
        raise ValueError("a part of the network is not stored as one")
    for group in ("_parameters", "_buffers"):
        for name, value in _items(state, group):
            if value is not None and not isinstance(value, Tensor):
                raise ValueError(f"{name} is no tensor")
            if value is not None:
                found[prefix + name] = value
    return [(name, part) for name, part in _items(state, "_modules") if part is not None]


def _items(state: dict[str, Any], group: str) -> list[tuple[str, Any]]:
    values = state.get(group, {})
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"its {group} are not named")
    return list(values.items())
