"""Decoded images in a file: the same images, decoded once, shared, and read as they are needed."""

import json
import os
import resource
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gaussbias.config import load
from gaussbias.data import kept, read_labelled
from gaussbias.data.sources import EDMZip, ImageFolder
from gaussbias.denoisers import EmpiricalDenoiser
from gaussbias.moments import estimate

COUNT, SIZE = 60, 6


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture
def images(pixels, tmp_path, monkeypatch):
    """A zip of images with labels; so few are kept here too."""
    monkeypatch.setattr(kept, "MANY", 30)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, image in enumerate(pixels):
            with archive.open(f"{number:05d}.png", "w") as file:
                Image.fromarray(image).save(file, "PNG")
        labels = [[f"{number:05d}.png", number % 2] for number in range(COUNT)]
        archive.writestr("dataset.json", json.dumps({"labels": labels}))
    return path


@pytest.fixture
def decoded(monkeypatch):
    """How many images were decoded so far."""
    counts = [0]
    for kind in (EDMZip, ImageFolder):

        def read(self, indices, plain=kind.read):
            counts[0] += len(indices)
            return plain(self, indices)

        monkeypatch.setattr(kind, "read", read)
    return counts


def get(path, *keys, cache=None, source="edm_zip"):
    folder = path.parent / "kept" if cache is None else cache
    data = load(
        None, [f"data.source={source}", f"data.path={path}", f"data.cache={folder}", "data.n_heldout=10", *keys]
    )
    return read_labelled(data.data)


def same(a, b):
    assert torch.equal(a.training, b.training)
    assert torch.equal(a.heldout, b.heldout)


def is_mapped(images):
    """Whether a tensor lies in a file."""
    place = images.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= place < end:
            return line.endswith(".npy")
    return False


@pytest.mark.parametrize("keys", [[], ["data.resolution=3"], ["data.labels=true"], ["data.half=S2"]])
def test_kept_images_are_those_that_are_decoded(keys, images, decoded):
    plain = get(images, *keys, cache="null")
    first = get(images, *keys)
    before = decoded[0]
    second = get(images, *keys)
    assert decoded[0] == before
    same(plain, first)
    same(plain, second)
    if plain.labels is not None:
        assert torch.equal(plain.labels, second.labels)
    assert is_mapped(second.training)
    assert not is_mapped(plain.training)


def test_smaller_sets_are_slices_and_other_splits_are_copied(images, decoded):
    """One decoding serves each number of training images and each subset."""
    get(images)
    before = decoded[0]
    for keys in (
        ["data.n_train=5"],
        ["data.n_train=40"],
        ["data.subset_seed=3"],
        ["data.subset_seed=4", "data.n_train=5"],
    ):
        found = get(images, *keys)
        assert decoded[0] <= before + 1  # one that says their size
        before = decoded[0]
        same(found, get(images, *keys, cache="null"))
        before = decoded[0]
    assert len(list((images.parent / "kept").glob("*.npy"))) == 2  # the fewer images of the last are no file


def test_few_images_of_many_make_no_file(images, decoded):
    get(images, "data.n_train=5")
    assert decoded[0] == 15
    assert not (images.parent / "kept").exists()


def test_classes_of_the_same_size_are_not_taken_for_one_another(images, pixels):
    """Both have 30 images, at the same places among themselves."""
    first, second = (get(images, f"data.classes=[{label}]") for label in (0, 1))
    same(first, get(images, "data.classes=[0]", cache="null"))
    same(second, get(images, "data.classes=[1]", cache="null"))
    assert not torch.equal(first.training, second.training)


def test_other_files_are_decoded_anew(images, pixels, decoded):
    get(images)
    text = images.read_bytes()
    with zipfile.ZipFile(images, "a") as archive, archive.open("99999.png", "w") as file:
        Image.fromarray(255 - pixels[0]).save(file, "PNG")
    assert len(get(images).training) == COUNT - 9
    images.write_bytes(text)
    os.utime(images, ns=(1, 1))
    before = decoded[0]
    get(images)
    assert decoded[0] > before


def test_folders_are_known_by_all_of_their_files(pixels, tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(kept, "MANY", 30)
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
    plain = get(folder, source="folder", cache="null")
    same(plain, get(folder, source="folder"))
    before = decoded[0]
    same(plain, get(folder, source="folder"))
    assert decoded[0] == before
    Image.fromarray(255 - pixels[7]).save(folder / "7.png")
    os.utime(folder / "7.png", ns=(2, 2))
    changed = get(folder, source="folder")
    assert decoded[0] > before
    same(changed, get(folder, source="folder", cache="null"))
    assert not torch.equal(torch.cat([plain.training, plain.heldout]), torch.cat([changed.training, changed.heldout]))


def test_held_out_images_of_another_file(images, pixels, tmp_path):
    other = tmp_path / "other.zip"
    shutil.copy(images, other)
    keys = [f"data.heldout_path={other}"]
    same(get(images, *keys, cache="null"), get(images, *keys))
    same(get(images, *keys, cache="null"), get(images, *keys))


def test_a_damaged_file_is_made_again(images, decoded):
    plain = get(images)
    (file,) = (images.parent / "kept").glob("*.npy")
    start = file.read_bytes()[:500]
    file.unlink()  # what is mapped stays what it is, as long as it is not written over
    file.write_bytes(start)
    file.with_suffix(".places").write_bytes(b"")
    same(plain, get(images, cache="null"))
    found = get(images)
    same(found, get(images, cache="null"))
    assert file.stat().st_size > 1000
    file.unlink()
    for damage in (b"", b"PK\x03\x04 something"):
        file.write_bytes(damage)
        same(get(images), found)
        file.unlink()
    file.with_suffix(".places").write_bytes(b"")
    same(get(images, "data.subset_seed=1"), get(images, "data.subset_seed=1", cache="null"))


def test_where_nothing_can_be_kept_images_are_decoded(images, caplog):
    blocked = images.parent / "file"
    blocked.write_text("no folder")
    same(get(images, cache=blocked), get(images, cache="null"))
    assert "data.cache: cannot keep decoded images" in caplog.text
    assert "\n" not in caplog.messages[-1]


def test_a_full_disk_ends_nothing(images, caplog):
    plain = get(images, cache="null")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, most))
    try:
        found = get(images)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    same(found, plain)
    assert "cannot keep decoded images" in caplog.text
    assert not list((images.parent / "kept").glob("*.npy"))


def test_nothing_is_kept_where_there_is_little_room(images, caplog, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=8000))
    same(get(images), get(images, cache="null"))
    assert "are more than half of what is free" in caplog.text


def test_what_a_function_of_the_users_gives_is_not_kept(tmp_path, monkeypatch):
    """Its file stays what it is while the function changes."""
    monkeypatch.setattr(kept, "MANY", 30)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "x.txt").write_text("some")
    text = "import torch\ndef of(path): return torch.arange(960).view(60, 1, 4, 4).fmod(NUMBER).to(torch.uint8)\n"
    (tmp_path / "mine.py").write_text(text + "NUMBER = 251\n")
    first = get(tmp_path / "x.txt", source="mine:of")
    sys.modules["mine"].NUMBER = 7
    assert int(get(tmp_path / "x.txt", source="mine:of").training.max()) == 6 < int(first.training.max())


def test_numbers_that_are_no_pixels_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MANY", 30)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(COUNT, 1, 4, 4)).astype(np.float32))
    get(tmp_path / "x.npy", source="array")
    assert not list((tmp_path / "kept").glob("*.npy"))


def test_images_that_are_read_alone_serve_the_references(images):
    """Moments and D_M take what cannot be written to, and give what they give of a copy, bit for bit."""
    get(images)
    mapped = get(images).training
    assert torch.equal(estimate(mapped).eigenvalues, estimate(mapped.clone()).eigenvalues)
    x = torch.randn(3, 3, SIZE, SIZE)
    assert torch.equal(EmpiricalDenoiser(mapped)(x, 0.5), EmpiricalDenoiser(mapped.clone())(x, 0.5))


LARGE = """
import re, sys
import torch
from pathlib import Path
import gaussbias.numerics.room
from gaussbias import numerics
from gaussbias.config import load
from gaussbias.data import read_labelled
from gaussbias.denoisers import EmpiricalDenoiser
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.modules.datamodule import TrainingBatches
from gaussbias.moments import estimate

def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

x = torch.randn(4, 1, 16, 16)
small = torch.zeros(4096, 1, 16, 16, dtype=torch.uint8).random_()
estimate(small), EmpiricalDenoiser(small)(x, 0.5), NearestImages(small, False)(x)  # what code and libraries take
numerics.room.LARGE = 2**24
before = private()
images = read_labelled(load(None, sys.argv[1:]).data).training
size = images.nbytes / 2**20
estimate(images), EmpiricalDenoiser(images)(x, 0.5), NearestImages(images, False)(x)
next(iter(TrainingBatches(images, 64)))
print(size, private() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@pytest.mark.long
def test_a_large_set_is_read_from_the_file(tmp_path):
    """256 MiB of images: moments, D_M, nearest images and batches take less than a third of that themselves."""
    images = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (2**20, 16, 16))
    generator = np.random.default_rng(0)
    for start in range(0, len(images), 2**16):
        images[start : start + 2**16] = generator.integers(0, 256, (2**16, 16, 16), dtype=np.uint8)
    images.flush()
    keys = [
        "data.source=array",
        f"data.path={tmp_path / 'x.npy'}",
        f"data.cache={tmp_path / 'kept'}",
        "data.n_heldout=10",
    ]
    done = subprocess.run([sys.executable, "-c", LARGE, *keys], capture_output=True, text=True, check=True, timeout=600)
    size, own = map(float, done.stdout.split())
    assert size > 250
    assert own < size / 3, done.stdout  # the places of 2^20 images take 8 MiB each time that they are held
