"""Data that are no 8-bit images: any layout, any number of channels, any units."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gaussbias
from gaussbias import backbones
from gaussbias.analysis.halves import samples_in, to_units
from gaussbias.config import load
from gaussbias.data import read
from gaussbias.data.display import PIXELS, display_of
from gaussbias.data.images import to_pixels
from gaussbias.fit import main as fit
from gaussbias.modules import build, build_data
from gaussbias.moments import estimate
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# pictures


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_and_numbers_in_the_unit_range_are_shown_as_they_were(channels):
    images = torch.randint(0, 256, (20, channels, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert display_of(images) is PIXELS
    assert display_of(images.float() / 127.5 - 1) is PIXELS
    assert torch.equal(PIXELS(images), images)
    x = normal(2, channels, 4, 4)
    assert torch.equal(PIXELS(x), to_pixels(x))


def test_other_units_are_shown_from_percentile_to_percentile():
    """Of the numbers 0 to 9,999 black is the 50th and white the 9,949th; 1 of 200 is beyond each."""
    images = torch.arange(10_000.0).view(100, 1, 10, 10)[torch.randperm(100)]
    display = display_of(images)
    assert (display.low, display.high) == (50, 9949)
    shown = display(images)
    assert shown.dtype == torch.uint8
    assert int((shown == 0).sum()) == pytest.approx(70, abs=2)  # those that round to it
    assert torch.equal(display(images * 1.0), shown)
    same = display_of(torch.full((3, 1, 2, 2), 7.0))
    assert int(same(torch.full((1, 1, 2, 2), 7.0))[0, 0, 0, 0]) == 128


def test_channels_that_are_no_colours_are_shown_by_their_leading_components():
    """Channels made of three known directions, of falling size: each is a colour, whatever it is called."""
    basis = torch.linalg.qr(normal(5, 5).double())[0][:3]
    parts = normal(200, 3, 4, 4, seed=1).double() * torch.tensor([3.0, 2.0, 1.0])[:, None, None]
    images = torch.einsum("kc,nkhw->nchw", basis, parts).float() + 10
    display = display_of(images)
    turned = (display.components @ basis.T).abs()
    torch.testing.assert_close(turned, torch.eye(3).double(), rtol=0, atol=0.05)
    assert display(images).shape == (200, 3, 4, 4)
    middle = display(display.mean.float().view(1, 5, 1, 1).expand(1, 5, 4, 4))
    assert set(middle.unique().tolist()) <= {127, 128}
    assert display(normal(7, 2, 5, 4, 4) + 10).shape == (7, 2, 3, 4, 4)
    assert display_of(images[:, :2])(images[:, :2]).shape == (200, 1, 4, 4)
    assert int(display.stretched(images[0] - 10).max()) == 255 or int(display.stretched(images[0] - 10).min()) == 0


# reading


def source(path, **keys):
    pairs = [f"data.{key}={value}" for key, value in keys.items()]
    return load(None, ["data.source=array", f"data.path={path}", *pairs]).data


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (4, 2, 3)), ("NHWC", (3, 4, 2))])
def test_a_layout_says_where_the_channels_are(layout, shape, tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 4, 2, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    images, heldout = read(source(tmp_path / "x.npy", layout=layout, n_heldout=2))
    assert tuple(images.shape[1:]) == shape
    both = torch.cat([heldout, images]).flatten(1).sum(1).sort()[0]
    torch.testing.assert_close(both, torch.from_numpy(values).flatten(1).sum(1).sort()[0])


def test_a_shape_that_needs_a_layout_asks_for_it(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((12, 4, 2, 4), np.float32))
    with pytest.raises(UserError, match=r"say which axis has the channels by data\.layout=NCHW or data\.layout=NHWC"):
        read(source(tmp_path / "x.npy"))
    np.save(tmp_path / "y.npy", np.random.default_rng(0).integers(0, 255, (12, 8, 8, 4), dtype=np.uint8))
    with pytest.raises(UserError, match=r"leave out the alpha channel.* by data\.layout"):
        read(source(tmp_path / "y.npy"))
    assert tuple(read(source(tmp_path / "y.npy", layout="NHWC"))[0].shape[1:]) == (4, 8, 8)
    with pytest.raises(UserError, match=r"data\.layout: expected null for data.source=digits"):
        load(None, ["data.layout=NCHW"])


def test_numbers_of_any_size_are_taken_but_pixels_in_floating_point(tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 1, 4, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", 100 * values)
    assert float(read(source(tmp_path / "x.npy"))[0].abs().max()) > 100
    np.save(tmp_path / "y.npy", 255 * np.abs(values) / np.abs(values).max())
    with pytest.raises(UserError, match=r"save pixels 0\.\.255 as uint8, and subtract the mean of what is none"):
        read(source(tmp_path / "y.npy"))


# runs


def test_the_standard_deviation_is_that_of_all_numbers():
    images = 3 * normal(50, 2, 4, 4) + torch.tensor([1.0, -2.0])[:, None, None]
    assert estimate(images).deviation == pytest.approx(float(images.double().std(correction=0)), rel=1e-9)


SHORT = [
    *("data.source=array", "data.n_heldout=20", "model.backbone=mlp", "model.channels=16", "model.sigma_data=auto"),
    *("train.batch_size=16", "train.kimg=0.8", "train.lr=1e-2", "probes.draws=32", "probes.samples=12"),
    *("probes.sampler_steps=4", "run.wandb=disabled", "train.accelerator=cpu", "train.ema_halflife_kimg=null"),
]


def run(root, name, images, *keys):
    np.save(root / f"{name}.npy", images.numpy())
    places = [f"data.path={root / name}.npy", f"run.root={root}", f"run.name={name}"]
    assert fit([*SHORT, *places, *keys]) == 0
    return root / name


@pytest.fixture(scope="module")
def fields():
    """Smooth fields of 4 channels about 0, of size 1."""
    return torch.nn.functional.avg_pool2d(normal(80, 4, 10, 10), 3, 1) * 3


class Deaf(torch.nn.Module):
    """A network that does not listen to the noise level: EDM tells it ln(sigma) / 4, whatever the units of the data."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x, c_noise):
        return self.layer(x)


def test_training_on_numbers_twice_as_large_is_the_same_training(fields, tmp_path, monkeypatch):
    """With `model.sigma_data=auto`: D scales with the data, and the weighted loss is the same number."""

    def build_deaf(*_):
        torch.manual_seed(0)
        return Deaf()

    monkeypatch.setattr(backbones, "build", build_deaf)
    losses, values = [], []
    for scale in (1, 2):
        np.save(tmp_path / f"{scale}.npy", scale * fields.numpy())
        config = load(None, [*SHORT, f"data.path={tmp_path / f'{scale}.npy'}"])
        data = build_data(config)
        moments = estimate(data.images)
        module = build(config, data, moments)
        assert module.denoiser.sigma_data == moments.deviation
        assert module.P_mean == pytest.approx(-1.2 + math.log(moments.deviation / 0.5), abs=1e-12)
        batch = {"images": scale * fields[:16], "step": 3}
        losses.append(sum(float(loss.detach()) for loss in module.losses(batch)))
        values.append(module.denoiser(scale * fields[:16], scale * 0.7) / scale)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-6)


def test_fields_of_four_channels_train_are_drawn_and_come_back(fields, tmp_path):
    folder = run(tmp_path, "fields", 1.5 * fields, "run.pictures=end")
    about = json.loads((folder / "denoiser.json").read_text())
    training = read(source(tmp_path / "fields.npy", n_heldout=20))[0]
    assert about["model"]["sigma_data"] == pytest.approx(float(training.double().std(correction=0)), rel=1e-6)
    assert gaussbias.load_denoiser(folder).sigma_data == about["model"]["sigma_data"]
    assert gaussbias.load_denoiser(folder / "checkpoints" / "last.ckpt").sigma_data == about["model"]["sigma_data"]
    newest = sorted(RunFolder(folder).samples.iterdir())[-1]
    shown = load_file(newest)
    assert shown["network"].shape == (10, 3, 8, 8)
    assert shown["network"].dtype == torch.uint8
    samples = samples_in(newest)
    assert samples.network.dtype == np.float32
    assert samples.network.shape == (12, 4, 8, 8)
    assert np.abs(to_units(samples.network)).max() > 2  # pixels would end at 1
    assert (folder / "figures" / "samples.png").stat().st_size > 10_000
    assert (
        fit([*SHORT, f"data.path={tmp_path / 'fields.npy'}", f"run.root={tmp_path}", "run.name=fields", "--resume"])
        == 0
    )


def test_other_sizes_than_the_network_is_made_for_are_said(fields, tmp_path, caplog):
    run(tmp_path, "large", 5 * fields, "model.sigma_data=0.5", "run.pictures=none")
    assert "model.sigma_data=auto makes it for these" in caplog.text
