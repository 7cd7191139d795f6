"""A network on patches: pixels go to where they came from, and the command trains and reads one."""

import pytest
import torch
from runs import SMALL
from torch import nn

import gaussbias
from gaussbias.backbones import build, flops
from gaussbias.backbones.patches import Patched
from gaussbias.config import ModelConfig
from gaussbias.fit import main as fit


class Shift(nn.Module):
    """Moves everything one patch to the right, and adds each row of labels' first number."""

    def forward(self, x, c_noise, labels):
        return x.roll(1, -1) + labels[:, :1, None, None]


def test_pixels_stay_together_in_patches():
    """A network that moves patches moves blocks of pixels: by hand, an image of 2 x 6 in patches of 2 x 2."""
    x = torch.arange(12.0).reshape(1, 1, 2, 6)
    moved = Patched(Shift(), 2)(x, torch.zeros(1), torch.full((1, 3), 0.5))
    expected = torch.tensor([[4, 5, 0, 1, 2, 3], [10, 11, 6, 7, 8, 9]]) + 0.5
    assert torch.equal(moved[0, 0], expected)


def test_each_patch_has_its_own_numbers_as_channels():
    class Seeing(nn.Module):
        def forward(self, x, c_noise):
            self.seen = x
            return x

    x, network = torch.randn(2, 3, 8, 4), Seeing()
    assert torch.equal(Patched(network, 4)(x, torch.zeros(2)), x)
    assert network.seen.shape == (2, 48, 2, 1)
    assert torch.equal(network.seen[0, :, 1, 0].sort().values, x[0, :, 4:].flatten().sort().values)


@pytest.mark.parametrize("backbone", ["unet", "mlp", "ddpmpp", "adm"])
def test_every_backbone_takes_patches_and_costs_less(backbone):
    model = ModelConfig(backbone=backbone, channels=8, patch=2)
    x, c_noise = torch.randn(2, 3, 16, 16), torch.zeros(2)
    assert build(model, (3, 16, 16))(x, c_noise).shape == x.shape
    if backbone != "mlp":
        assert flops(model, (3, 16, 16)) < 0.5 * flops(ModelConfig(backbone=backbone, channels=8), (3, 16, 16))


def test_the_command_trains_one_and_its_export_is_read(tmp_path):
    keys = [key for key in SMALL if not key.startswith("model.")]
    keys += ["model.channels=8", "model.patch=2", "model.channel_mult=[1,2]", f"run.root={tmp_path}", "run.name=x"]
    assert fit([*keys, "train.kimg=0.2", "probes.first_kimg=1", "data.labels=false"]) == 0
    a = gaussbias.load_denoiser(tmp_path / "x")
    b = gaussbias.load_denoiser(tmp_path / "x" / "checkpoints" / "last.ckpt")
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(a(x, torch.full((2,), 0.5)), b(x, torch.full((2,), 0.5)))
    assert a.backbone.patch == 2


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("model.patch=3", "model.patch: expected a divisor of the sides, got 3 for images of 8 x 8"),
        ("model.patch=0", "model.patch: expected"),
        ("model.patch=8", "expected sides divisible by 2, got images of 1 x 1 patches"),
    ],
)
def test_a_mistake_is_one_line(key, said, capsys, tmp_path):
    assert fit([*SMALL, "model.backbone=unet", key, f"run.root={tmp_path}", "run.name=x"]) == 2
    complained = capsys.readouterr().err.strip()
    assert said in complained
    assert "\n" not in complained
