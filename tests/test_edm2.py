"""EDM2's network: its number of weights and the sizes that each part keeps are the paper's; its pickles."""

import json
import math
import pickle

import numpy as np
import pytest
import torch

from gaussbias.backbones.edm2 import MagnitudePreservingUNet, Waves, Weights, activate, add, join, normalise
from gaussbias.checkpoints import load
from gaussbias.checkpoints.pickles import Stored, read_pickle
from gaussbias.convert import main as convert
from gaussbias.denoisers import EDMDenoiser
from gaussbias.system.errors import UserError
from tests.edm_pickles import EasyDict, Persistent, network_pickle, stored

SMALL = {"label_dim": 3, "model_channels": 16, "channel_mult": [1, 2], "num_blocks": 1, "channels_per_head": 16}
SIZES = {128: 124.7, 192: 280.2, 256: 497.8, 320: 777.5, 384: 1119.3, 448: 1523.2}


@pytest.mark.parametrize(("channels", "millions"), SIZES.items())
def test_it_has_the_papers_number_of_weights(channels, millions):
    """Table 2 of Karras et al. 2024 for latents of 64 x 64 and 1,000 classes: 125, 280, 498, 777, 1119, 1523 M."""
    with torch.device("meta"):
        network = MagnitudePreservingUNet(64, 4, 4, 1000, channels)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert round(count / 1e6, 1) == millions


def rms(x):
    return float(x.detach().square().mean().sqrt())


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_each_part_keeps_the_size_of_what_it_is_given():
    """The paper's reason for each formula: of independent normal inputs the outputs have size 1.

    40,000 numbers know it to 1 %; a convolution is random in its weights too, 5 % for 64 x 9 of them in each row.
    """
    a, b = normal(100, 20, 5, 4), normal(100, 60, 5, 4, seed=1)
    assert rms(activate(a)) == pytest.approx(1, abs=0.02)
    assert rms(add(a, b[:, :20], 0.3)) == pytest.approx(1, abs=0.02)
    assert rms(join(a, b, 0.5)) == pytest.approx(1, abs=0.02)
    parts = join(a, b, 0.3).split([20, 60], 1)
    ratio = rms(parts[1]) * math.sqrt(60) / (rms(parts[0]) * math.sqrt(20))
    assert ratio == pytest.approx(0.3 / 0.7, rel=0.03)
    assert rms(normalise(7 * a, 1)) == pytest.approx(1, abs=1e-3)
    torch.manual_seed(0)
    weights = Weights(64, 256, 3)
    with torch.no_grad():
        weights.weight.mul_(5)
    inner = weights(normal(20, 64, 8, 8))[:, :, 1:-1, 1:-1]
    assert rms(inner) == pytest.approx(1, abs=0.05)
    assert rms(Waves(1000)(normal(50))) == pytest.approx(1, abs=0.05)


def test_rows_are_divided_by_their_length():
    """`w x / ||w||`, but for 1e-4 of the root mean square, whatever the size of w."""
    weights = Weights(3, 2)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    expected = (weights.weight / weights.weight.norm(dim=1, keepdim=True) @ x[0])[None]
    torch.testing.assert_close(weights(x), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weights(x, 0.5), 0.5 * weights(x))


def network(**more):
    torch.manual_seed(0)
    made = MagnitudePreservingUNet(8, 3, 3, **(SMALL | more)).eval()
    with torch.no_grad():  # they begin at 0, where most of the network is not seen
        for name, parameter in made.named_parameters():
            if name.endswith("gain"):
                parameter.fill_(0.7)
    return made


def test_attention_by_hand():
    """Of one head with unit queries, keys and values: weights are softmax(q.k / sqrt(channels))."""
    block = network().dec["4x4_in0"]
    x = normal(2, 96, 4, 4)  # of 32 channels: queries, keys and values side by side
    heads, channels = block.heads, 96 // 3 // block.heads
    parts = normalise(x.view(2, heads, channels, 3, 16), 2)
    query, key, value = parts[:, :, :, 0], parts[:, :, :, 1], parts[:, :, :, 2]
    weights = torch.einsum("nhcq,nhck->nhqk", query, key).div(math.sqrt(channels)).softmax(-1)
    expected = torch.einsum("nhqk,nhck->nhcq", weights, value).reshape(2, 32, 4, 4)
    torch.testing.assert_close(block._attend(x), expected, rtol=1e-4, atol=1e-5)


def test_the_class_is_told_and_none_is_a_row_of_zeros():
    made = network()
    x, told = normal(2, 3, 8, 8), torch.zeros(2)
    rows = torch.eye(3)[:2]
    assert not torch.allclose(made(x, told, rows), made(x, told, rows.flip(0)))
    assert torch.equal(made(x, told), made(x, told, torch.zeros(2, 3)))


def pickled(file, made, encoder="StandardRGBEncoder", about=None, **extra):
    """As EDM2 stores a network: half precision, beside what estimates its uncertainty and what encodes images."""
    halves = MagnitudePreservingUNet(8, 3, 3, **SMALL)
    halves.load_state_dict(made.state_dict())
    arguments = {"img_resolution": 8, "img_channels": 3, **SMALL} if about is None else about
    parts = {
        "unet": stored(halves.half(), "UNet", _init_kwargs=EasyDict(arguments)),
        "logvar_fourier": stored(Waves(8), "MPFourier"),
        "logvar_linear": stored(Weights(8, 1), "MPConv"),
    }
    around = {"in_channels": 3, "img_resolution": 8, **SMALL}
    encoding = Persistent(encoder, {"scale": np.ones(4, np.float32), "_vae": None})
    return network_pickle(
        file, made, around, "Precond", parts=parts, extra={"encoder": encoding, **extra}, sigma_data=0.4, use_fp16=True
    )


def test_a_pickle_is_its_network(tmp_path):
    made = network()
    file = pickled(tmp_path / "edm2-img64-s-1073741-0.075.pkl", made)
    found = load(file, labels="1")
    assert isinstance(found.denoiser, EDMDenoiser)
    assert found.kind == "EDM2"
    assert found.kimg == 1073741
    assert found.shape == (3, 8, 8)
    assert found.trained_on.drops_labels is False
    assert any("made for float16" in note for note in found.notes)
    assert not any("latents" in note for note in found.notes)
    x, sigma = normal(2, 3, 8, 8), torch.tensor([0.3, 5.0])
    expected = EDMDenoiser(network().half().float(), 0.4, 3).given(1)(x, sigma)
    torch.testing.assert_close(found.denoiser(x, sigma), expected, rtol=1e-5, atol=1e-6)
    assert load(file, labels="data").denoiser.classes == 3


def test_latents_and_arguments_around_the_network(tmp_path):
    """Arguments that were given by position are not stored with the network, but with what is around it."""
    file = pickled(tmp_path / "network-snapshot-0000123-0.100.pkl", network(), "StabilityVAEEncoder", about={})
    found = load(file, labels="average")
    assert found.kimg == 123
    assert any("latents, as its StabilityVAEEncoder makes them" in note for note in found.notes)
    assert found.shape == (3, 8, 8)


def test_a_converted_pickle_is_the_same(tmp_path, capsys):
    file = pickled(tmp_path / "x.pkl", network())
    assert convert([str(file), "--to", str(tmp_path / "y" / "denoiser.safetensors"), "--labels", "2"]) == 0
    assert json.loads((tmp_path / "y" / "denoiser.json").read_text())["network"] == "UNet"
    x = normal(2, 3, 8, 8)
    first, second = load(file, labels="2"), load(tmp_path / "y" / "denoiser.safetensors")
    assert torch.equal(first.denoiser(x, 0.5), second.denoiser(x, 0.5))


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"label_balance": 2.0}, "the argument label_balance"),
        ({"clip_act": "large"}, "the argument clip_act"),
        ({"wide": 3}, "UNet has no arguments wide"),
        ({"img_channels": "3"}, "expected a whole number as in_channels"),
    ],
)
def test_what_no_network_has_is_one_line(about, said, tmp_path):
    file = pickled(tmp_path / "x.pkl", network(), about={"img_resolution": 8, "img_channels": 3, **SMALL, **about})
    with pytest.raises(UserError, match=said) as caught:
        load(file, labels="1")
    assert "\n" not in str(caught.value)


class Reduced:
    """Pickles as a call."""

    def __init__(self, call, *arguments):
        self.called = call, arguments

    def __reduce__(self):
        return self.called


def test_arrays_are_kept_unread_and_calls_of_their_class_are_refused(tmp_path):
    """The names of NumPy's arrays that EDM2's encoders need are stand-ins, which make no array."""
    tree = read_pickle(pickled(tmp_path / "x.pkl", network()))
    assert isinstance(tree["encoder"].state["scale"], Stored)
    file = tmp_path / "y.pkl"
    file.write_bytes(pickle.dumps({"ema": Reduced(np.ndarray, (10**6,))}))
    with pytest.raises(UserError, match=r"it asks for numpy\.ndarray"):
        load(file)
