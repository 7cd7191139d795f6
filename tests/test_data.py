import io
import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from gaussbias.config import load
from gaussbias.data import sources
from gaussbias.data.images import downsample, mirror, same_image, split, to_unit
from gaussbias.data.sources import names
from gaussbias.modules import build_data
from gaussbias.modules.datamodule import ImageDataModule, TrainingBatches
from gaussbias.probes.bank import ProbeBank
from gaussbias.system.errors import UserError


def write_zip(path, images, ending=".png"):
    with zipfile.ZipFile(path, "w") as archive:
        for i, image in enumerate(images):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, {".png": "PNG", ".jpg": "JPEG"}[ending])
            archive.writestr(f"{i // 3:05d}/img{i:08d}{ending}", buffer.getvalue())
        archive.writestr("dataset.json", json.dumps({"labels": None}))
    return path


def refused(text, call, *arguments):
    with pytest.raises(UserError, match=text) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


# sources


def test_digits_are_scikit_learns():
    images = sources.digits().images
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.uint8
    assert np.array_equal(images.numpy()[:, 0], np.round(load_digits().images * 255 / 16))


def test_edm_zip_gives_its_images_in_the_order_of_names(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
    source = sources.EDMZip(write_zip(tmp_path / "a.zip", pixels))
    assert source.count == 7
    got = source.read(torch.tensor([4, 0, 6]))
    assert np.array_equal(got.numpy(), pixels[[4, 0, 6]].transpose(0, 3, 1, 2))
    grey = sources.EDMZip(write_zip(tmp_path / "b.zip", pixels[..., 0]))
    assert np.array_equal(grey.read(torch.arange(7)).numpy(), pixels[:, None, :, :, 0])


def test_zips_that_cannot_be_used_say_why(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    whole = write_zip(tmp_path / "a.zip", pixels)
    refused("data.path: expected a file, found none at", sources.EDMZip, tmp_path / "none.zip")
    refused("is a folder", sources.EDMZip, tmp_path)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole.read_bytes()[:-200])
    refused("cut short; copy or download it again", sources.EDMZip, cut)
    damaged = bytearray(whole.read_bytes())
    damaged[60:120] = bytes(60)
    (tmp_path / "damaged.zip").write_bytes(damaged)
    source = sources.EDMZip(tmp_path / "damaged.zip")
    refused("img00000000.png in .* does not decode", source.read, torch.arange(4))
    mixed = write_zip(tmp_path / "mixed.zip", [pixels[0], pixels[1, :4]])
    refused(
        "expected images of shape 3 x 8 x 8, but .* has 3 x 4 x 8",
        sources.EDMZip(mixed).read,
        torch.arange(2),
    )
    refused("expected images of shape 3 x 32 x 32", sources.EDMZip(whole, (3, 32, 32)).read, torch.arange(2))
    with zipfile.ZipFile(whole, "a") as archive:
        archive.writestr("__MACOSX/00000/._img00000000.png", "not an image")
    assert sources.EDMZip(whole).count == 4
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("dataset.json", "{}")
    refused("expected images inside", sources.EDMZip, tmp_path / "empty.zip")


def test_arrays_of_each_layout(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)
    np.save(tmp_path / "nchw.npy", pixels)
    np.save(tmp_path / "nhwc.npy", pixels.transpose(0, 2, 3, 1))
    np.save(tmp_path / "grey.npy", pixels[:, 0])
    np.savez(tmp_path / "many.npz", images=pixels, labels=np.arange(5))
    for name, expected in (
        ("nchw.npy", pixels),
        ("nhwc.npy", pixels),
        ("grey.npy", pixels[:, :1]),
        ("many.npz", pixels),
    ):
        assert np.array_equal(sources.array(tmp_path / name).images.numpy(), expected)
    floats = np.linspace(-1, 1, 32).reshape(2, 1, 4, 4)
    np.save(tmp_path / "floats.npy", floats)
    got = sources.array(tmp_path / "floats.npy").images
    assert got.dtype == torch.float32
    assert torch.equal(to_unit(got), torch.from_numpy(floats).float())


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((40, 16, 16, 12), "say which axis has the channels"),
        ((40, 12, 8, 16), "say which axis has the channels"),
        ((40, 3, 8, 3), "which could be either; say which axis"),
        ((40, 1, 8, 1), "which could be either"),
        ((40, 3, 3, 3), "which could be either"),
        ((8, 8, 3), "which may be one image; stack several"),
        ((3, 8, 8), "which may be one image"),
        ((1, 8, 8), "which may be one image"),
        ((8, 8, 1), "which may be one image"),
        ((8, 8, 4), "which may be one image"),
        ((8, 8), "one image is no data set: stack several"),
        ((2, 2, 3, 8, 8), r"or \(N, H, W\), got \(2, 2, 3, 8, 8\)"),
        ((40, 8, 8, 4), "leave out the alpha channel, after you put the images on white"),
        ((40, 4, 8, 8), "leave out the alpha channel"),
        ((40, 8, 8, 2), "leave out the alpha channel"),
        ((0, 3, 8, 8), "got"),
    ],
)
def test_arrays_that_could_be_read_in_two_ways_are_refused(shape, text, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    refused(text, sources.array, tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((40, 8, 6), (40, 1, 8, 6)),
        ((40, 3, 8, 6), (40, 3, 8, 6)),
        ((40, 8, 6, 3), (40, 3, 8, 6)),
        ((40, 1, 3, 6), (40, 1, 3, 6)),
        ((40, 8, 1, 1), None),
        ((40, 4, 16, 16), (40, 4, 16, 16)),
        ((40, 1, 1, 1), (40, 1, 1, 1)),
        ((40, 16, 16, 4), None),
    ],
)
def test_arrays_of_numbers_may_have_any_channels_that_come_first(shape, found, tmp_path):
    """Such as latents."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    if found is None and shape[-1] == 4:
        refused("say which axis has the channels", sources.array, tmp_path / "a.npy")
    else:
        got = sources.array(tmp_path / "a.npy").images.numpy()
        expected = values.transpose(0, 3, 1, 2) if shape[-1] in (1, 3) else values.reshape(found)
        assert np.array_equal(got, expected)


def test_an_array_whose_images_are_square_one_way_alone_is_read_that_way(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (40, 1, 3, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", values)
    assert np.array_equal(sources.array(tmp_path / "a.npy").images.numpy(), values)


def test_arrays_that_cannot_be_used_say_why(tmp_path):
    def saved(value):
        np.save(tmp_path / "a.npy", value, allow_pickle=True)
        return tmp_path / "a.npy"

    refused("found none at", sources.array, tmp_path / "none.npy")
    refused("of numbers", sources.array, saved(np.array([{"a": 1}], dtype=object)))
    refused(r"expected images \(N, C, H, W\)", sources.array, saved(np.zeros((3, 4), np.uint8)))
    refused("uint8 or floating-point images, got int64", sources.array, saved(np.zeros((5, 4, 4), np.int64)))
    refused("save pixels 0..255 as uint8", sources.array, saved(np.full((5, 4, 4), 255.0)))
    refused("expected finite numbers", sources.array, saved(np.full((5, 4, 4), np.nan)))
    np.savez(tmp_path / "objects.npz", np.array([{"a": 1}], dtype=object))
    refused("of numbers", sources.array, tmp_path / "objects.npz")
    blank = np.zeros((4, 4, 3), np.uint8)
    refused("one array or one named images", sources.array, write_zip(tmp_path / "images.npz", [blank]))
    with zipfile.ZipFile(tmp_path / "one.npz", "w") as archive:
        archive.writestr("image.png", b"not an array")
    refused("of numbers", sources.array, tmp_path / "one.npz")
    np.savez(tmp_path / "whole.npz", images=np.zeros((50, 8, 8), np.uint8))
    damaged = bytearray((tmp_path / "whole.npz").read_bytes())
    damaged[300:400] = b"x" * 100
    (tmp_path / "damaged.npz").write_bytes(damaged)
    refused("of numbers", sources.array, tmp_path / "damaged.npz")
    (tmp_path / "text.npy").write_text("hello")
    refused("of numbers", sources.array, tmp_path / "text.npy")
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    refused("one array or one named images", sources.array, tmp_path / "two.npz")


# images


def test_units_and_mirror():
    images = torch.tensor([[[[0, 255], [51, 204]]]], dtype=torch.uint8)
    assert torch.allclose(to_unit(images), torch.tensor([[[[-1.0, 1.0], [-0.6, 0.6]]]]))
    assert mirror(images).tolist() == [[[[255, 0], [204, 51]]]]


def test_downsampling_averages_areas_and_rounds(random):
    images = torch.randint(0, 256, (5, 3, 32, 32), generator=random, dtype=torch.uint8)
    means = images.double().view(5, 3, 8, 4, 8, 4).mean((3, 5))
    small = downsample(images, 8)
    assert small.dtype == torch.uint8
    assert (small.double() - means).abs().max() <= 0.5
    assert torch.allclose(downsample(images.float(), 8).double(), means, atol=1e-4)
    assert downsample(images, None) is images
    refused("data.resolution: expected at most 32", downsample, images, 64)


def test_splits_are_nested_disjoint_and_share_the_held_out_images():
    held, small = None, None
    for n in (10, 100, None):
        for half in (None, "S1", "S2"):
            for seed in (0, 1):
                train, heldout = split(1000, 200, n, seed, half)
                held = heldout if held is None else held
                assert torch.equal(held, heldout)
                assert not set(train.tolist()) & set(heldout.tolist())
                assert len(train.unique()) == len(train) == (n or (800 if half is None else 400))
    for half in (None, "S1", "S2"):
        small, large = (split(1000, 200, n, 0, half)[0] for n in (10, 100))
        assert torch.equal(small, large[:10])
    halves = [set(split(1000, 200, None, 0, half)[0].tolist()) for half in ("S1", "S2")]
    assert not halves[0] & halves[1]
    assert split(1000, 200, 50, 0)[0].tolist() != split(1000, 200, 50, 1)[0].tolist()


def test_too_few_images_are_one_line():
    refused("data.n_train: expected at most 800 .1000 images less 200 held out., got 801", split, 1000, 200, 801)
    refused("data.n_train: expected at most 400 .*half S1", split, 1000, 200, 401, 0, "S1")
    refused("data.n_heldout: expected at most 998 of 1000 images, got 999", split, 1000, 999, None)
    for count in (1, 2, 3):
        refused(rf"at least 4 images \(2 to train on and 2 to hold out\), found {count}", split, count, 2, None)
    refused(r"at least 2 images \(for a covariance\), found 1", split, 1, 0, None)
    refused(r"to leave 2 images to train on, got 1 \(5 images less 2 held out, half S1\)", split, 5, 2, None, 0, "S1")
    assert [len(part) for part in split(4, 2, None)] == [2, 2]


@pytest.mark.parametrize(
    ("count", "held"), [(4, 2), (10, 2), (100, 20), (1200, 240), (1797, 359), (5000, 1000), (50_000, 1000)]
)
def test_a_small_set_is_not_mostly_held_out(count, held, tmp_path):
    """Unless somebody says so: data.n_heldout=null."""
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    images[::2] = 9
    np.save(tmp_path / "a.npy", images.numpy())
    keys = ["data.source=array", f"data.path={tmp_path}/a.npy", "data.n_train=null", "model.backbone=mlp"]
    module = build_data(load(None, [*keys, "data.n_heldout=null", "probes.draws=32"]))
    assert (len(module.images), len(module.heldout)) == (count - held, held)


def test_images_that_are_all_the_same_are_one_line_and_black_ones_are_said(tmp_path, caplog):
    keys = ["data.source=array", "data.n_train=null", "data.n_heldout=4", "model.backbone=mlp", "probes.draws=32"]

    def built(images):
        np.save(tmp_path / "a.npy", images)
        return build_data(load(None, [*keys, f"data.path={tmp_path}/a.npy"]))

    equal = np.full((20, 1, 4, 4), 100, np.uint8)
    refused("expected images that differ, but all 16 training images are the same", built, equal)
    refused("expected images that differ", built, equal.astype(np.float32) / 100)
    names.say_once.cache_clear()
    masks = np.random.default_rng(0).integers(0, 2, (20, 1, 4, 4), dtype=np.uint8)
    assert len(built(masks).images) == 16
    assert "all pixels are 0 or 1 of 255, which are black images" in caplog.text
    caplog.clear()
    built(masks * 255)
    built(masks.astype(np.float32) * 2 - 1)
    assert not caplog.messages
    built(masks.astype(np.float32))
    assert "lie in 0..1 and are taken as they are; if they are pixels in 0..1, save 2 x - 1" in caplog.text


def test_same_image_finds_copies_and_mirrored_copies(digits):
    images = torch.cat([digits[:3], digits[1:2], mirror(digits[2:3])])
    assert same_image(images, flip=False).tolist() == [0, 1, 2, 1, 4]
    assert same_image(images, flip=True).tolist() == [0, 1, 2, 1, 2]


# training batches


def test_every_image_comes_once_an_epoch_in_an_order_of_its_own(digits):
    batches = TrainingBatches(torch.arange(100)[:, None, None, None], batch_size=30, seed=3)
    order = torch.cat([batches.indices(step) for step in range(10)]).view(3, 100)
    for epoch in order:
        assert sorted(epoch.tolist()) == list(range(100))
    assert order[0].tolist() != order[1].tolist()
    other = TrainingBatches(torch.arange(100)[:, None, None, None], batch_size=30, seed=4)
    assert other.indices(0).tolist() != batches.indices(0).tolist()


def test_an_order_is_drawn_once_an_epoch(digits, monkeypatch):
    drawn = []
    original = TrainingBatches._order
    monkeypatch.setattr(TrainingBatches, "_order", lambda self, e: drawn.append(e) or original(self, e))
    batches = TrainingBatches(digits[:100], batch_size=30)
    for step in range(10):
        batches.indices(step)
    assert drawn == [0, 1, 2]


@pytest.mark.parametrize("count", [100, 7])  # a batch may be longer than an epoch
def test_ranks_share_the_batch_and_a_later_start_continues_it(count, digits):
    def take(n, **kwargs):
        stream = iter(TrainingBatches(digits[:count], batch_size=16, seed=1, flip=True, **kwargs))
        return [next(stream) for _ in range(n)]

    whole = take(5)
    shares = [take(5, rank=rank, world_size=4) for rank in range(4)]
    for step in range(5):
        parts = torch.cat([share[step]["images"] for share in shares])
        assert torch.equal(parts, whole[step]["images"])
        assert whole[step]["step"] == step
    later = take(2, start=3)
    assert torch.equal(later[0]["images"], whole[3]["images"])
    assert torch.equal(later[1]["images"], whole[4]["images"])


def test_half_of_the_images_are_mirrored():
    image = torch.zeros(1, 1, 1, 2, dtype=torch.uint8)
    image[..., 0] = 255
    batch = next(iter(TrainingBatches(image, batch_size=1000, flip=True)))["images"]
    assert 430 < int((batch[:, 0, 0, 1] == 255).sum()) < 570


# probes


def bank(digits, **kwargs):
    pools = {"train": digits[:100], "heldout": digits[100:150]}
    return ProbeBank(pools, **{"draws": 48, "sigmas": [2.0, 0.5], "block": 8, "samples": 300, **kwargs})


def test_blocks_are_shared_out_without_padding(digits):
    probes = bank(digits, sampler_sigmas=[80.0, 1.0])
    for world_size in (1, 2, 4, 5):
        seen = [
            (batch.pool, batch.block)
            for rank in range(world_size)
            for loader in probes.loaders(rank, world_size)
            for batch in loader
        ]
        expected = [(pool, b) for pool in ("train", "heldout") for b in range(6)] + [("samples", b) for b in range(3)]
        assert sorted(seen) == sorted(expected)


def test_draws_are_the_same_each_time_and_independent_of_one_another(digits):
    first, again, other = bank(digits), bank(digits), bank(digits, seed=1)
    x0, eps = first.draw("train", 2)
    assert x0.shape == eps.shape == (8, 1, 8, 8)
    assert torch.equal(again.draw("train", 2)[1], eps)
    assert not torch.equal(other.draw("train", 2)[1], eps)
    assert not torch.equal(first.draw("train", 3)[1], eps)
    assert not torch.equal(first.draw("heldout", 2)[1], eps)
    members = to_unit(digits[:100])
    assert all(bool((members == x).flatten(1).all(1).any()) for x in x0)
    many = torch.cat([bank(digits, draws=4096).draw("train", b)[1] for b in range(512)])
    assert abs(float(many.mean())) < 5 / many.numel() ** 0.5
    assert abs(float(many.var()) - 1) < 5 * (2 / many.numel()) ** 0.5


def test_runs_with_different_training_images_share_the_held_out_bank(digits):
    small = ProbeBank({"train": digits[:10], "heldout": digits[100:150]}, draws=16, sigmas=[1.0], block=8)
    large = ProbeBank({"train": digits[:90], "heldout": digits[100:150]}, draws=16, sigmas=[1.0], block=8)
    assert small.hash("heldout") == large.hash("heldout")
    assert small.hash("train") != large.hash("train")


def test_latents_and_mirrored_draws(digits):
    probes = bank(digits, flip=True)
    assert torch.cat([probes.latents(b) for b in range(3)]).shape == (300, 1, 8, 8)
    draws = torch.cat([probes.draw("train", b)[0] for b in range(6)])
    members = to_unit(digits[:100])
    plain = sum(bool((members == x).flatten(1).all(1).any()) for x in draws)
    assert 10 < plain < 38
    assert all(bool(((members == x) | (mirror(members) == x)).flatten(1).all(1).any()) for x in draws)
    with pytest.raises(ValueError, match="draws=49 and block=8"):
        bank(digits, draws=49)


def test_more_devices_than_blocks_are_refused(digits):
    module = ImageDataModule(digits[:100], digits[100:150], bank(digits), batch_size=32)
    module.trainer = SimpleNamespace(world_size=5)
    refused("train.batch_size: expected a multiple of the 5 devices, got 32", module.setup, "fit")
    module.trainer = SimpleNamespace(world_size=8)
    refused("got 6 blocks of 8; set train.devices for fewer, or probes.draws=48 probes.block=6", module.setup, "fit")


def test_loaders_that_are_told_no_rank_take_that_of_the_process(digits, monkeypatch):
    """As a DataModule of one's own gives them to a Trainer on several devices."""
    probes = bank(digits)
    everything = [batch.block for batch in probes.loaders()[0]]
    assert everything == list(range(6))
    loader = probes.loaders()[0]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert [batch.block for batch in loader] == [1, 5]
    assert [batch.block for batch in probes.loaders(0, 2)[0]] == [0, 2, 4]


def test_more_images_than_any_library_decomposes_are_refused(tmp_path, monkeypatch):
    """Unless their pixels are fewer."""
    for module in ("data", "data.images"):
        monkeypatch.setattr(f"gaussbias.{module}.LARGEST_MATRIX", 60)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (200, 10, 10, 3), dtype=np.uint8))
    keys = ["data.source=array", f"data.path={tmp_path}/x.npy", "data.n_heldout=30", "probes.draws=32"]
    said = (
        "data.n_train: expected at most 60 images of 3 x 10 x 10, for the eigenvectors of a matrix of 60 rows, got 170"
    )
    refused(
        f"{said}; set data.n_train=60, or data.resolution=4, at which there may be more", build_data, load(None, keys)
    )
    refused("data.n_train=30", build_data, load(None, [*keys, "data.flip=true", "data.n_train=31"]))
    refused(
        "data.n_heldout: expected at most 60", build_data, load(None, [*keys, "data.n_heldout=61", "data.n_train=60"])
    )
    assert len(build_data(load(None, [*keys, "data.n_train=60"])).images) == 60
    assert len(build_data(load(None, [*keys, "data.resolution=4"])).images) == 170


# configurations


def test_a_separate_held_out_file(tmp_path):
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 8, 8), dtype=np.uint8) for n in (40, 20))
    np.save(tmp_path / "train.npy", train)
    np.save(tmp_path / "test.npy", test)
    keys = ["data.source=array", f"data.path={tmp_path}/train.npy", f"data.heldout_path={tmp_path}/test.npy"]
    module = build_data(load(None, [*keys, "data.n_heldout=12"]))
    assert module.images.shape == (40, 1, 8, 8)
    assert len({image.numpy().tobytes() for image in module.heldout} & {image.tobytes() for image in test}) == 12
    refused("data.n_heldout: expected at most 20", build_data, load(None, [*keys, "data.n_heldout=21"]))


def test_images_that_the_network_cannot_halve_are_one_line():
    refused(
        "model.channel_mult: 5 levels .* divisible by 16",
        build_data,
        load(None, ["model.channel_mult=[1,1,1,1,1]"]),
    )
