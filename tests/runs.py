"""Real runs in processes of their own, and whether two of them are the same."""

import csv
import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pretend
import pytest
import torch
from safetensors import safe_open

SMALL = [
    "model.backbone=mlp",
    "model.channels=16",
    "data.n_train=300",
    "train.batch_size=32",
    "probes.draws=32",
    "probes.samples=8",
    "probes.sampler_steps=4",
    "probes.theories=[]",
    "run.wandb=disabled",
    "run.pictures=none",
]
TIMES = ("probes/seconds", "probes/share", "train/images_per_second")
"""What differs between runs that are the same."""
FILES = ("*.safetensors", "denoiser.json", "probes/*", "samples/*", "figures/*", "figures/samples/*")

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["gaussbias.training.run"])  # importing torch takes longer than these runs


class Run:
    """`python -m gaussbias.fit` with these arguments, in a process of its own that goes on while the test does.

    Args:
        arguments: Of the command.
        said: File for its output.
        fault: Called in the process before the command, as `fault(*about)`; a function at the top of a module.
        module: Whose command it is.
        environment: More variables.
    """

    alive: ClassVar[list] = []

    def __init__(self, *arguments, said, fault=None, about=(), module="gaussbias.fit", **environment):
        self.said_to = Path(said)
        self.said_to.unlink(missing_ok=True)
        given = [str(argument) for argument in arguments]
        self.process = _server.Process(target=_main, args=(given, str(said), fault, about, environment, module))
        self.process.start()
        self.alive.append(self.process)

    @classmethod
    def end_all(cls):
        """Kill what a test that failed has left."""
        for process in cls.alive:
            process.kill()
            process.join()
        cls.alive.clear()

    @property
    def said(self):
        return self.said_to.read_text(errors="replace") if self.said_to.exists() else ""

    def send(self, number):
        os.kill(self.process.pid, number)

    def until(self, happened, timeout=100):
        """Wait until something has happened in a run that has not ended."""
        stop = time.monotonic() + timeout
        while not happened():
            assert self.process.exitcode is None, f"it ended with {self.process.exitcode}: {self.said}"
            assert time.monotonic() < stop, self.said
            time.sleep(0.005)

    def end(self, timeout=200):
        """Wait for its end: its exit code, and what it said."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, self.said
        return self.process.exitcode, self.said


def _main(arguments, said, fault, about, environment, module):
    main = importlib.import_module(module).main
    torch.set_num_threads(1)  # threads that wait for one another are slower where several runs share two cores
    os.environ.pop("WANDB_SERVICE", None)  # of the tests' own process, which may have ended
    os.environ.update(environment)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what runs behind it ignore Ctrl-C
    if fault is not None:
        fault(*about)
    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)


def command(*arguments, timeout=200, **environment):
    """The command as a user types it, to its end: its exit code, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "gaussbias.fit", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=timeout,
    )
    return done.returncode, done.stdout


def rows(folder):
    """Rows of history.csv as they are, without a last one that is being written."""
    path = folder / "history.csv"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def checkpoint(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)


def differences(a, b):
    """What differs between two finished runs: rows, and tensors or numbers of the last checkpoint, by name."""
    found = []
    one, two = ([{k: v for k, v in row.items() if k not in TIMES and v} for row in rows(run)] for run in (a, b))
    if len(one) != len(two):
        found.append(f"{len(one)} rows and {len(two)}")
    for i, (x, y) in enumerate(zip(one, two, strict=False)):
        found += [f"row {i}: {key}" for key in {**x, **y} if x.get(key) != y.get(key)]
    first, second = checkpoint(a), checkpoint(b)
    for part in first.keys() | second.keys():
        if part not in ("loops", "hyper_parameters", "callbacks"):
            found += _differ(first.get(part), second.get(part), part)
    files = [{file.relative_to(run) for place in FILES for file in run.glob(place)} for run in (a, b)]
    found += [str(file) for file in files[0] ^ files[1]]
    for file in files[0] & files[1]:
        if file.suffix == ".safetensors":
            found += _differ(_contents(a / file), _contents(b / file), str(file))
    return found


def _contents(file):
    with safe_open(file, "pt") as opened:
        return {"metadata": opened.metadata(), **{key: opened.get_tensor(key) for key in opened.keys()}}  # noqa: SIM118


def _differ(a, b, name):
    if isinstance(a, dict) and isinstance(b, dict):
        return [line for key in a.keys() | b.keys() for line in _differ(a.get(key), b.get(key), f"{name}.{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [line for i in range(len(a)) for line in _differ(a[i], b[i], f"{name}.{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [name]
    same = a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
    return [] if same else [name]


def apart(test):
    """A test in a process of its own, for what stays changed in one; in an empty folder."""
    return _apart(test, None)


def pretended(**given):
    """A test in a process of its own in which there is a pretend CUDA device (`pretend.install(**given)`)."""

    def decorate(test):
        return pytest.mark.skipif(pretend.can_be() is not None, reason=str(pretend.can_be()))(_apart(test, given))

    return decorate


def _apart(test, given):
    def run(tmp_path):
        process = _server.Process(target=_test, args=(test.__module__, test.__name__, given, str(tmp_path)))
        process.start()
        Run.alive.append(process)
        process.join(200)
        assert process.exitcode == 0, (tmp_path / "said").read_text(errors="replace")

    run.__name__, run.__doc__, run.itself = test.__name__, test.__doc__, test
    return run


def _test(module, name, given, folder):
    file = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    test = getattr(importlib.import_module(module), name).itself
    if given is not None:
        have_device(given)
    os.chdir(folder)
    test()


def have_device(given):
    """Put the pretend device in place in this process; a `fault` for a `Run`."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # which hides it
    pretend.install(**given)
