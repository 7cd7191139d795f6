"""Network pickles with the structure of EDM's, made with stand-in classes from our own networks."""

import pickle
import sys
import types

import torch
from torch import nn


def _module(name, **attributes):
    found = types.ModuleType(name)
    for key, value in attributes.items():
        setattr(found, key, value)
        if isinstance(value, type) or callable(value):
            value.__module__, value.__qualname__ = name, key
    return found


def _reconstruct_persistent_obj(meta):
    raise AssertionError("nothing reconstructs an object")


class EasyDict(dict):
    pass


class Persistent:
    """What is stored with its class name and source text."""

    source = "raise SystemExit('this text was run')\n"

    def __init__(self, name, state, source=None):
        self.about = {
            "type": "class",
            "version": 6,
            "module_src": self.source if source is None else source,
            "class_name": name,
            "state": state,
        }

    def __reduce__(self):
        return _reconstruct_persistent_obj, (self.about,)


STAND_INS = {
    "torch_utils": _module("torch_utils"),
    "torch_utils.persistence": _module(
        "torch_utils.persistence", _reconstruct_persistent_obj=_reconstruct_persistent_obj
    ),
    "dnnlib": _module("dnnlib"),
    "dnnlib.util": _module("dnnlib.util", EasyDict=EasyDict),
}


def stored(module, name=None, source=None, **attributes):
    """A network as EDM stores one: each part by its class, but for containers."""
    parts = {
        key: value if isinstance(value, nn.ModuleDict) and not len(value) else _part(value, source)
        for key, value in module._modules.items()
        if value is not None
    }
    state = {
        "training": False,
        "_parameters": {key: value for key, value in module._parameters.items() if value is not None},
        "_buffers": dict(module._buffers),
        "_modules": parts,
        "_init_args": (),
        "_init_kwargs": EasyDict(),
        **attributes,
    }
    return Persistent(name or type(module).__name__, state, source)


def _part(module, source):
    if isinstance(module, nn.ModuleDict):
        container = nn.ModuleDict()
        container.__dict__["_modules"] = {key: _part(part, source) for key, part in module.items()}
        return container
    return stored(module, source=source)


def network_pickle(
    file,
    network,
    arguments,
    preconditioning="EDMPrecond",
    inner=True,
    source=None,
    extra=None,
    parts=None,
    protocol=None,
    **attributes,
):
    """Write `file`.

    Args:
        file: Where.
        network: Of ours.
        arguments: Of its constructor.
        preconditioning: Class name.
        inner: Whether the arguments are stored with the network, or only with what is around it.
        source: Text of the classes.
        extra: Further entries of the dict.
        parts: Of the preconditioning, instead of the network.
        protocol: Of the pickle; `None` is Python's own, which EDM takes.
        attributes: Of the preconditioning.
    """
    model = stored(network, source=source, **({"_init_kwargs": EasyDict(arguments)} if inner else {}))
    around = EasyDict({k: v for k, v in arguments.items() if k not in ("in_channels", "out_channels")})
    around |= {"img_channels": arguments["in_channels"], "model_type": type(network).__name__, "use_fp16": False}
    outer = nn.Module()
    for name in [key for key in attributes if isinstance(attributes[key], torch.Tensor)]:
        outer.register_buffer(name, attributes.pop(name))
    outer = stored(outer, preconditioning, source, _init_kwargs=around, **attributes)
    outer.about["state"]["_modules"] = parts or {"model": model}
    tree = {
        "ema": outer,
        "loss_fn": Persistent("EDMLoss", {"P_mean": -1.2}, source),
        "augment_pipe": None,
        "dataset_kwargs": EasyDict(class_name="training.dataset.ImageFolderDataset", path="cifar10-32x32.zip"),
        **(extra or {}),
    }
    before = dict(sys.modules)
    sys.modules.update(STAND_INS)
    try:
        file.write_bytes(pickle.dumps(tree, protocol))
    finally:
        for name in STAND_INS:
            sys.modules.pop(name)
        sys.modules.update(before)
    return file
