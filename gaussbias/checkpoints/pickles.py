"""EDM's pickles as inert trees of names, numbers and tensors: nothing that is in them is run.

A pickle is a programme that calls what it names. This reader knows the few names of EDM's checkpoints, gives each of
them a stand-in that only stores its arguments, and refuses all others. In particular

- classes come with their source text, which EDM executes; here its length is all that is looked at;
- tensors' bytes are pickles of their own, for which EDM's `torch.storage._load_from_bytes` would run anything; here
  they are read by the same reader, with names of storages alone.

Python's own unpickler, rather than the one in C, does the work, since its steps can be bound: keys of dicts and members
of sets are texts and numbers (those that nest can take forever to hash), and only objects of ours are given a state.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

NUMBERS = {"f8": "d", "f4": "f", "i8": "q", "i4": "i", "b1": "?"}
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
}
MOST = 100_000
"""Parts of a network."""
LARGEST_KEY = 2**32
"""Numbers that are keys are smaller; multiples of 2^61 - 1 all have the same hash."""
DIMENSIONS = 8
"""A tensor has so many at most."""
BAD_TENSOR = "the bytes of a tensor are not those of a tensor"


class Refused(ValueError):
    """A pickle asks for what is no part of a checkpoint."""


def _check_keys(items: Any) -> None:
    """Raise `Refused` for keys whose hashes take long, or are made to be the same."""
    if not all(isinstance(item, str) or (isinstance(item, int) and abs(item) < LARGEST_KEY) for item in items):
        raise Refused("it has a dict or set of other things than texts and numbers")


def _refusal(name: str) -> Refused:
    return Refused(f"it asks for {name}, which is no part of a checkpoint of EDM")


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

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or one of the constructor's arguments by name."""
        attributes = self.state if isinstance(self.state, dict) else {}
        arguments = attributes.get("_init_kwargs")
        return attributes.get(name, arguments.get(name, default) if isinstance(arguments, dict) else default)


def read_pickle(file: Path) -> Any:
    """What a pickle of EDM holds: dicts, lists, numbers, tensors and `Stored` objects.

    Raises:
        Refused: If it names anything else, before that is looked up.
        ValueError: If it is damaged, or its tensors are larger than the file.
    """
    with file.open("rb") as opened:
        return _Unpickler(opened, _StandIns(file.stat().st_size).table()).load()


_Python: Any = pickle._Unpickler


class _Unpickler(_Python):  # type: ignore[misc]
    """Knows the given globals and no others."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Python.dispatch)

    def __init__(self, file: Any, known: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a global."""
        known = self._known.get((module.replace("numpy._core.", "numpy.core."), name))
        if known is None:
            raise _refusal(f"{module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> Any:
        """Nothing is stored outside of the file."""
        raise Refused("it asks for an object outside of the file")

    def _keys(self, items: list[Any]) -> None:
        _check_keys(items)

    def load_setitem(self) -> None:
        self._keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._keys(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        self._keys(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        self._keys(self.stack)
        super().load_frozenset()

    def load_build(self) -> None:
        """Keep the state; what else there may be has none."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], Stored):
            self.stack[-1].state = state
        elif not isinstance(self.stack[-1], dict):
            raise Refused("it gives a state to what has none")

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.BUILD[0]] = load_build


class _StorageUnpickler(_Unpickler):
    """For the bytes of a storage, which name its type and refer to what follows them."""

    def persistent_load(self, pid: Any) -> Any:
        """The type, the key and the number of elements."""
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            raise Refused(BAD_TENSOR)
        return pid


def _read_storage(data: bytes) -> Tensor:
    """The elements of a storage as `torch.save` wrote it before it wrote zips.

    That is five pickles (a magic number, a version, the machine, the storage, the keys of what follows), and for the
    one key the number of elements and these themselves.
    """
    file, known = io.BytesIO(data), {("torch", name): dtype for name, dtype in STORAGES.items()}
    try:
        _, _, _, pid, keys = (_StorageUnpickler(file, known).load() for _ in range(5))
        dtype, key = pid[1], pid[2]
        (count,) = struct.unpack("<q", file.read(8))
        raw = file.read()
        if keys != [key] or not isinstance(dtype, torch.dtype) or count != pid[4] or len(raw) != count * dtype.itemsize:
            raise Refused(BAD_TENSOR)
        return torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    except Refused:
        raise
    except Exception as error:  # damaged bytes can raise anything
        raise Refused(BAD_TENSOR) from error


class _Dict(dict[Any, Any]):
    """For `EasyDict`, whose attributes are its items; without arguments, since copies take memory."""

    def __init__(self) -> None:
        super().__init__()


class _Module(Stored):
    """For containers of modules, which are stored by their state alone."""

    def __init__(self) -> None:
        super().__init__("ModuleDict")


class _StandIns:
    """What stands for each global, made anew for each file, so that a file can change none but its own.

    Args:
        limit: Bytes that all tensors have at most, and that what is made anew of what is stored once has.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self.tensors_left = self.copies_left = limit
        self.dict_kind, self.module_kind = (type(kind.__name__.strip("_"), (kind,), {}) for kind in (_Dict, _Module))
        self.plain_object, self.plain_dict = _named("__builtin__.object"), _named("__builtin__.dict")

    def table(self) -> dict[tuple[str, str], Any]:
        """By module and name."""
        return {
            ("builtins", "set"): self.members,
            ("__builtin__", "set"): self.members,  # protocols 0 to 2 have names of Python 2
            ("__builtin__", "object"): self.plain_object,
            ("__builtin__", "dict"): self.plain_dict,
            ("copy_reg", "_reconstructor"): self.reconstruct,
            ("_codecs", "encode"): self.encode,
            ("torch_utils.persistence", "_reconstruct_persistent_obj"): _persistent,
            ("dnnlib.util", "EasyDict"): self.dict_kind,
            ("collections", "OrderedDict"): _ordered,
            ("torch.nn.modules.container", "ModuleDict"): self.module_kind,
            ("torch._utils", "_rebuild_parameter"): _parameter,
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
            ("torch.storage", "_load_from_bytes"): self.storage,
            ("numpy", "dtype"): _dtype,
            ("numpy", "ndarray"): _named("numpy.ndarray"),
            ("numpy.core.multiarray", "_reconstruct"): _array,
            ("numpy.core.multiarray", "scalar"): _scalar,
        }

    def count(self, size: int) -> None:
        """What is made anew of something stored once, each time that it is named, takes memory."""
        self.copies_left -= size
        if self.copies_left < 0:
            raise Refused("its texts and sets are larger than the file")

    def members(self, items: Any = ()) -> set[Any]:
        """For the sets of protocols 0 to 3."""
        _check_keys(items if isinstance(items, list | tuple) else [None])
        self.count(len(items))
        return set(items)

    def encode(self, text: Any, encoding: Any = None) -> bytes:
        """For the bytes of protocols 0 to 2, which are stored as texts."""
        if not isinstance(text, str) or encoding != "latin1":
            raise Refused(BAD_TENSOR)
        self.count(len(text))
        return text.encode("latin1")

    def reconstruct(self, kind: Any, base: Any, state: Any) -> Any:
        """For objects of protocols 0 and 1: containers, and dicts, which are taken as they are."""
        if kind is self.module_kind and base is self.plain_object and state is None:
            return self.module_kind()
        if kind is self.dict_kind and base is self.plain_dict and isinstance(state, dict):
            return state
        raise Refused("it has an object that is not of a class")

    def storage(self, data: Any) -> Tensor:
        """For the bytes of a storage."""
        if not isinstance(data, bytes):
            raise Refused(BAD_TENSOR)
        self.tensors_left -= len(data)
        if self.tensors_left < 0:
            raise Refused("its tensors are larger than the file")
        return _read_storage(data)

    def tensor(self, stored: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        """For a tensor in a storage."""
        places = (offset, *size, *stride) if isinstance(size, tuple) and isinstance(stride, tuple) else ("",)
        if not isinstance(stored, Tensor) or len(places) > 2 * DIMENSIONS + 1:
            raise Refused(BAD_TENSOR)
        if not all(isinstance(place, int) and 0 <= place <= self.limit for place in places):
            raise Refused(BAD_TENSOR)
        if math.prod(size) > stored.numel():
            raise Refused("a tensor is larger than its storage")
        return torch.as_strided(stored, size, stride, offset)


def _named(name: str) -> Callable[..., NoReturn]:
    """What may be named as the base of an object, and not be called."""

    def call(*_: Any) -> NoReturn:
        raise _refusal(name)

    return call


def _ordered() -> OrderedDict[Any, Any]:
    return OrderedDict()


def _persistent(about: Any) -> Stored:
    """For an object of a class whose source text is stored with it."""
    if not isinstance(about, dict) or about.get("type") != "class" or not isinstance(about.get("class_name"), str):
        raise Refused("it has an object that is not of a class")
    source = about.get("module_src")
    return Stored(about["class_name"], len(source) if isinstance(source, str) else 0, about.get("state"))


def _parameter(data: Any, *_: Any) -> Tensor:
    if not isinstance(data, Tensor):
        raise Refused("a parameter is no tensor")
    return data


def _dtype(kind: Any, *_: Any) -> Stored:
    return Stored(kind if isinstance(kind, str) else "")


def _array(*_: Any) -> Stored:
    """For an array of NumPy's, which nothing here looks into."""
    return Stored("ndarray")


def _scalar(kind: Any, data: Any = b"") -> float | int | bool:
    """For a number of NumPy's."""
    name = kind.name if isinstance(kind, Stored) else ""
    if name not in NUMBERS or not isinstance(data, bytes):
        raise Refused(f"it has a number of another type than {', '.join(NUMBERS)}")
    number: float | int | bool = struct.unpack(f"<{NUMBERS[name]}", data)[0]
    return number


def tensors_of(module: Any) -> dict[str, Tensor]:
    """Parameters and buffers of a stored network by their dotted names.

    Raises:
        ValueError: If it is not one.
    """
    tensors: dict[str, Tensor] = {}
    waiting = [("", module)]
    for _ in range(MOST):  # parts may hold one another
        if not waiting:
            return tensors
        name, part = waiting.pop()
        for inner, value in _own(part, tensors, name):
            waiting.append((f"{name}{inner}.", value))
    raise ValueError("the network has too many parts")


def _own(module: Any, tensors: dict[str, Tensor], prefix: str) -> list[tuple[str, Any]]:
    """Add the tensors of a module alone to `tensors`; returns its parts."""
    state = module.state if isinstance(module, Stored) else None
    if not isinstance(state, dict):
        raise ValueError("a part of the network is not stored as one")
    for group in ("_parameters", "_buffers"):
        for name, value in _items(state, group):
            if value is not None and not isinstance(value, Tensor):
                raise ValueError(f"{name} is no tensor")
            if value is not None:
                tensors[prefix + name] = value
    return [(name, part) for name, part in _items(state, "_modules") if part is not None]


def _items(state: dict[str, Any], group: str) -> list[tuple[str, Any]]:
    values = state.get(group, {})
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"its {group} are not named")
    return list(values.items())
