"""Network pickles of EDM: what is in them is read, and never run."""

import collections
import io
import json
import os
import pickle

import numpy as np
import pytest
import torch
from edm_pickles import EasyDict, Persistent, network_pickle
from torch import nn

import gaussbias
from gaussbias.backbones.dhariwal import DhariwalUNet
from gaussbias.backbones.songunet import SongUNet
from gaussbias.checkpoints import TrainedOn, load, pickles, read_edm
from gaussbias.convert import main as convert
from gaussbias.denoisers import EDMDenoiser, IDDPMDenoiser, VEDenoiser, VPDenoiser
from gaussbias.system.errors import UserError

ARGUMENTS = {
    "img_resolution": 8,
    "in_channels": 3,
    "out_channels": 3,
    "label_dim": 0,
    "model_channels": 8,
    "channel_mult": [1, 2],
    "num_blocks": 1,
    "attn_resolutions": [4],
    "dropout": 0.1,
}


def make(kind=SongUNet, **more):
    torch.manual_seed(0)
    arguments = ARGUMENTS | more
    network = kind(**arguments)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    return network.eval(), arguments


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A pickle, and its network."""
    network, arguments = make()
    file = tmp_path_factory.mktemp("edm") / "network-snapshot-000205.pkl"
    return network_pickle(file, network, {**arguments, "augment_dim": 9, "label_dropout": 0}), network


def points(channels=3):
    torch.manual_seed(1)
    return torch.randn(3, channels, 8, 8), torch.tensor([0.05, 1.0, 40.0])


@pytest.mark.parametrize("inner", [True, False], ids=["with the network", "around it"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("EDMPrecond", EDMDenoiser),
        ("VPPrecond", VPDenoiser),
        ("VEPrecond", VEDenoiser),
        ("iDDPMPrecond", IDDPMDenoiser),
    ],
)
def test_a_pickle_is_its_network_with_its_preconditioning(name, kind, inner, tmp_path):
    twice = 1 + (name == "iDDPMPrecond")
    network, arguments = make(DhariwalUNet if twice == 2 else SongUNet, out_channels=3 * twice)
    attributes = {"u": IDDPMDenoiser(nn.Identity()).u} if twice == 2 else {"sigma_min": np.float64(0.03), "M": 1000}
    file = network_pickle(tmp_path / "x.pkl", network, arguments, name, inner, **attributes)
    found = load(file)
    assert type(found.denoiser) is kind
    x, sigma = points()
    assert torch.equal(found.denoiser(x, sigma), kind(network)(x, sigma))
    assert found.shape == (3, 8, 8)
    assert found.kimg is None
    assert found.parameters == sum(p.numel() for p in network.parameters())
    if twice == 1:
        assert found.denoiser.sigma_range[0] == 0.03
        with pytest.raises(ValueError, match=r"from 0\.03"):
            found.denoiser(x, 0.02)


def test_what_is_in_a_pickle_is_told(plain):
    contents = read_edm(plain[0])
    assert contents.kimg == 205
    assert any("loss_fn (EDMLoss), augment_pipe (NoneType), dataset_kwargs (Dict)" in note for note in contents.notes)
    assert any("not run: the source text of 3 classes" in note for note in contents.notes)
    assert isinstance(gaussbias.load_denoiser(plain[0]), EDMDenoiser)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_any_protocol_are_read(protocol, plain, tmp_path):
    """Those before the fourth spell sets, bytes and containers in another way."""
    data = EasyDict(max_size=7, xflip=False)
    file = network_pickle(tmp_path / "x.pkl", *make(), protocol=protocol, extra={"dataset_kwargs": data})
    found = load(file)
    x, sigma = points()
    assert torch.equal(found.denoiser(x, sigma), EDMDenoiser(plain[1])(x, sigma))
    assert found.trained_on.counts == (7,)


@pytest.mark.parametrize(
    ("said", "opcodes"),
    [
        ("the bytes of a tensor", b"c_codecs\nencode\n(Vx\nVrot13\ntR"),
        ("the bytes of a tensor", b"c_codecs\nencode\n(NVlatin1\ntR"),
        (
            "its texts and sets are larger than the file",
            b"V" + 400 * b"a" + b"\np1\n0" + 99 * b"c_codecs\nencode\n(g1\nVlatin1\ntR0" + b"N",
        ),
        (
            "its texts and sets are larger than the file",
            b"(l" + 400 * b"I1\na" + b"p1\n0" + 99 * b"c__builtin__\nset\n(g1\ntR0" + b"N",
        ),
        ("a dict or set of other things", b"c__builtin__\nset\n((lI1\naNatR"),
        ("a dict or set of other things", b"cbuiltins\nset\n(VxxtR".replace(b"xx", b"x\n")),
        (
            "an object that is not of a class",
            b"ccopy_reg\n_reconstructor\n(c__builtin__\ndict\nc__builtin__\ndict\n(dtR",
        ),
        ("a dict or set of other things", b"cbuiltins\nset\n((lI2305843009213693951\natR"),
        ("a dict or set of other things", b"}I2305843009213693951\nI1\ns"),
        ("it asks for __builtin__.object", b"c__builtin__\nobject\n(tR"),
        ("it asks for __builtin__.eval", b"c__builtin__\neval\n(V1\ntR"),
    ],
)
def test_what_old_protocols_name_does_nothing_else(said, opcodes, tmp_path):
    (tmp_path / "x.pkl").write_bytes(opcodes + b".")
    with pytest.raises(UserError) as caught:
        load(tmp_path / "x.pkl")
    assert "was refused, and nothing in it was run" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("about", "counts", "flip"),
    [
        ({"max_size": 1200, "xflip": False}, (1200,), False),
        ({"max_size": 2400, "xflip": True}, (2400, 1200), True),  # EDM counts mirrored copies, or it does not
        ({"max_size": None, "xflip": True}, (), True),
        ({"max_size": -1}, (), None),
        ({"max_size": "many", "xflip": "yes"}, (), None),
        (None, (), None),
    ],
)
def test_a_pickle_says_what_it_was_trained_on(about, counts, flip, tmp_path):
    """And so does what it is converted to."""
    extra = {"dataset_kwargs": about if about is None else EasyDict(about)}
    file = network_pickle(tmp_path / "x.pkl", *make(), extra=extra)
    assert convert([str(file), "--to", str(tmp_path / "x.safetensors")]) == 0
    for path in (file, tmp_path / "x.safetensors"):
        assert load(path).trained_on == TrainedOn(counts, flip)


def test_files_beside_a_pickle_name_it(plain, tmp_path):
    """What EDM goes on training from, and the folder of a run of it."""
    (tmp_path / "training-state-000205.pt").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"found what EDM goes on training from .* of which there is none beside it"):
        load(tmp_path / "training-state-000205.pt")
    for kimg in (5, 205):
        (tmp_path / f"network-snapshot-{kimg:06d}.pkl").write_bytes(plain[0].read_bytes())
    for path in (tmp_path, tmp_path / "training-state-000205.pt"):
        with pytest.raises(UserError, match=r"give network-snapshot-\*\.pkl, such as .*network-snapshot-000205\.pkl"):
            load(path)


def test_a_class_conditional_pickle_needs_labels(tmp_path):
    network, arguments = make(label_dim=4)
    file = network_pickle(tmp_path / "x.pkl", network, arguments)
    x, sigma = points()
    with pytest.raises(UserError, match="class-conditional, with 4 classes: expected labels"):
        gaussbias.load_denoiser(file)
    two = gaussbias.load_denoiser(file, labels=2)(x, sigma)
    c_skip, c_out, c_in, c_noise = EDMDenoiser(network).coefficients(sigma[:, None, None, None])
    raw = network(c_in * x, c_noise.flatten(), torch.eye(4)[[2, 2, 2]])
    assert torch.allclose(two, c_skip * x + c_out * raw, atol=1e-6)
    with pytest.raises(UserError, match="expected no labels, got 3"):
        gaussbias.load_denoiser(network_pickle(tmp_path / "y.pkl", *make()), labels=3)


# malicious files


class Call:
    """An object whose unpickling calls something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def payload(kind, trap):
    """What a malicious file has somewhere, and would make `trap` if it were run."""
    command = f"touch {trap}"
    if kind == "os.system":
        return Call(os.system, command)
    if kind == "builtins.eval":
        return Call(eval, f"open({str(trap)!r}, 'w').close()")
    if kind == "nested reduce":
        return Call(dict, [("a", Call(collections.OrderedDict, [("b", Call(os.system, command))]))])
    if kind == "getattr":
        return Call(getattr, Call(__import__, "os"), "system")
    if kind == "storage bytes":
        inner = io.BytesIO()
        torch.save(Call(os.system, command), inner, _use_new_zipfile_serialization=False)
        return Call(torch.storage._load_from_bytes, inner.getvalue())
    if kind == "storage pickle":
        return Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.system, command)))
    if kind == "storage zip":
        inner = io.BytesIO()
        torch.save(Call(os.system, command), inner)
        return Call(torch.storage._load_from_bytes, inner.getvalue())
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("os.system", f"{os.system.__module__}.system"),
        ("builtins.eval", "builtins.eval"),
        ("nested reduce", "builtins.dict"),
        ("getattr", "builtins.getattr"),
        ("storage bytes", f"{os.system.__module__}.system"),
        ("storage pickle", f"{os.system.__module__}.system"),
        ("storage zip", "the bytes of a tensor"),
    ],
)
@pytest.mark.parametrize("where", ["extra", "state"])
def test_a_pickle_that_would_run_something_is_refused(kind, said, where, tmp_path):
    trap = tmp_path / "ran"
    harmful = payload(kind, trap)
    given = {"extra": {"x": harmful}} if where == "extra" else {"harm": harmful}
    file = network_pickle(tmp_path / "x.pkl", *make(), **given)
    with pytest.raises(UserError) as caught:
        load(file)
    text = str(caught.value)
    assert "was refused, and nothing in it was run" in text
    assert said in text
    assert "\n" not in text
    assert not trap.exists()
    with pytest.raises(UserError):
        gaussbias.load_denoiser(file)
    assert not trap.exists()


def test_the_traps_work(tmp_path):
    """Each payload does make its file when a pickle is loaded without care; else the tests above show nothing."""
    for kind in ("os.system", "builtins.eval", "nested reduce", "storage bytes", "storage zip"):
        trap = tmp_path / kind.replace(" ", "")
        pickle.loads(pickle.dumps(payload(kind, trap)))
        assert trap.exists(), kind


def test_source_text_is_not_run(tmp_path):
    trap = tmp_path / "ran"
    source = f"open({str(trap)!r}, 'w').write('x')\n"
    found = load(network_pickle(tmp_path / "x.pkl", *make(), source=source))
    assert not trap.exists()
    assert f"{len(source):,} characters" in " ".join(found.notes)


def test_classes_of_torch_that_are_no_part_are_refused(tmp_path):
    for harmful, name in ((nn.Linear(1, 1), "torch.nn.modules.linear.Linear"), (os.path.join, "join")):
        file = network_pickle(tmp_path / "x.pkl", *make(), extra={"x": harmful})
        with pytest.raises(UserError, match=name):
            load(file)


def tensor_call(offset, size, stride):
    storage = torch.zeros(4).untyped_storage()
    return Call(
        torch._utils._rebuild_tensor_v2,
        torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True),
        offset,
        size,
        stride,
        False,
        collections.OrderedDict(),
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (tensor_call(0, (1000, 1000), (0, 0)), "larger than its storage"),
        (tensor_call(3, (2, 2), (2, 1)), "x.pkl"),
        (tensor_call(0, (10**9, "a"), (0, 0)), "the bytes of a tensor"),
        (Call(torch._utils._rebuild_parameter, 3, True, collections.OrderedDict()), "no tensor"),
        (np.array([print], dtype=object), r"it asks for builtins\.print"),
    ],
    ids=["expanded", "beyond", "text", "parameter", "array"],
)
def test_tensors_that_are_not_in_the_file_are_refused(value, said, tmp_path):
    with pytest.raises(UserError, match=said):
        load(network_pickle(tmp_path / "x.pkl", *make(), extra={"x": value}))


def test_damaged_and_other_files_are_one_line(plain, tmp_path):
    whole = plain[0].read_bytes()
    network, arguments = make()
    state = {"_modules": {"model": 3}, "_init_kwargs": EasyDict()}
    files = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"hello",
        "list": pickle.dumps([1, 2]),
        "no network": pickle.dumps({"G": 1}),
    }
    for name, data in files.items():
        file = tmp_path / f"{name}.pkl"
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"expected a network pickle of EDM at") as caught:
            load(file)
        assert "\n" not in str(caught.value)
    for name, given in {
        "unknown class": {"preconditioning": "Precond"},
        "no model": {"extra": {"ema": Persistent("EDMPrecond", state)}},
    }.items():
        file = network_pickle(tmp_path / f"{name}.pkl", network, arguments, **given)
        with pytest.raises(UserError) as caught:
            load(file)
        assert "\n" not in str(caught.value)
    laughs = [1, 2]
    for _ in range(60):  # written in a few bytes, and as long as 2^60 lists
        laughs = [laughs, laughs]
    for more, said in (
        ({"model_channels": 16}, "size mismatch"),
        ({"num_blocks": 10**9}, "too large"),
        ({"num_blocks": 10**5}, "too few"),
        ({"model_channels": "8"}, "another type"),
        ({"channel_mult_noise": True}, "another type"),
        ({"label_dim": 10**7}, "too large"),
        ({"out_channels": 1}, "1 channels of output do not go with 3"),
        ({"colour": 1}, "SongUNet has no arguments colour"),
        ({"encoder_type": "other"}, "`encoder_type` to be one of"),
        ({"channel_mult": 3}, "x.pkl"),
        ({"channel_mult": laughs}, "numbers and texts as arguments"),
    ):
        file = network_pickle(tmp_path / "x.pkl", network, arguments | more)
        with pytest.raises(UserError, match=said) as caught:
            load(file)
        assert "\n" not in str(caught.value)


def test_globals_of_a_made_pickle_are_those_of_real_ones(plain):
    """So that what is tested here is the format: the names that the description of real files lists."""
    names = set()

    class Recorder(pickles._Unpickler):
        def find_class(self, module, name):
            names.add(f"{module}.{name}")
            return super().find_class(module, name)

    with plain[0].open("rb") as file:
        Recorder(file, pickles._StandIns(10**9).table()).load()
    assert {
        "torch_utils.persistence._reconstruct_persistent_obj",
        "dnnlib.util.EasyDict",
        "collections.OrderedDict",
        "torch.nn.modules.container.ModuleDict",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v2",
        "torch.storage._load_from_bytes",
    } == names


# conversion


def test_conversion_keeps_the_denoiser(plain, tmp_path, capsys):
    from gaussbias.convert import main

    out = tmp_path / "made" / "denoiser.safetensors"
    assert main([str(plain[0]), "--to", str(out)]) == 0
    said = capsys.readouterr().out
    for part in ("EDMPrecond", "SongUNet", "3 x 8 x 8", "sigma: any", "205 kimg", "not run", str(out)):
        assert part in said
    x, sigma = points()
    found = load(out)
    assert torch.equal(found.denoiser(x, sigma), load(plain[0]).denoiser(x, sigma))
    assert found.kimg == 205
    assert json.loads(out.with_suffix(".json").read_text())["source"] == plain[0].name
    assert main([str(plain[0]), "--to", str(out)]) == 2
    assert "already there" in capsys.readouterr().err


def test_conversion_stores_labels_and_refuses(tmp_path, capsys):
    from gaussbias.convert import main

    network, arguments = make(label_dim=4)
    file = network_pickle(tmp_path / "x.pkl", network, arguments)
    assert main([str(file), "--to", str(tmp_path / "a.safetensors")]) == 0
    assert "4 classes" in capsys.readouterr().out
    with pytest.raises(UserError, match="class-conditional"):
        load(tmp_path / "a.safetensors")
    assert main([str(file), "--to", str(tmp_path / "b.safetensors"), "--labels", "1"]) == 0
    x, sigma = points()
    expected = load(file, labels="1").denoiser(x, sigma)
    assert torch.equal(load(tmp_path / "b.safetensors").denoiser(x, sigma), expected)
    assert torch.equal(load(tmp_path / "a.safetensors", labels="1").denoiser(x, sigma), expected)
    capsys.readouterr()
    trap = tmp_path / "ran"
    bad = network_pickle(tmp_path / "bad.pkl", *make(), extra={"x": payload("os.system", trap)})
    for arguments, said in (
        ([str(bad), "--to", str(tmp_path / "c.safetensors")], "refused"),
        ([str(tmp_path / "none.pkl"), "--to", str(tmp_path / "c.safetensors")], "found nothing"),
        ([str(file), "--to", str(tmp_path / "c.pt")], ".safetensors"),
        ([str(file), "--to", str(tmp_path / "c.safetensors"), "--labels", "9"], "a class from 0 to 3, got 9"),
    ):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
    assert not (tmp_path / "c.safetensors").exists()
    assert not trap.exists()


def test_parts_that_hold_one_another_end(tmp_path):
    """Sixty modules, each of which has the next one twice, are 2^60 names."""
    network, arguments = make()
    part = Persistent("Block", {"_modules": {}, "_parameters": {}, "_buffers": {}})
    for _ in range(60):
        part = Persistent("Block", {"_modules": {"a": part, "b": part}})
    with pytest.raises(UserError, match="too many parts"):
        load(network_pickle(tmp_path / "x.pkl", network, arguments, parts={"model": part}))


# files that would take the machine


def raw(opcodes, tmp_path):
    """A pickle {"ema": what the opcodes make}."""
    file = tmp_path / "raw.pkl"
    file.write_bytes(b"\x80\x04}\x8c\x03ema" + opcodes + b"s.")
    return file


@pytest.mark.parametrize(
    "opcodes",
    [
        b"}" + b")" + b"\x85" * 3_000_000 + b"K\x01s",  # a key whose hash is deeper than the stack of C
        b"}" + b")" + b"".join(b"\x94h" + bytes([i]) + b"\x86" for i in range(60)) + b"K\x01s",  # one of 2^60 parts
        b"\x8f(" + b")" + b"\x85" * 100_000 + b"\x90",  # the same in a set
        b"K\x01r" + (2**26).to_bytes(4, "little"),  # a memo as large as its last place
        b"ccollections\nOrderedDict\n}\x8c\x01aK\x01s\x85R",  # a copy
        b"cdnnlib.util\nEasyDict\n}\x8c\x01aK\x01s\x85R",
        b"ccollections\nOrderedDict\n}\x8c\x01aK\x01sb",  # a state for a function
        b"\x8c\x01aQ",  # an object elsewhere
        b"\x82\x01",  # a registered extension
    ],
    ids=["deep", "wide", "set", "memo", "copy", "class", "state", "persistent", "extension"],
)
def test_pickles_that_would_take_the_machine_are_refused(opcodes, tmp_path):
    with pytest.raises(UserError) as caught:
        load(raw(opcodes, tmp_path))
    assert "\n" not in str(caught.value)


def test_states_do_not_change_tensors(tmp_path):
    """`Tensor.__setstate__` would make its storage as large as it likes."""
    network, arguments = make()

    class State:
        def __reduce__(self):
            made = torch._utils._rebuild_parameter, (torch.zeros(4), False, collections.OrderedDict())
            return *made, (torch.zeros(4).untyped_storage(), 0, (10**6,), (1,))

    with pytest.raises(UserError, match="was refused"):
        load(network_pickle(tmp_path / "x.pkl", network, arguments, extra={"x": State()}))


def test_one_tensor_under_many_names_does_not_grow(tmp_path):
    network, arguments = make()
    shared = torch.zeros(10**5)
    for number in range(100):
        network.register_buffer(f"b{number}", shared)
    with pytest.raises(UserError, match="larger than the file"):
        load(network_pickle(tmp_path / "x.pkl", network, arguments))


def test_texts_of_a_file_cannot_command_a_terminal(tmp_path, capsys):
    from gaussbias.convert import main

    file = network_pickle(tmp_path / "x.pkl", *make(), extra={"\x1b]0;owned\x07 \ud800": 1})
    assert main([str(file), "--to", str(tmp_path / "x.safetensors")]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "?]0;owned?" in said


def test_half_precision_is_read(tmp_path):
    network, arguments = make()
    file = network_pickle(tmp_path / "x.pkl", network.half(), arguments)
    x, sigma = points()
    found = load(file).denoiser
    assert torch.equal(found(x, sigma), EDMDenoiser(network.float())(x, sigma))
    double = found(x.double(), 1.0)  # weights stay what they are
    assert double.dtype == torch.float64
    assert torch.allclose(double.float(), found(x, 1.0), atol=1e-6)


def test_our_own_exports_may_begin_like_a_pickle(tmp_path):
    """The first byte of safetensors is the length of a header: 128 for some networks."""
    from safetensors.torch import save_file

    from gaussbias.backbones import build
    from gaussbias.checkpoints import save_denoiser
    from gaussbias.config import ModelConfig

    for length in range(1, 300):
        file = tmp_path / "x.safetensors"
        save_file({"a" * length: torch.zeros(1)}, file)
        if file.read_bytes()[0] == 0x80:
            break
    with pytest.raises(UserError, match="cannot read the denoiser"):
        load(file)
    for channels in (4, 8, 16, 32):
        network = build(ModelConfig(backbone="ddpmpp", channels=channels), (1, 8, 8))
        model = {"backbone": "ddpmpp", "channels": channels}
        assert isinstance(load(save_denoiser(EDMDenoiser(network), model, (1, 8, 8), tmp_path)).denoiser, EDMDenoiser)
