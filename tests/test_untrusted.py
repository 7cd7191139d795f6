"""Files from elsewhere: a malicious one of each kind is refused in one line, and nothing in it runs."""

import ast
import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from runs import SMALL
from safetensors.torch import save_file

import gaussbias
from gaussbias.data.sources import open_source
from gaussbias.fit import main as fit
from gaussbias.lens.__main__ import main as lens
from gaussbias.measure import main as measure
from gaussbias.system.errors import UserError
from gaussbias.theories.__main__ import main as theories

PACKAGE = Path(gaussbias.__file__).parent


def test_code_that_a_run_folder_names_is_run_only_if_the_user_names_it(tmp_path, capsys):
    root = ["train.kimg=0.1", "probes.sigmas=[1]", f"run.root={tmp_path}"]
    assert fit([*SMALL, *root, "run.name=x"]) == 0
    run, trace = tmp_path / "x", tmp_path / "trace"
    config = OmegaConf.load(run / "config.yaml")
    plain = (run / "config.yaml").read_text()
    surrogate = [*SMALL, *root, "run.name=y", "module.kind=linear", f"linear.teacher={run / 'denoiser.safetensors'}"]
    lens_line = [str(run / "denoiser.safetensors"), "--data", str(run), f"--out={tmp_path / 'lens'}"]
    for key, value in (
        ("data.source", "os:system"),
        ("probes.theories", ["x=os:system"]),
        ("probes.also", ["os:system"]),
    ):
        evil = config.copy()
        OmegaConf.update(evil, key, value)
        if key == "data.source":
            evil.data.path = f"touch {trace}"
        OmegaConf.save(evil, run / "config.yaml")
        commands = [("measure", measure, [str(run)])]
        if key == "data.source":
            alone = ["--data", str(run), f"--out={tmp_path / 'theories'}"]
            commands += [("lens", lens, lens_line), ("fit", fit, surrogate), ("theories", theories, alone)]
        capsys.readouterr()
        for name, command, line in commands:
            assert command(line) == 2, name
            error = capsys.readouterr().err
            assert "its configuration names code to run" in error, error
            assert f"give {key}=... on the command line as well" in error
            assert error.count("\n") == 1
            assert not trace.exists()
    # a user who names it has it run: of os.system that makes a file, and no images
    evil = config.copy()
    evil.data.source, evil.data.path = "os:system", f"touch {trace}"
    OmegaConf.save(evil, run / "config.yaml")
    assert measure([str(run), "data.source=os:system"]) == 2
    assert trace.exists()
    (run / "config.yaml").write_text(plain)


class Bomb:
    """An object whose pickle makes a file."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (os.system, (f"touch {self.trace}",))


def png(height=8, width=8):
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint8)).save(file, "PNG")
    return file.getvalue()


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tall_png():
    """A picture of 9,000 x 9,000 pixels in its header, and of nothing."""

    def chunk(kind, content):
        import zlib

        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 9000, 9000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def lying_zip(path):
    """A zip whose member says that it unpacks to 100 GB."""
    zipped(path, {"a.png": png()})
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)
    return path


def tar_of(path, name, content):
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return path


def objects(path, trace):
    np.save(path, np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    return path


def objects_in_npz(path, trace):
    np.savez(path, images=np.array([Bomb(trace)], dtype=object))
    return path


def huge_npy(path):
    """One that says that it holds 10^15 numbers."""
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**9, 1, 1000, 1000)}
        np.lib.format.write_array_header_1_0(file, header)
    return path


def huge_npz(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", huge_npy(path.with_suffix(".part")).read_bytes())
    return path


def postscript(path, trace):
    path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(%pipe%touch " + str(trace).encode() + b") "
        b"(w) file closefile\nshowpage\n%%EOF\n"
    )
    return path


def in_folder(tmp_path, write, *arguments):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.png").write_bytes(png())
    (folder / "c.png").write_bytes(png())
    write(folder / "b.png", *arguments)
    return folder


IMAGES = {
    "tar with a name of 5 GB": ("cifar10", lambda t, b: long_name(t / "x.tar.gz"), "unpacks to more than"),
    "tuples in tuples": (
        "cifar10",
        lambda t, b: tar_of(t / "x.tar.gz", "data_batch_1", nested_tuples()),
        "a batch does not hold 10000 rows",
    ),
    "more pictures than memory": ("folder", lambda t, b: many_pictures(t / "x"), "half of this machine's memory"),
    "zip with a path upwards": (
        "edm_zip",
        lambda t, b: zipped(t / "x.zip", {"a.png": png(), "../../b.png": png()}),
        "names a file outside",
    ),
    "zip with an absolute path": (
        "edm_zip",
        lambda t, b: zipped(t / "x.zip", {"/etc/b.png": png()}),
        "names a file outside",
    ),
    "zip with a path of Windows": (
        "edm_zip",
        lambda t, b: zipped(t / "x.zip", {"C:\\b.png": png()}),
        "names a file outside",
    ),
    "zip that unpacks to anything": (
        "edm_zip",
        lambda t, b: zipped(t / "x.zip", {"a.png": bytes(2**28 + 1)}),
        "unpacks to 268,435,457 bytes",
    ),
    "zip that says that it does": ("edm_zip", lambda t, b: lying_zip(t / "x.zip"), "unpacks to 4,294,967,294 bytes"),
    "zip with a huge picture": (
        "edm_zip",
        lambda t, b: zipped(t / "x.zip", {"a.png": tall_png()}),
        "expected at most 67,108,864 pixels, got 9,000 x 9,000",
    ),
    "zip for CIFAR-10": (
        "cifar10",
        lambda t, b: zipped(t / "x.zip", {"a.png": png(), "../b.png": png()}),
        "names a file outside",
    ),
    "pickle in CIFAR-10": (
        "cifar10",
        lambda t, b: tar_of(t / "x.tar.gz", "data_batch_1", pickle.dumps({b"data": Bomb(b)})),
        "asks for posix.system",
    ),
    "tar that unpacks to anything": (
        "cifar10",
        lambda t, b: tar_of(t / "x.tar.gz", "readme", bytes(2**28)),
        "unpacks to more than 268,435,456 bytes",
    ),
    "objects in npy": ("array", lambda t, b: objects(t / "x.npy", b), "expected a .npy or .npz file of numbers"),
    "objects in npz": ("array", lambda t, b: objects_in_npz(t / "x.npz", b), "expected a .npy or .npz file of numbers"),
    "pickle instead of npy": (
        "array",
        lambda t, b: written(t / "x.npy", pickle.dumps(Bomb(b))),
        "expected a .npy or .npz file of numbers",
    ),
    "huge npy": ("array", lambda t, b: huge_npy(t / "x.npy"), "expected a .npy or .npz file of numbers"),
    "huge npz": ("array", lambda t, b: huge_npz(t / "x.npz"), "expected a .npy or .npz file of numbers"),
    "huge idx": (
        "idx",
        lambda t, b: written(t / "x.gz", gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**15, 2**15))),
        "half of this machine's memory",
    ),
    "programme in PostScript": ("folder", lambda t, b: in_folder(t, postscript, b), "does not decode"),
    "huge picture in a folder": (
        "folder",
        lambda t, b: in_folder(t, lambda path: path.write_bytes(tall_png())),
        "a.png has 8 x 8 and b.png has 9000 x 9000",
    ),
}


def long_name(path):
    """A tar whose first header says that the next name has 5 GB."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 5 * 2**30
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            file.write(bytes(2**20))
    return path


def nested_tuples():
    """A dictionary whose key takes 2^200 steps to hash."""
    return b"\x80\x02}(" + b"K\x01" + b"\x85" + b"2\x86" * 200 + b"K\x01u."


def many_pictures(path):
    """Small files that together have more pixels than memory holds."""
    path.mkdir()
    (path / "0.png").write_bytes(png(8000, 8000))
    for i in range(1, 1000):
        os.link(path / "0.png", path / f"{i}.png")
    return path


def written(path, content):
    path.write_bytes(content)
    return path


def read(kind, path, resolution=None):
    source = open_source(kind, path, resolution, "data.path")
    return source.read(torch.arange(source.count))


@pytest.mark.parametrize("name", IMAGES)
def test_malicious_images_are_refused_in_one_line_and_run_nothing(name, tmp_path):
    kind, make, text = IMAGES[name]
    trace = tmp_path / "trace"
    path = make(tmp_path, trace)
    with pytest.raises(UserError) as refused:
        read(kind, path)
    assert text in str(refused.value)
    assert str(refused.value).startswith("data.path: ")
    assert "\n" not in str(refused.value)
    assert not trace.exists()


def test_a_huge_picture_that_is_to_be_shrunk_is_refused(tmp_path):
    folder = in_folder(tmp_path, lambda path: path.write_bytes(tall_png()))
    with pytest.raises(UserError, match="expected at most 67,108,864 pixels"):
        read("folder", folder, resolution=8)


def described(path, **changes):
    """An export whose description says something else."""
    save_file({"a": torch.zeros(3)}, path)
    model = {"backbone": "mlp", "channels": 16, "layers_per_block": 1, **changes}
    about = {"format": "gaussbias.denoiser/1", "kind": "edm", "shape": [1, 8, 8], "model": model}
    path.with_suffix(".json").write_text(json.dumps(about))
    return path


def checkpoint_of(path, content):
    torch.save(content, path)
    return path


def compressed(path):
    """A checkpoint that unpacks to more than it is."""
    torch.save({"state_dict": {"a": torch.zeros(2**20)}}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return zipped(path, members)


def repeated(path):
    """A checkpoint with one number that stands for a billion."""
    config = {"module": {"kind": "edm"}, "model": {"backbone": "mlp", "channels": 2**15}, "shape": [1, 8, 8]}
    one = torch.zeros(1).expand(2**15, 2**15)
    about = {"config": {**config, "train": {"batch_size": 1}}}
    return checkpoint_of(path, {"hyper_parameters": about, "global_step": 1, "state_dict": {"denoiser.a": one}})


DENOISERS = {
    "compressed checkpoint": lambda t, b: compressed(t / "x.ckpt"),
    "repeated number": lambda t, b: repeated(t / "x.ckpt"),
    "pickle in a checkpoint": lambda t, b: checkpoint_of(t / "x.ckpt", {"state_dict": Bomb(b)}),
    "plain pickle": lambda t, b: written(t / "x.ckpt", pickle.dumps(Bomb(b))),
    "pickle in a configuration": lambda t, b: checkpoint_of(t / "x.ckpt", {"hyper_parameters": {"config": Bomb(b)}}),
    "pickle instead of safetensors": lambda t, b: written(t / "x.safetensors", pickle.dumps(Bomb(b))),
    "huge network": lambda t, b: described(t / "denoiser.safetensors", channels=10**9),
    "endless network": lambda t, b: described(t / "denoiser.safetensors", layers_per_block=10**12),
    "impossible network": lambda t, b: described(t / "denoiser.safetensors", backbone="unet", channels=0),
}


@pytest.mark.parametrize("name", DENOISERS)
def test_malicious_denoisers_are_refused_in_one_line_and_run_nothing(name, tmp_path):
    trace = tmp_path / "trace"
    path = DENOISERS[name](tmp_path, trace)
    with pytest.raises(UserError) as refused:
        gaussbias.load_denoiser(path)
    assert "\n" not in str(refused.value)
    assert not trace.exists()


def test_a_malicious_run_folder_is_refused_and_runs_nothing(tmp_path):
    """Its configuration, its checkpoint, its id for W&B and its history, by the real command."""
    trace = tmp_path / "trace"
    folder = tmp_path / "x"
    (folder / "checkpoints").mkdir(parents=True)
    config = folder / "config.yaml"
    keys = [
        "run.wandb=disabled",
        "run.pictures=none",
        f"run.root={tmp_path}",
        "run.name=x",
        "model.backbone=mlp",
        "probes.draws=32",
    ]

    def fit(*arguments):
        command = [sys.executable, "-m", "gaussbias.fit", *keys, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    attack = f"train:\n  lr: !!python/object/apply:os.system ['touch {trace}']\n"
    config.write_text(attack)
    for done in (fit("--resume"), fit("--config", config)):
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "not valid YAML" in done.stderr
    printed = subprocess.run(
        [sys.executable, "-m", "gaussbias.fit", *keys, "--print-config"], capture_output=True, text=True, check=True
    )
    config.write_text(printed.stdout)
    torch.save({"state_dict": Bomb(trace), "global_step": 3}, folder / "checkpoints" / "last.ckpt")
    done = fit("--resume")
    assert done.returncode == 2, done.stderr
    assert "no checkpoint in" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not trace.exists()


def test_nothing_is_unpickled():
    """No unpickler but that of CIFAR-10's batches, which makes no object, and no torch.load that may."""
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "benchmarks").glob("*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert name not in ("pickle.load", "pickle.loads", "pickle.Unpickler", "eval", "exec", "os.system"), file
            assert name != "torch.load" or given["weights_only"] == "True", file
            assert name != "np.load" or given["allow_pickle"] == "False", file
            assert "weights_only" not in given or given["weights_only"] in ("True", "weights_only"), file
            assert "shell" not in given, file
