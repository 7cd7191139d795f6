"""EDM's networks and preconditionings against numbers from an independent implementation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import gaussbias
from gaussbias.backbones import build
from gaussbias.checkpoints.networks import UNUSED, Description, build_denoiser
from gaussbias.config import ModelConfig
from gaussbias.denoisers import EDMDenoiser, IDDPMDenoiser, VEDenoiser, VPDenoiser, iddpm_levels
from gaussbias.fit import main as fit
from gaussbias.history import last

FILE = Path(__file__).parent / "data" / "edm_vectors.safetensors"
with safe_open(FILE, "pt") as opened:
    NETWORKS = json.loads(opened.metadata()["networks"])
DENOISERS = {
    "EDMPrecond": EDMDenoiser,
    "VPPrecond": VPDenoiser,
    "VEPrecond": VEDenoiser,
    "iDDPMPrecond": IDDPMDenoiser,
}


def read(name):
    with safe_open(FILE, "pt") as opened:
        return {key.partition("/")[2]: opened.get_tensor(key) for key in opened.keys() if key.startswith(f"{name}/")}  # noqa: SIM118, it is no dict


def formula(shapes):
    """The parameters of the vectors: sines by position, scaled by what each is."""
    made = {}
    for i, name in enumerate(sorted(shapes)):
        shape = shapes[name]
        value = torch.sin(1.7 * torch.arange(math.prod(shape), dtype=torch.float64) + i).view(shape)
        if len(shape) > 1:
            value = value * 1.5 / math.sqrt(value[0].numel())
        elif "norm" in name.split(".")[-2] and name.endswith("weight"):
            value = 1 + 0.1 * value
        else:
            value = 0.1 * value
        made[name] = value.float()
    return made


def weights_of(name):
    """Those of a network: by its names, without what training alone uses."""
    tensors = read(name)
    made = formula(NETWORKS[name]["parameters"])
    made |= {key.removeprefix("buffer."): value for key, value in tensors.items() if key.startswith("buffer.model.")}
    found = {key.removeprefix("model."): value for key, value in made.items()}
    found.pop("map_augment.weight", None)
    return found | ({"u": tensors["buffer.u"]} if "buffer.u" in tensors else {})


def describe(name):
    about = NETWORKS[name]
    arguments = {key: value for key, value in about["arguments"].items() if key not in ("model_type", *UNUSED)}
    channels = about["img_channels"]
    arguments |= {
        "img_resolution": about["img_resolution"],
        "in_channels": channels,
        "out_channels": channels * (1 + (about["preconditioning"] == "iDDPMPrecond")),
    }
    return Description(about["preconditioning"], {}, about["arguments"]["model_type"], arguments)


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_its_vector(name):
    """To float32's round-off through 50 layers; F to 1e-4, since at small sigma D is nearly x."""
    tensors, description = read(name), describe(name)
    denoiser = build_denoiser(description, weights_of(name), "average" if description.classes else None)
    assert type(denoiser) is DENOISERS[NETWORKS[name]["preconditioning"]]
    x, sigma = tensors["input"], tensors["sigma"]
    c_skip, c_out, _, _ = denoiser.coefficients(sigma[:, None, None, None])
    network = denoiser.backbone

    def check(output, expected):
        assert relative(output, expected) < (3e-5 if name == "edm-ncsnpp-uncond" else 1e-5)
        assert relative((output - c_skip * x) / c_out, (expected - c_skip * x) / c_out) < 1e-4

    if description.classes:
        inner = network.network
        labels = tensors["labels"]

        class Labelled(torch.nn.Module):
            def forward(self, x, c_noise):
                return inner(x, c_noise, labels)

        denoiser.backbone = Labelled()
        check(denoiser(x, sigma), tensors["output"])
        check(build_denoiser(description, weights_of(name), "none")(x, sigma), tensors["output_without_labels"])
    else:
        check(denoiser(x, sigma), tensors["output"])
    effective = torch.tensor([denoiser.effective_sigma(float(s)) for s in sigma])
    assert torch.allclose(effective, tensors["effective_sigma"], rtol=1e-6)
    if "buffer.u" in tensors:
        assert torch.equal(denoiser.u, tensors["buffer.u"])
        assert torch.allclose(iddpm_levels().float(), denoiser.u, rtol=1e-3)  # they were computed in float32


@pytest.mark.parametrize("name", ["edm-ddpmpp-cond", "edm-adm-cond"])
def test_a_class_conditional_network_is_that_of_a_label_or_the_mean_of_all(name):
    tensors, description, weights = read(name), describe(name), weights_of(name)
    x, sigma, labels = tensors["input"], tensors["sigma"], tensors["labels"].argmax(1)
    for row, label in enumerate(labels.tolist()):
        one = build_denoiser(description, weights, str(label))(x[row : row + 1], sigma[row : row + 1])
        assert relative(one, tensors["output"][row : row + 1]) < 2e-5
    each = torch.stack([build_denoiser(description, weights, str(label))(x, sigma) for label in range(10)])
    assert relative(build_denoiser(description, weights, "average")(x, sigma), each.mean(0)) < 1e-6
    for labels, said in ((None, "class-conditional, with 10 classes"), ("10", "a class from 0 to 9, got 10")):
        with pytest.raises(ValueError, match=said):
            build_denoiser(description, weights, labels)


def test_vp_tells_its_network_what_it_was_told_in_training():
    """EDM's t(sigma) in float32, by NumPy: `1 + sigma^2` is rounded, and at 0.002 its logarithm is 1.3 % off."""
    sigma = np.array([0.002, 0.0123, 0.5, 80.0], dtype=np.float32)
    one, two = np.float32(1), np.float32(2 * 19.9)
    time = (np.sqrt(np.float32(0.1**2) + two * np.log(one + sigma * sigma)) - np.float32(0.1)) / np.float32(19.9)
    exact = (np.sqrt(0.1**2 + 2 * 19.9 * np.log1p(sigma.astype(float) ** 2)) - 0.1) / 19.9
    for dtype in (torch.float32, torch.float64):
        *_, told = VPDenoiser(torch.nn.Identity()).coefficients(torch.from_numpy(sigma).to(dtype))
        assert told.dtype == dtype
        assert np.allclose(told.numpy(), 999 * time, rtol=3e-5)
    assert 0.01 < (np.log(one + sigma * sigma) / np.log1p(sigma.astype(float) ** 2) - 1)[0] < 0.02
    assert time[0] > 1.005 * exact[0]


def test_preconditionings_are_those_of_edm_table_1():
    """In float64, at the ends of their ranges and between: the forward processes tell sigma from time.

    VP's time is taken in float32, as where such networks were trained.
    """
    sigma = torch.tensor([0.03, 0.5, 80.0], dtype=torch.float64)
    vp = VPDenoiser(torch.nn.Identity())
    _, c_out, c_in, c_noise = vp.coefficients(sigma)
    time = c_noise / 999
    assert torch.allclose((torch.exp(19.9 / 2 * time**2 + 0.1 * time) - 1).sqrt(), sigma, rtol=1e-4)
    assert torch.equal(c_out, -sigma)
    assert torch.allclose(c_in, 1 / (1 + sigma**2).sqrt())
    assert vp.sigma_range[0] == pytest.approx(1e-3, rel=0.01)
    assert vp.sigma_range[1] == pytest.approx(152.17, rel=1e-3)
    one, c_out, c_in, c_noise = VEDenoiser(torch.nn.Identity()).coefficients(sigma)
    assert (one, c_in) == (1.0, 1.0)
    assert torch.equal(c_out, sigma)
    assert torch.allclose(c_noise.exp() * 2, sigma)
    iddpm = IDDPMDenoiser(torch.nn.Identity())
    _, _, _, c_noise = iddpm.coefficients(iddpm.u[[0, 500, 999]].double())
    assert c_noise.tolist() == [999, 499, 0]


@pytest.mark.parametrize("sigma", [0.01, 101.0])
def test_noise_levels_outside_the_range_are_refused(sigma):
    class Zero(torch.nn.Module):
        def forward(self, x, c_noise):
            return 0 * x

    denoiser = VEDenoiser(Zero())
    x = torch.zeros(2, 1, 2, 2)
    for level in (sigma, torch.tensor([1.0, sigma])):
        with pytest.raises(ValueError, match=r"`sigma` from 0\.02 to 100 but got"):
            denoiser(x, level)
    assert denoiser(x, torch.tensor([0.02, 100.0])).shape == x.shape


@pytest.mark.parametrize("backbone", ["ncsnpp", *(pytest.param(b, marks=pytest.mark.long) for b in ("ddpmpp", "adm"))])
def test_networks_of_edm_train_and_come_back_from_disk(backbone, tmp_path):
    """From the command line to the exported denoiser, whose filters are in no file."""
    keys = [
        f"model.backbone={backbone}",
        "model.channels=8",
        "model.attention=[4]",
        "run.wandb=disabled",
        "run.pictures=none",
    ]
    keys += ["data.n_train=100", "train.kimg=0.256", "train.batch_size=32", "probes.draws=32", "probes.samples=2"]
    keys += ["probes.sampler_steps=2", "train.lr=0.01", "train.lr_rampup_kimg=0", f"run.root={tmp_path}", "run.name=x"]
    assert fit(keys) == 0
    exported = gaussbias.load_denoiser(tmp_path / "x" / "denoiser.safetensors")
    stored = gaussbias.load_denoiser(tmp_path / "x")
    model = ModelConfig(backbone=backbone, channels=8, attention=[4])
    fresh = EDMDenoiser(build(model, (1, 8, 8))).eval()
    fresh.load_state_dict(stored.state_dict())
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for sigma in (0.01, 1.0, 50.0):
        assert torch.equal(exported(x, sigma), fresh(x, sigma))
    values = last(tmp_path / "x")
    assert values["denoising/mse/heldout"] < 0.4  # 0.45 before training


def test_untrained_networks_of_edm_are_c_skip_x():
    x, sigma = torch.randn(2, 3, 16, 16), torch.tensor([0.1, 5.0])
    for backbone in ("ddpmpp", "ncsnpp", "adm"):
        torch.manual_seed(0)
        denoiser = EDMDenoiser(build(ModelConfig(backbone=backbone, channels=16), (3, 16, 16)))
        c_skip = denoiser.coefficients(sigma[:, None, None, None])[0]
        assert relative(denoiser(x, sigma).detach(), c_skip * x) < 1e-3


def test_the_networks_of_edm_have_its_number_of_parameters():
    """55.7 M for CIFAR-10, as published (Karras et al. 2022, Appendix F)."""
    model = ModelConfig(backbone="ddpmpp", channels=128, channel_mult=[2, 2, 2], layers_per_block=4, attention=[16])
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in build(model, (3, 32, 32)).parameters())
    assert round(count / 1e6, 1) == 55.7


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["model.channels=3"], "model.channels: expected an even number of at least 4"),
        (["model.channel_mult=[1,1,1,1,1]"], "model.channel_mult: 5 levels halve the image"),
        (["model.attention=[5]"], "model.attention: expected some of 8, 4"),
    ],
)
def test_networks_that_do_not_fit_are_one_line(keys, said, tmp_path, capsys):
    assert fit(["model.backbone=ddpmpp", *keys, "run.wandb=disabled", "run.pictures=none", f"run.root={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("backbone", ["ddpmpp", "ncsnpp", "adm"])
def test_networks_in_float64_are_those_in_float32(backbone):
    torch.manual_seed(0)
    network = build(ModelConfig(backbone=backbone, channels=16, channel_mult=[1, 2], layers_per_block=1), (3, 8, 8))
    for parameter in network.parameters():
        if not bool(parameter.any()):
            torch.nn.init.normal_(parameter, std=0.1)
    x, c_noise = torch.randn(4, 3, 8, 8), torch.randn(4)
    plain = network(x, c_noise)
    exact = network.double()(x.double(), c_noise.double())
    assert exact.dtype == torch.float64
    assert (plain - exact).norm() < 1e-5 * exact.norm()
