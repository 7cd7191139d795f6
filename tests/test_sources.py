"""Readers of files from outside: what they give, and what they refuse."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import struct
import sys
import tarfile
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from gaussbias.data.images import downsample
from gaussbias.data.sources import ImageFolder, idx
from gaussbias.data.sources.cifar10 import cifar10 as read_cifar10
from gaussbias.data.sources.download import download
from gaussbias.fit import main
from gaussbias.system.errors import UserError


def refused(text, call, *arguments, **keys):
    with pytest.raises(UserError, match=text) as caught:
        call(*arguments, **keys)
    assert "\n" not in str(caught.value)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


# idx


def idx_bytes(array, kind=8):
    return struct.pack(">BBBB", 0, 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_files_packed_or_not(tmp_path, pixels):
    grey = pixels[..., 0]
    for name, content in (("plain", idx_bytes(grey)), ("packed.gz", gzip.compress(idx_bytes(grey)))):
        (tmp_path / name).write_bytes(content)
        assert np.array_equal(idx(tmp_path / name).images.numpy(), grey[:, None])
    (tmp_path / "colour").write_bytes(idx_bytes(pixels.transpose(0, 3, 1, 2)))
    assert np.array_equal(idx(tmp_path / "colour").images.numpy(), pixels.transpose(0, 3, 1, 2))


def test_idx_files_that_cannot_be_used_say_why(tmp_path, pixels):
    def written(content):
        (tmp_path / "x").write_bytes(content)
        return tmp_path / "x"

    grey = pixels[..., 0]
    huge = struct.pack(">5I", 0x0804, 2**31, 3, 2**31, 2**31)
    refused("data.path: expected a file, found none", idx, tmp_path / "none")
    refused("expected an idx file .* got something else", idx, written(b"\x89PNG"))
    refused("expected an idx file", idx, written(b""))
    refused("holds labels", idx, written(idx_bytes(np.zeros(6, np.uint8))))
    refused("holds type 0x0d in 3 dimensions", idx, written(idx_bytes(grey.astype(">f4"), 13)))
    refused("cut short: expected 6 x 1 x 8 x 8 bytes, found 383", idx, written(idx_bytes(grey)[:-1]))
    refused(
        "half of this machine's memory",
        idx,
        written(huge + bytes(384)),
    )
    refused("1 or 3 channels", idx, written(idx_bytes(np.zeros((2, 5, 4, 4), np.uint8))))
    refused("cut short in its header", idx, written(idx_bytes(grey)[:10]))
    refused("found more", idx, written(idx_bytes(grey) + b"x"))
    packed = bytearray(gzip.compress(idx_bytes(grey)))
    packed[-8] ^= 1  # the checksum
    refused("damaged or was cut short .*CRC", idx, written(packed))
    refused("damaged or was cut short", idx, written(gzip.compress(idx_bytes(grey))[:-20]))


# folders


def saved(image, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def test_a_folder_gives_its_images_in_the_order_of_their_paths(tmp_path, pixels):
    for i, name in enumerate(["b/2.png", "a/1.png", "0.bmp", "a/.hidden.png", "__MACOSX/a.png"]):
        saved(pixels[i], tmp_path / name)
    (tmp_path / "dataset.json").write_text("{}")
    source = ImageFolder(tmp_path)
    assert source.names == ["0.bmp", "a/1.png", "b/2.png"]
    assert np.array_equal(source.read(torch.tensor([2, 0])).numpy(), pixels[[0, 2]].transpose(0, 3, 1, 2))


def test_a_folder_is_grey_if_all_its_images_are(tmp_path, pixels):
    saved(pixels[0, ..., 0], tmp_path / "a.png")
    assert ImageFolder(tmp_path).read(torch.tensor([0])).shape == (1, 1, 8, 8)
    saved(pixels[1], tmp_path / "b.png")
    got = ImageFolder(tmp_path).read(torch.arange(2)).numpy()
    assert np.array_equal(got[0], np.broadcast_to(pixels[0, ..., 0], (3, 8, 8)))
    assert np.array_equal(got[1], pixels[1].transpose(2, 0, 1))


def test_images_of_many_sizes_are_cropped_and_averaged_to_the_resolution(tmp_path):
    wide = np.zeros((4, 12), np.uint8)
    wide[:, 4:8] = np.arange(16).reshape(4, 4) * 10
    saved(wide, tmp_path / "wide.png")
    saved(np.full((2, 2), 7, np.uint8), tmp_path / "z.png")
    refused("of one size, or data.resolution=PIXELS .* wide.png has 4 x 12 and z.png has 2 x 2", ImageFolder, tmp_path)
    refused("data.resolution: expected at most 2, the size of z.png", ImageFolder, tmp_path, 3)
    got = ImageFolder(tmp_path, 2).read(torch.arange(2))
    assert got.tolist() == [[[[25, 45], [105, 125]]], [[[7, 7], [7, 7]]]]
    assert torch.equal(downsample(torch.from_numpy(wide)[None, None], 2)[0], got[0])


def test_photographs_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    saved(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40, tmp_path / "a.png", exif=exif)
    got = ImageFolder(tmp_path).read(torch.tensor([0]))[0, 0]
    assert torch.equal(got, torch.rot90(torch.arange(6).view(2, 3) * 40, -1).to(torch.uint8))


def test_folders_that_cannot_be_used_say_why(tmp_path, pixels):
    refused("data.path: expected a folder of images, found none", ImageFolder, tmp_path / "none")
    (tmp_path / "file").write_text("x")
    refused("found a file", ImageFolder, tmp_path / "file")
    refused("expected images in .*, found 1 other files", ImageFolder, tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n not an image")
    refused("broken.png does not decode", ImageFolder, tmp_path)
    saved(pixels[0], tmp_path / "broken.png")
    whole = (tmp_path / "broken.png").read_bytes()
    (tmp_path / "broken.png").write_bytes(whole[:-60])
    refused("broken.png does not decode .*; replace or remove it", ImageFolder(tmp_path).read, torch.tensor([0]))
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "broken.png")
    refused("broken.png: expected 8 bits a channel", ImageFolder(tmp_path).read, torch.tensor([0]))


def test_links_are_followed_once_and_what_is_not_a_file_is_left_out(tmp_path, pixels):
    saved(pixels[0], tmp_path / "set" / "a.png")
    saved(pixels[1], tmp_path / "elsewhere" / "b.png")
    (tmp_path / "set" / "self").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "more").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "set" / "pipe.png")
    (tmp_path / "set" / "paper.pdf").write_text("%PDF")
    assert ImageFolder(tmp_path / "set").names == ["a.png", "more/b.png"]


@pytest.mark.parametrize(("side", "resolution"), [(32, 8), (33, 32), (50, 32), (7, 3)])
def test_averaging_is_over_exact_areas(side, resolution):
    """Each pixel cut into `resolution` parts a side, each of which belongs to one larger pixel alone."""
    images = torch.randint(0, 256, (3, 2, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    fine = images.double().repeat_interleave(resolution, -1).repeat_interleave(resolution, -2)
    exact = fine.unflatten(-1, (resolution, side)).unflatten(-3, (resolution, side)).mean((-1, -3))
    got = downsample(images.double(), resolution)
    assert (got - exact).abs().max() < 255 * 1e-6  # float32
    assert (downsample(images, resolution).double() - exact).abs().max() <= 0.5 + 255 * 1e-6


# CIFAR-10 as it is published


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as the strings of Python 2, in which CIFAR-10 is published."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value):
        value = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)

    dispatch[str] = dispatch[bytes] = save_string


def as_python_2(data):
    """A batch as its publisher pickled it."""
    file = io.BytesIO()
    labels = [int(row[0]) % 10 for row in data] if getattr(data, "dtype", None) == np.uint8 else []
    Python2Pickler(file, protocol=2).dump({"data": data, "labels": labels, "batch_label": "x"})
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def written_tar(path, batches):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def published(monkeypatch):
    """Five training batches and a test batch of 3 images instead of 10,000, in a random order."""
    monkeypatch.setattr(sys.modules["gaussbias.data.sources.cifar10"], "ROWS", 3)
    random = np.random.default_rng(0)
    batches = {f"data_batch_{i}": random.integers(0, 256, (3, 3072), dtype=np.uint8) for i in (4, 1, 5, 3, 2)}
    return batches | {"test_batch": random.integers(0, 256, (3, 3072), dtype=np.uint8)}


def test_cifar10_from_its_tar(tmp_path, published):
    contents = {name: as_python_2(data) for name, data in published.items()} | {"batches.meta": b"not read"}
    assert b"numpy.core.multiarray" in contents["test_batch"]
    path = written_tar(tmp_path / "cifar-10-python.tar.gz", contents)
    expected = np.concatenate([published[f"data_batch_{i}"] for i in range(1, 6)]).reshape(15, 3, 32, 32)
    source = read_cifar10(path)
    assert source.count == 15
    assert np.array_equal(source.read(torch.arange(15)).numpy(), expected)
    test = read_cifar10(path, test=True).read(torch.arange(3))
    assert np.array_equal(test.numpy(), published["test_batch"].reshape(3, 3, 32, 32))
    assert read_cifar10(path).labels() == [int(image[0, 0, 0]) % 10 for image in expected]


class Harmful:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_no_pickle_in_a_tar_can_run_anything(tmp_path, published):
    for call in (
        (os.system, (f"touch {tmp_path}/was_here",)),
        (eval, ("__import__('os').system('true')",)),
        (getattr, ("", "join")),
        (np.load, (f"{tmp_path}/x",)),
    ):
        for data in (Harmful(call), np.array([Harmful(call)], dtype=object)):
            contents = {name: as_python_2(value) for name, value in published.items()}
            contents["data_batch_3"] = pickle.dumps({b"data": data}, protocol=2)
            path = written_tar(tmp_path / "x.tar.gz", contents)
            refused("asks for .*; nothing was run", read_cifar10, path)
    # types and arrays of other things than numbers are not even made
    for data in (np.array(["x", None], dtype=object), np.zeros((3, 3072), "V8"), np.zeros((3, 3072), "i8"), "text"):
        contents = {name: as_python_2(value) for name, value in published.items()}
        contents["data_batch_3"] = as_python_2(data)
        refused("a batch does not hold 3 rows", read_cifar10, written_tar(tmp_path / "x.tar.gz", contents))
    assert not (tmp_path / "was_here").exists()


def test_tars_that_cannot_be_used_say_why(tmp_path, published):
    contents = {name: as_python_2(data) for name, data in published.items()}
    whole = written_tar(tmp_path / "a.tar.gz", contents)
    (tmp_path / "cut.tar.gz").write_bytes(whole.read_bytes()[:-3000])
    refused("something else or damaged", read_cifar10, tmp_path / "cut.tar.gz")
    (tmp_path / "text").write_text("hello, this is a letter")
    refused("expected cifar-10-python.tar.gz or a zip in EDM's layout", read_cifar10, tmp_path / "text")
    refused("found none at", read_cifar10, tmp_path / "none")
    del contents["data_batch_2"]
    refused("expected data_batch_2 inside", read_cifar10, written_tar(tmp_path / "b.tar.gz", contents))
    contents["data_batch_2"] = as_python_2(np.zeros((3, 100), np.uint8))
    refused("3 rows of 3,072 pixels", read_cifar10, written_tar(tmp_path / "c.tar.gz", contents))
    contents["data_batch_2"] = as_python_2(published["data_batch_2"][:2])
    refused("3 rows of 3,072 pixels", read_cifar10, written_tar(tmp_path / "c.tar.gz", contents))
    contents["data_batch_2"] = b"\x80\x02}q\x00"
    refused("3 rows of 3,072 pixels", read_cifar10, written_tar(tmp_path / "d.tar.gz", contents))
    contents["data_batch_2"], contents["again/data_batch_1"] = contents["test_batch"], contents["data_batch_1"]
    refused("it holds data_batch_1 twice", read_cifar10, written_tar(tmp_path / "e.tar.gz", contents))
    flipped = bytearray(whole.read_bytes())
    flipped[-8] ^= 1  # the checksum of gzip
    (tmp_path / "flipped.tar.gz").write_bytes(flipped)
    refused("something else or damaged .*CRC", read_cifar10, tmp_path / "flipped.tar.gz")


# download


class Server(http.server.BaseHTTPRequestHandler):
    content = b""
    breaks_at = None
    ranges = True
    shift = 0

    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        start = 0
        if self.headers.get("Range") and self.ranges:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            begins = start + self.shift
            self.send_header("Content-Range", f"bytes {begins}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : self.breaks_at])

    def log_message(self, *arguments):
        pass


@contextmanager
def served(content, **settings):
    """A server on this machine alone; its address, and the ranges that it was asked for."""
    handler = type("Handler", (Server,), {"content": content, **settings})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x", server.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_download_is_checked_kept_and_made_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    content = os.urandom(300_000)
    digest = hashlib.sha256(content).hexdigest()
    target = tmp_path / "cache" / "file"
    with served(content) as (url, asked):
        assert download(url, target, digest).read_bytes() == content
        assert download(url, target, digest) == target
        assert asked == [None]
        assert "300k/300k" in capsys.readouterr().err  # a bar
        with pytest.raises(ValueError, match=f"expected SHA-256 {'0' * 64}, got {digest}"):
            download(url, tmp_path / "other", "0" * 64)
    assert sorted(f.name for f in tmp_path.rglob("*") if f.is_file() and f.suffix != ".lock") == ["file"]


def test_a_download_that_broke_off_goes_on_where_it_stopped(tmp_path):
    content = os.urandom(300_000)
    digest = hashlib.sha256(content).hexdigest()
    with served(content, breaks_at=100_000) as (url, _), pytest.raises(OSError, match="broke off"):
        download(url, tmp_path / "file", digest)
    assert (tmp_path / "file.part").stat().st_size == 100_000
    with served(content) as (url, asked):
        assert download(url, tmp_path / "file", digest).read_bytes() == content
    assert asked == ["bytes=100000-"]
    (tmp_path / "other.part").write_bytes(content[:1000])
    with served(content, shift=7) as (url, _), pytest.raises(OSError, match="another part than was asked for"):
        download(url, tmp_path / "other", digest)
    assert (tmp_path / "other.part").read_bytes() == content[:1000]  # nothing is lost
    # a server that knows no ranges sends all of it; one that has nothing left says so
    for part, ranges in ((content[:5], False), (content, True)):
        (tmp_path / "again.part").write_bytes(part)
        with served(content, ranges=ranges) as (url, _):
            assert download(url, tmp_path / "again", digest).read_bytes() == content
        (tmp_path / "again").unlink()


def test_cifar10_without_a_path_is_fetched_once(tmp_path, published, monkeypatch, capsys):
    path = written_tar(tmp_path / "made.tar.gz", {name: as_python_2(data) for name, data in published.items()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = sys.modules["gaussbias.data.sources.cifar10"]  # the package's attribute is the function
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    with served(path.read_bytes()) as (url, asked):
        monkeypatch.setattr(module, "URL", url)
        for _ in range(2):
            assert read_cifar10(None).count == 15
        assert len(asked) == 1
    # with no network: one line that says what is accepted, and where to put it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    capsys.readouterr()
    assert main(["data.source=cifar10", f"run.root={tmp_path}", "run.name=x"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in (
        "data.path=FILE",
        "cifar10-32x32.zip",
        "cifar-10-python.tar.gz",
        str(tmp_path / "empty" / "gaussbias"),
    ):
        assert part in error
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_each_source_runs_from_the_command_line(tmp_path, pixels, published):
    grey = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    (tmp_path / "train-idx3").write_bytes(idx_bytes(grey))
    for i, image in enumerate(grey):
        saved(image, tmp_path / "folder" / f"{i}.png")
    tar = written_tar(tmp_path / "x.tar.gz", {name: as_python_2(data) for name, data in published.items()})
    keys = ["data.n_heldout=2", "model.backbone=mlp", "model.channels=4", "train.kimg=0.01", "train.batch_size=5"]
    keys += ["probes.draws=32", "probes.samples=2", "probes.sampler_steps=2", "run.wandb=disabled", "run.pictures=none"]
    for source, path, more in (
        ("idx", tmp_path / "train-idx3", []),
        ("folder", tmp_path / "folder", ["data.resolution=4"]),
        ("cifar10", tar, ["data.resolution=4", f"data.heldout_path={tar}"]),
    ):
        arguments = [
            f"data.source={source}",
            f"data.path={path}",
            f"run.root={tmp_path / 'runs'}",
            f"run.name={source}",
        ]
        assert main([*keys, *arguments, *more]) == 0
