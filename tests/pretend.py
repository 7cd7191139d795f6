"""A pretend CUDA device for builds of torch without one: real values, CUDA's rules about devices.

`install()` puts it in place for a whole process: a tensor on it is a `Pretended`, whose device is cuda and which keeps
its numbers in a CPU tensor inside. A mode sees every operator, checks what CUDA would check, runs it on the tensors
inside and wraps what comes out. Autograd, autocast, fused Adam, DDP (`groups`) and Lightning take it for a GPU.

Checked, with errors worded like CUDA's: operators with tensors of both devices (but for CPU tensors without dimensions
where CUDA takes them, and CPU indices), generators of the other device, `.numpy()`, products of integers, the shapes
and strides that `torch._int_mm` takes, more memory than there is, eigendecompositions that are too large.

Recorded: `waits`, where the host waits for the device; `loads`, where a file is loaded to the device for want of a
`map_location`; `wide`, where so many normal numbers are drawn at once that they depend on the card; `peak` and `live`,
bytes of storages.

`python tests/pretend.py -m gaussbias.fit ...` runs a command on it, with all processes that it starts, and says at the
end of each where it waited; PRETEND='{"count": 2}' are of `card`.

It cannot tell values, determinism and speed of CUDA's kernels, dtypes that single kernels lack, races of streams,
workspaces and fragmentation of memory, compiled code, and NCCL itself.
"""

import contextlib
import ctypes
import functools
import gc
import json
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

aten = torch.ops.aten
CPU = torch.device("cpu")
LIBRARIES = Path(torch.__file__).parent / "lib"
card = SimpleNamespace(  # what there is; tests change it
    device=torch.device("cuda:0"),
    name="pretended",
    count=1,
    capability=(8, 0),
    bf16=True,
    memory=24 * 2**30,
    multiprocessors=108,
    refused=set(),  # rows of products of integers that cuBLAS does not take
    largest_eigh=23_000,
    waiting_is_an_error=False,  # torch.cuda.set_sync_debug_mode
)
waits: Counter = Counter()
loads: Counter = Counter()
wide: Counter = Counter()
grouped: Counter = Counter()

SAME_ON_EVERY_CARD = 2**13
"""Normal numbers that a kernel draws alike on 8 multiprocessors of 1,024 threads and on more."""
COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXING = {
    *(aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default),
    aten._index_put_impl_.default,
}
KNOWN_ON_THE_HOST = {  # the size or the value of the result
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_dim", "histc"),
    *("unique_consecutive", "is_nonzero", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
}
PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "addmv", "addmv_", "mv", "dot", "vdot", "addbmm"}
TAKE_NUMBERS = {  # not pointwise, but fine with a CPU tensor without dimensions
    *("index_fill", "masked_fill", "fill", "index_put", "lerp", "where", "clamp"),
    *("_foreach_mul", "_foreach_add", "_foreach_div"),
}


def can_be():
    """Why there can be no such device here, or None."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return "this build of torch has real devices"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return "the pretend device needs Linux on x86-64 or aarch64"
    return None


class Pretended(torch.Tensor):
    """A tensor on the device; its numbers are in `inner`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            *(cls, inner.size()),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=card.device,
        )
        made.inner, made.life = inner, _Life(inner.untyped_storage())
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    # with these two, nn.Module.to swaps parameters in their place, as it sets the data of real ones
    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pretended(inner["inner"])

    def tolist(self):
        return self.detach().cpu().tolist()

    def numpy(self, *_, **__):
        raise TypeError(f"can't convert {card.device} device type tensor to numpy. Use Tensor.cpu() ... (at {place()})")

    __array__ = numpy

    def __repr__(self, **_):
        return f"Pretended({self.inner!r})"

    def __reduce_ex__(self, protocol):
        plain = self.inner.detach()
        _saved.add(plain.untyped_storage()._cdata)
        if getattr(self, "_is_param", False):
            return torch.nn.Parameter(plain, self.requires_grad).__reduce_ex__(protocol)
        return plain.requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        if not isinstance(value, Pretended) or (value.dtype, value.shape) != (self.dtype, self.shape):
            raise NotImplementedError("pretend: .data of another kind")
        self.inner, self.life = value.inner, value.life


# Memory ---------------------------------------------------------------------------------------------------------------

_storages: dict = {}  # number of tensors on the device that have a storage
_memory = SimpleNamespace(live=0, peak=0)


class _Life:
    """Counts the bytes of a storage while a tensor on the device has it."""

    def __init__(self, storage):
        self.key, self.size = storage._cdata, storage.nbytes()
        if self.key not in _storages:
            _memory.live += self.size
            _memory.peak = max(_memory.peak, _memory.live)
        _storages[self.key] = _storages.get(self.key, 0) + 1
        if _memory.live > card.memory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {self.size / 2**20:.2f} MiB. GPU 0 has a total capacity of "
                f"{card.memory / 2**20:.2f} MiB (at {place()})"
            )

    def __del__(self):
        left = _storages.get(self.key, 0) - 1
        if left > 0:
            _storages[self.key] = left
        elif left == 0:
            del _storages[self.key]
            _memory.live -= self.size


def live():
    """Bytes of storages on the device."""
    return _memory.live


def peak(reset=False):
    """The most bytes there were."""
    most = _memory.peak
    if reset:
        _memory.peak = _memory.live
    return most


# Where, and what is waited for ----------------------------------------------------------------------------------------


def place(folder="gaussbias"):
    """The innermost line of the project that runs, after that of a library that it called; else the innermost line."""
    frame, other = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if f"/{folder}/" in name and "site-packages" not in name:
            line = f"{name[name.rindex(f'/{folder}/') + 1 :]}:{frame.f_lineno}"
            return f"{line} by {other}" if other else line
        if not other and "/torch/" not in name and name != __file__ and not name.startswith("<"):
            other = f"{'/'.join(name.split('/')[-3:])}:{frame.f_lineno}"
        frame = frame.f_back
    return other


def _wait(what):
    waits[what, place()] += 1
    if card.waiting_is_an_error:
        raise RuntimeError(f"called a synchronizing CUDA operation ({what} at {place()})")


@contextlib.contextmanager
def counting():
    """A Counter of what was waited for within a block, by operator and place."""
    before, found = Counter(waits), Counter()
    yield found
    found.update(waits - before)


# Operators ------------------------------------------------------------------------------------------------------------


def _inside(x):
    return x.inner if isinstance(x, Pretended) else CPU if _is_device(x) else x


def _is_device(x):
    return isinstance(x, torch.device) and x.type == "cuda"


def _outside(x):
    return Pretended(x) if isinstance(x, torch.Tensor) and not isinstance(x, Pretended) else x


def _run(func, args, kwargs):
    flat, spec = tree_flatten((args, kwargs))
    here = [x for x in flat if isinstance(x, Pretended)]
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if not here and not _is_device(device):
        _check_generator(func, kwargs, "cpu")
        return func(*args, **kwargs)
    name = func._schema.name.rpartition("::")[2]
    if func in COPIES:
        return _copy(func, args, kwargs, device)
    if device is not None and device.type == "cpu":  # a tensor like another one, on the CPU
        return func(*tree_map(_inside, args), **tree_map(_inside, kwargs))
    if here:
        _check_devices(func, name, flat, here, args)
    _check_generator(func, kwargs, "cuda")
    _check_kernel(name, here, args)
    _note(func, name, args, kwargs)
    if name == "_fused_sdp_choice":
        return 0
    owners = {id(x.inner): x for x in here}
    inner_args, inner_kwargs = tree_unflatten([_inside(x) for x in flat], spec)
    if device is not None:
        inner_kwargs = {**inner_kwargs, "device": CPU}
    result = func(*inner_args, **inner_kwargs)
    if torch.Tag.inplace_view in func.tags:  # which change the shape of the wrapper as well
        with no_dispatch():
            func(*args, **kwargs)
    return tree_map(lambda x: owners[id(x)] if id(x) in owners else _outside(x), result)


def _copy(func, args, kwargs, device):
    """Copies alone may cross over."""
    making = func is aten._to_copy.default
    source = args[0] if making else args[1]
    target = (device or source.device) if making else args[0].device
    asynchronous = kwargs.get("non_blocking", False) or (not making and len(args) > 2 and args[2])
    if source.numel() and source.device.type != target.type:
        if target.type == "cpu":
            _wait("copy to host, which is not waited for and may be read too early" if asynchronous else "copy to host")
        elif not asynchronous:
            _wait("copy to device")
    inner_args, inner_kwargs = tree_map(_inside, (args, kwargs))
    if device is not None:
        inner_kwargs["device"] = CPU
    result = func(*inner_args, **inner_kwargs)
    if not making:
        return args[0] if result is inner_args[0] else _outside(result)
    if result.untyped_storage()._cdata == inner_args[0].untyped_storage()._cdata:
        result = result.clone()
    return Pretended(result) if target.type == "cuda" else result


def _check_devices(func, name, flat, here, args):
    others = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, Pretended)]
    if not others:
        return
    if func in INDEXING and isinstance(args[0], Pretended):
        if any(isinstance(x, torch.Tensor) and not isinstance(x, Pretended) and x.numel() for x in args[1]):
            _wait("index on the host")
        others = [x for x in args[2:3] if isinstance(x, torch.Tensor) and not isinstance(x, Pretended) and x.dim()]
        if others:
            raise _different(here[0], others[0], func)
        return
    if name.startswith("_fused_adam"):
        raise _different(here[0], others[0], func)
    numbers = torch.Tag.pointwise in func.tags or name.rstrip("_") in TAKE_NUMBERS
    if any(x.dim() or not numbers for x in others):
        raise _different(here[0], next(x for x in others if x.dim() or not numbers), func)
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    if writes and isinstance(args[0], torch.Tensor) and not isinstance(args[0], Pretended):
        raise _different(args[0], here[0], func)


def _different(first, second, func):
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first.device} and "
        f"{second.device}! ({func}, {tuple(first.shape)} and {tuple(second.shape)}, at {place()})"
    )


def _check_generator(func, kwargs, device):
    given = kwargs.get("generator")
    found = "cuda" if given is not None and given._cdata in _generators else "cpu"
    if given is not None and found != device:
        raise RuntimeError(f"Expected a '{device}' device type for generator but found '{found}' ({func} at {place()})")


def _check_kernel(name, here, args):
    """What CUDA's kernels lack."""
    unsupported = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"
    if name == "_int_mm":
        a, b = args
        if a.size(0) <= 16:
            raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {a.size(0)}")
        if a.size(1) % 8 or not a.size(1) or b.size(1) % 8 or not b.size(1):
            raise RuntimeError(f"sizes need to be multiples of 8, but got {tuple(a.shape)} and {tuple(b.shape)}")
        if a.stride(1) != 1 or b.stride(0) != 1 or len(a) in card.refused:
            raise RuntimeError(unsupported)
    elif name in PRODUCTS:
        bad = [x.dtype for x in here if not (x.is_floating_point() or x.is_complex())]
        if bad:
            raise RuntimeError(f"\"addmm_cuda\" not implemented for '{str(bad[0])[6:].capitalize()}' (at {place()})")
    elif name == "_embedding_bag" and not args[0].is_floating_point():
        raise RuntimeError('"embedding_bag_cuda" not implemented for integers')
    elif name == "_linalg_eigh" and args[0].shape[-1] > card.largest_eigh:
        raise torch.linalg.LinAlgError(f"cusolver error: CUSOLVER_STATUS_INVALID_VALUE, n = {args[0].shape[-1]}")


def _note(func, name, args, kwargs):
    if name in KNOWN_ON_THE_HOST or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
        _wait(name)
    elif func in INDEXING:
        masks = [x for x in args[1] if isinstance(x, Pretended) and x.dtype in (torch.bool, torch.uint8)]
        number = len(args) > 2 and isinstance(args[2], torch.Tensor) and args[2].numel() == 1
        if masks and not (number and len(args[1]) == 1):  # that is masked_fill
            _wait(f"{name} by a mask")
    elif name in ("randn", "randn_like", "normal_", "normal"):
        size = args[0].numel() if isinstance(args[0], torch.Tensor) else torch.Size(args[0]).numel()
        if size > SAME_ON_EVERY_CARD:
            wide[place()] += 1


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


# Generators, files, streams -------------------------------------------------------------------------------------------

_generators: set = set()
_saved: set = set()


class _Generator(torch._C.Generator):
    """A generator of either device; that of the pretended one draws the CPU's numbers."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.where = torch.device(device)
        _generators.discard(made._cdata)
        if made.where.type == "cuda":  # operators get another object for it, of the same address
            _generators.add(made._cdata)
            weakref.finalize(made, _generators.discard, made._cdata)
        return made

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):
        return card.device if self.where.type == "cuda" else self.where


class _Stream:
    def __init__(self, *_, **__):
        pass

    def synchronize(self):
        _wait("synchronize")

    def wait_stream(self, other):
        pass


def _location(storage):
    return str(card.device) if getattr(storage, "_cdata", None) in _saved else None


def _restore(storage, location):
    if not location.startswith("cuda"):
        return None
    if not visible():
        raise RuntimeError(
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are "
            "running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')"
        )
    loads[place()] += 1
    return storage


# In place of CUDA -----------------------------------------------------------------------------------------------------


def visible():
    """Devices that CUDA_VISIBLE_DEVICES leaves."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return card.count if named is None else min(card.count, len([name for name in named.split(",") if name.strip()]))


def _set_device(device):
    """A process has one device, of any number."""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.index is not None and found != card.device:
        gc.collect()  # metrics are parts of cycles
        assert not live(), "pretend: one device for a process"
        card.device = found


_kept: list = []


def install(**given):
    """Put the device in place, for this whole process; `given` is of `card`."""
    for name, value in given.items():
        assert hasattr(card, name), name
        setattr(card, name, value)
    if not _kept:
        _install()
    if visible() and len(_kept) == 1:  # operators are as usual while the device is hidden
        mode = _Mode()
        mode.__enter__()
        _kept.append(mode)


def _install():
    _guard()
    _without_streams()
    stand_ins = {
        "_lazy_init": lambda: None,
        "is_available": lambda: visible() > 0,
        "is_initialized": lambda: True,
        "device_count": visible,
        "current_device": lambda: card.device.index,
        "set_device": _set_device,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_device_properties": lambda device=None: _properties(),
        "get_device_capability": lambda device=None: card.capability,
        "get_device_name": lambda device=None: card.name,
        "mem_get_info": lambda device=None: (card.memory - live(), card.memory),
        "memory_allocated": lambda device=None: live(),
        "memory_reserved": lambda device=None: live(),
        "max_memory_allocated": lambda device=None: peak(),
        "reset_peak_memory_stats": lambda device=None: peak(reset=True),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: _wait("synchronize"),
        "is_bf16_supported": lambda including_emulation=True: card.bf16 or including_emulation,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": list,
        "set_rng_state": lambda state, device=None: None,
        "set_rng_state_all": lambda states: None,
        "is_current_stream_capturing": lambda: False,
        "nccl": SimpleNamespace(version=lambda: (2, 27)),
        "Stream": _Stream,
        "current_stream": lambda device=None: _Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "set_sync_debug_mode": lambda mode: setattr(card, "waiting_is_an_error", mode == "error"),
    }
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.Generator = _Generator
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # on the way back modules get new parameters
    torch.serialization.register_package(5, _location, _restore)
    _kept.append(torch.autograd.set_multithreading_enabled(False))


def _properties():
    major, minor = card.capability
    found = {"name": card.name, "major": major, "minor": minor, "total_memory": card.memory, "warp_size": 32}
    return SimpleNamespace(**found, multi_processor_count=card.multiprocessors, uuid="pretended", gcnArchName="")


def _without_streams():
    """Autograd then runs backward in line: `at::accelerator::isAccelerator` returns false, in machine code."""
    library = ctypes.CDLL(LIBRARIES / "libtorch_cpu.so")
    start = ctypes.cast(library._ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE, ctypes.c_void_p).value
    code = bytes.fromhex({"x86_64": "31c0c3", "aarch64": "00008052c0035fd6"}[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memmove(start, code, len(code))


def _guard():
    """Torch has a guard for CUDA that does nothing, and sets it in place of one; so it gets one to replace."""
    library = ctypes.CDLL(LIBRARIES / "libc10.so")
    registry = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    nothing = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)(lambda self: 0)
    methods = (ctypes.c_void_p * 64)(*[ctypes.cast(nothing, ctypes.c_void_p).value] * 64)
    fake = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    registry[1] = ctypes.addressof(fake)
    torch._C._ensureCUDADeviceGuardSet()
    assert registry[1] != ctypes.addressof(fake)


def groups():
    """Let gloo stand in for NCCL, which takes tensors on its device alone; call it before there is a process group."""
    dist = torch.distributed.distributed_c10d
    of_nccl = set()
    first, further, where = dist.init_process_group, dist.new_group, dist._get_object_coll_device

    def is_nccl(group):
        return id(group or dist.group.WORLD) in of_nccl

    def init_process_group(backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        first("gloo", *args, **kwargs)
        if "nccl" in str(backend) and "gloo" not in str(backend):
            of_nccl.add(id(dist.group.WORLD))

    def new_group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        made = further(ranks, timeout, "gloo", *args, **kwargs)
        if "gloo" not in str(backend) and (backend is not None or of_nccl):
            of_nccl.add(id(made))
        return made

    def checked(name, call):
        @functools.wraps(call)
        def collective(*args, **kwargs):
            group = kwargs.get("group") or next((x for x in args if isinstance(x, dist.ProcessGroup)), None)
            given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
            if is_nccl(group) and any(not isinstance(x, Pretended) for x in given):
                raise RuntimeError(f"No backend type associated with device type cpu ({name} at {place()})")
            grouped[name, "nccl" if is_nccl(group) else "gloo"] += 1
            return call(*args, **kwargs)

        return collective

    changed = {"init_process_group": init_process_group, "new_group": new_group, "is_nccl_available": lambda: True}
    for name in (
        *("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
        *("reduce", "gather", "scatter", "reduce_scatter"),
    ):
        changed[name] = checked(name, getattr(dist, name))
    for name, value in changed.items():
        setattr(dist, name, value)
        setattr(torch.distributed, name, value)
    dist._get_object_coll_device = lambda group=None: card.device if is_nccl(group) else where(group)
    begin = torch.nn.parallel.DistributedDataParallel.__init__

    def without_timer(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        self.logger = _WithoutTimer(self.logger)

    torch.nn.parallel.DistributedDataParallel.__init__ = without_timer


class _WithoutTimer:
    """DDP's logger without what needs CUDA's timer."""

    def __init__(self, logger):
        self.logger = logger

    def set_runtime_stats_and_log(self):
        pass

    def __getattr__(self, name):
        return getattr(self.logger, name)


def report(file=None):
    """Where the host waited, most often first; nothing of a device that was not used."""
    if not _memory.peak:
        return
    print(f"pretended device: peak {peak() / 2**20:.1f} MB", file=file or sys.stderr)
    found = [*waits.items(), *((("loaded to the device", where), count) for where, count in loads.items())]
    found += [(("wide draw", where), count) for where, count in wide.items()]
    for (what, where), count in sorted(found, key=lambda row: -row[1]):
        print(f"{count:8} {what:30} {where}", file=file or sys.stderr)


SITE = """
import builtins
import sys

usual = builtins.__import__


def watched(name, *arguments, **keywords):
    found = usual(name, *arguments, **keywords)
    torch = sys.modules.get("torch")
    if torch is not None and not torch.__spec__._initializing:
        builtins.__import__ = usual
        sys.path.append({folder!r})
        import pretend

        pretend.install(**{given!r})
        pretend.groups()
        {at_the_end}
    return found


builtins.__import__ = watched
"""
"""Puts the device in place once torch is imported, if it is."""


def site(folder, at_the_end="", **given):
    """Variables for processes that have the device from their start on; `folder` gets a file for that."""
    code = SITE.format(folder=str(Path(__file__).parent), given=given, at_the_end=at_the_end)
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    visible = ",".join(map(str, range(given.get("count", 1))))
    return {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": visible}


def main():
    with tempfile.TemporaryDirectory() as folder:
        said = "import atexit; atexit.register(pretend.report)"
        place = site(Path(folder), said, **json.loads(os.environ.get("PRETEND", "{}")))
        place["PYTHONPATH"] += f"{os.pathsep}{Path.cwd()}"
        return subprocess.run([sys.executable, *sys.argv[1:]], env={**os.environ, **place}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
