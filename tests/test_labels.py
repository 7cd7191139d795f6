"""Classes of images: where they come from, what is trained with them, and what is measured on each."""

import csv
import gzip
import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from runs import SMALL, differences
from test_sources import idx_bytes, refused

import gaussbias
from gaussbias import backbones
from gaussbias.catalogue import Entry
from gaussbias.config import DataConfig, ModelConfig
from gaussbias.data import has_labels, read_labelled
from gaussbias.data.images import to_unit
from gaussbias.data.sources import ImageFolder, open_source
from gaussbias.data.sources.labels import checked, labels_of
from gaussbias.denoisers import Denoiser, EDMDenoiser, GaussianDenoiser, given
from gaussbias.fit import main
from gaussbias.metrics.blocks import Estimate
from gaussbias.metrics.generalization import wilson_interval
from gaussbias.modules import EDMModule
from gaussbias.modules.datamodule import ImageDataModule, TrainingBatches
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import GeneralizationProbe, Instruments, ProbeBank, References, build
from gaussbias.probes.bank import SampleValues
from gaussbias.probes.by_class import ByClass, over_classes
from gaussbias.probes.classes import ClassBanks, bank_of, sample_batches, sample_labels
from gaussbias.probes.compared import compared
from gaussbias.system.errors import UserError

LABELS = [2, 0, 1, 1, 0, 2]


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def written_zip(path, pixels, labels):
    with zipfile.ZipFile(path, "w") as archive:
        for i, image in enumerate(pixels):
            archive.writestr(f"00000/img{i:08d}.png", png(image))
        if labels is not None:
            archive.writestr("dataset.json", json.dumps({"labels": labels}))
    return path


def named(labels):
    return [[f"00000/img{i:08d}.png", label] for i, label in enumerate(labels)]


def opened(name, path=None, key="data.path"):
    return labels_of(open_source(name, path, None, key), name, key).tolist()


# sources


def test_every_source_with_labels_gives_them(tmp_path, pixels):
    assert opened("edm_zip", written_zip(tmp_path / "a.zip", pixels, named(LABELS))) == LABELS
    backwards = [[name.replace("/", "\\"), label] for name, label in reversed(named(LABELS))]
    assert opened("edm_zip", written_zip(tmp_path / "b.zip", pixels, backwards)) == LABELS
    folder = tmp_path / "folder"
    for i, (image, label) in enumerate(zip(pixels, LABELS, strict=True)):
        place = folder / ("cat", "dog", "eel")[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes(png(image))
    names = ImageFolder(folder).names
    assert opened("folder", folder) == [LABELS[int(name.split("/")[1][0])] for name in names]
    (folder / "dataset.json").write_text(json.dumps({"labels": [[name, 7] for name in names]}))
    assert opened("folder", folder) == [7] * 6
    for end, pack in (("", bytes), (".gz", gzip.compress)):
        path = tmp_path / f"t10k-images-idx3-ubyte{end}"
        path.write_bytes(pack(idx_bytes(pixels)))
        (tmp_path / f"t10k-labels-idx1-ubyte{end}").write_bytes(pack(idx_bytes(np.array(LABELS, np.uint8))))
        assert opened("idx", path) == LABELS
    for name in ("labels", "y"):
        np.savez(tmp_path / "x.npz", images=pixels, **{name: np.array(LABELS)})
        assert opened("array", tmp_path / "x.npz") == LABELS
    np.savez(tmp_path / "x.npz", pixels, y=np.array(LABELS, np.float32)[:, None])
    assert opened("array", tmp_path / "x.npz") == LABELS
    source = tmp_path / "mine_labelled.py"
    source.write_text("import torch\ndef make(path):\n    return torch.zeros(3, 1, 4, 4), torch.tensor([0, 1, 5])\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert opened("mine_labelled:make") == [0, 1, 5]


def test_the_digits_have_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    assert opened("digits") == load_digits().target.tolist()


def test_labels_that_are_none_say_what_is_wrong(tmp_path, pixels):
    def of_zip(labels):
        return opened, "edm_zip", written_zip(tmp_path / "x.zip", pixels, labels)

    refused("data.path: expected dataset.json with labels in .*x.zip, for data.labels, found none", *of_zip(None))
    refused("expected labels, found none", *of_zip([]))
    refused("a label for each of 6 images, found none for 2 of them, .*img00000004.png", *of_zip(named(LABELS[:4])))
    refused(r"expected the number of a class for each image, got \[0, 1\]", *of_zip(named([*LABELS[:5], [0, 1]])))
    refused("expected the number of a class for each image, got 1.5", *of_zip(named([*LABELS[:5], 1.5])))
    refused("expected the number of a class for each image, got True", *of_zip(named([*LABELS[:5], True])))
    refused("expected labels from 0 to 1,048,575, got -1", *of_zip(named([*LABELS[:5], -1])))
    refused("something else", *of_zip([["one"]]))
    refused("has none", opened, "gaussian")
    shards = tmp_path / "shards" / "00000"
    shards.mkdir(parents=True)
    (shards / "img00000000.png").write_bytes(png(pixels[0]))
    refused("numbered parts of a data set", opened, "folder", tmp_path / "shards")
    (tmp_path / "shards" / "a.png").write_bytes(png(pixels[0]))
    refused("a.png lies in none", opened, "folder", tmp_path / "shards")
    (tmp_path / "mine").write_bytes(idx_bytes(pixels))
    refused("named like train-images-idx3-ubyte", opened, "idx", tmp_path / "mine")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
    refused(
        "expected a file, found none at .*train-labels-idx1-ubyte", opened, "idx", tmp_path / "train-images-idx3-ubyte"
    )
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(5, np.uint8)))
    refused("a label for each of 6 images, got 5", opened, "idx", tmp_path / "train-images-idx3-ubyte")
    np.savez(tmp_path / "x.npz", images=pixels)
    refused("labels or y, found none", opened, "array", tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=pixels, y=np.eye(6))
    refused("if you have one-hot rows, save their argmax", opened, "array", tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", images=pixels, y=np.array(["a"] * 6, dtype=object))
    refused("expected labels that are numbers", opened, "array", tmp_path / "x.npz")
    for wrong in (np.array(["1", "2"]), np.array([1, np.inf]), np.array([True, False]), np.zeros(2, "M8[D]")):
        refused("whole numbers", checked, wrong, 2, "x")
    for kind in ("uint16", "uint64", ">i8", "i1", "f4"):
        assert checked(np.array([3, 1], kind), 2, "x").tolist() == [3, 1]
    np.savez(tmp_path / "x.npz", images=pixels, y=np.arange(6), labels=np.arange(6))
    refused("expected one array of labels", opened, "array", tmp_path / "x.npz")
    for name, folders in (("train", ("cat", "dog")), ("heldout", ("bird", "cat", "dog"))):
        for folder in folders:
            (tmp_path / name / folder).mkdir(parents=True)
            for i in range(3):
                (tmp_path / name / folder / f"{i}.png").write_bytes(png(pixels[i]))
    both = DataConfig("folder", str(tmp_path / "train"), str(tmp_path / "heldout"), labels=True)
    refused("expected the same folders as in data.path, .* bird is in one", read_labelled, both)
    refused("whole numbers", checked, torch.tensor([0.5, 1]), 2, "x")


def key(image):
    return image.numpy().tobytes()


def test_images_without_labels_are_told_from_damaged_labels(tmp_path, pixels):
    """The lens takes all images where there are no classes; it does not where it cannot read them."""

    def known(source, path):
        return has_labels(DataConfig(source, str(path), n_train=3, n_heldout=2))

    assert known("edm_zip", written_zip(tmp_path / "a.zip", pixels, named(LABELS)))
    assert not known("edm_zip", written_zip(tmp_path / "b.zip", pixels, None))
    assert not known("edm_zip", written_zip(tmp_path / "c.zip", pixels, []))
    damaged = written_zip(tmp_path / "d.zip", pixels, named(LABELS))
    bytes_ = bytearray(damaged.read_bytes())
    place = bytes_.index(b'{"labels"')
    bytes_[place : place + 9] = b"XXXXXXXXX"
    damaged.write_bytes(bytes_)
    with pytest.raises(UserError, match=r"dataset.json in .*d.zip cannot be read \(.*CRC.*\); replace the file"):
        known("edm_zip", damaged)
    with pytest.raises(UserError, match="found none for 1 of them"):
        known("edm_zip", written_zip(tmp_path / "e.zip", pixels, named(LABELS[:5])))
    (tmp_path / "mine").write_bytes(idx_bytes(pixels))
    assert not known("idx", tmp_path / "mine")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
    assert not known("idx", tmp_path / "train-images-idx3-ubyte")
    np.savez(tmp_path / "x.npz", images=pixels)
    assert not known("array", tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", pixels)
    assert not known("array", tmp_path / "x.npy")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png(pixels[0]))
    assert not known("folder", tmp_path / "images")


def test_labels_go_with_images_and_classes_are_chosen(digits):
    from sklearn.datasets import load_digits

    known = {key(image): label for image, label in zip(digits, load_digits().target.tolist(), strict=True)}
    for given_keys in ({}, {"n_train": 100, "subset_seed": 3}, {"half": "S2"}, {"classes": [3, 5], "n_heldout": 40}):
        images = read_labelled(DataConfig(labels=True, **given_keys))
        assert images.classes == 10
        for part, labels in ((images.training, images.labels), (images.heldout, images.heldout_labels)):
            assert labels.tolist() == [known[key(image)] for image in part]
        if "classes" in given_keys:
            assert set(images.labels.tolist()) == {3, 5}
    assert read_labelled(DataConfig()).labels is None
    with pytest.raises(UserError, match=r"data\.classes: expected classes of the images, which are 0, 1, .*, got 11"):
        read_labelled(DataConfig(classes=[3, 11]))


def test_batches_carry_the_labels_of_their_images_on_any_number_of_ranks(digits):
    labels = torch.arange(50)
    images = digits[:50]
    for flip in (False, True):
        whole = TrainingBatches(images, 8, seed=1, flip=flip, start=3, labels=labels)
        ranks = [TrainingBatches(images, 8, 1, flip, 3, rank, 2, labels=labels) for rank in (0, 1)]
        for batch, first, second in zip(whole, *ranks, strict=False):
            assert torch.equal(batch["labels"], torch.cat([first["labels"], second["labels"]]))
            for image, label in zip(batch["images"], batch["labels"], strict=True):
                assert key(image) in (key(images[label]), key(images[label].flip(-1)))
            if batch["step"] > 20:  # beyond the third epoch
                break
    assert "labels" not in next(iter(TrainingBatches(images, 8)))


# networks


class Told(torch.nn.Module):
    """Says which rows it was told."""

    def forward(self, x, c_noise, rows):
        return (rows * torch.arange(1.0, rows.shape[1] + 1)).sum(1)[:, None, None, None].expand_as(x)


def test_a_denoiser_is_evaluated_at_the_class_of_each_image():
    denoiser = EDMDenoiser(Told(), classes=4)
    x, sigma = torch.zeros(5, 1, 2, 2), 0.5
    scale = float(denoiser.coefficients(torch.tensor(sigma))[1])
    labels = torch.tensor([3, 0, -1, 2, 2])
    expected = torch.tensor([4.0, 1, 0, 3, 3]) * scale
    for at_once in (None, 2):
        denoiser.at_once = at_once
        assert torch.allclose(denoiser.given(labels)(x, sigma)[:, 0, 0, 0], expected)
        assert torch.allclose(denoiser.given(1)(x, sigma), torch.full_like(x, 2 * scale))
        assert torch.equal(denoiser(x, sigma), x)  # told nothing
    assert given(denoiser, None) is denoiser
    plain = EDMDenoiser(torch.nn.Identity())
    assert plain.given(3) is plain
    assert given(lambda x, sigma, labels: labels.sum(), 2)(x, sigma) == 10
    for wrong in (4, -2, torch.tensor([0, 9])):
        with pytest.raises(ValueError, match="Expected `labels` from 0 to 3, or -1 for none"):
            denoiser.given(wrong)


@pytest.mark.parametrize("name", ["unet", "mlp", "ddpmpp", "ncsnpp", "adm"])
def test_every_network_is_told_the_class_and_is_what_it_was_without(name):
    model = ModelConfig(backbone=name, channels=16, channel_mult=[1, 1])
    torch.manual_seed(0)
    network = backbones.build(model, (1, 8, 8), 3).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # the last layers begin at 0
    x, c_noise, rows = torch.randn(4, 1, 8, 8), torch.zeros(4), torch.eye(3)[[0, 1, 2, 0]]
    values = network(x, c_noise, rows)
    assert torch.allclose(values[3], network(x[3:], c_noise[3:], rows[3:])[0], atol=1e-5)
    assert (network(x, c_noise, rows.flip(1)) - values).flatten(1).norm(dim=1)[[0, 2]].min() > 1e-3
    nothing = network(x, c_noise, torch.zeros(4, 3))
    assert torch.equal(nothing, network(x, c_noise))
    assert (nothing - values).norm() > 1e-3
    plain = backbones.build(model, (1, 8, 8))
    assert set(plain.state_dict()) < set(network.state_dict())
    assert all("label" in added for added in set(network.state_dict()) - set(plain.state_dict()))


def test_labels_are_dropped_by_seed_and_step_whatever_the_ranks(monkeypatch):
    module = EDMModule(Told(), batch_size=1000, classes=4, label_dropout=0.3, seed=5)
    labels = torch.arange(1000) % 4
    told = module._told(labels, 7)
    dropped = told == -1
    assert torch.equal(told[~dropped], labels[~dropped])
    assert abs(float(dropped.float().mean()) - 0.3) < 5 * (0.3 * 0.7 / 1000) ** 0.5
    assert torch.equal(module._told(labels, 7), told)
    assert not torch.equal(module._told(labels, 8), told)
    for rank in (0, 1):
        monkeypatch.setattr(EDMModule, "global_rank", rank)
        rows = slice(500 * rank, 500 * (rank + 1))
        assert torch.equal(module._told(labels[rows], 7), told[rows])
    assert torch.equal(EDMModule(Told(), batch_size=4, classes=4)._told(labels[:4], 0), labels[:4])


# measuring


class ByTable(Denoiser):
    """A denoiser for each class."""

    def __init__(self, members):
        super().__init__()
        self.members = torch.nn.ModuleList(members)
        self.classes = len(members)

    def forward(self, x, sigma, labels):
        each = torch.stack([member(x, sigma) for member in self.members])
        return each[labels, torch.arange(len(x))]


def data_of(digits, labels, classes, draws=128, samples=60, **others):
    heldout = slice(1200, 1797)
    images, apart = digits[:1200], digits[heldout]
    pools = {"train": images, "heldout": apart}
    own = {"train": labels[:1200], "heldout": labels[heldout]}
    settings = {"samples": samples, "sampler_sigmas": karras_sigmas(5), **others}
    bank = ClassBanks(pools, own, classes, draws, karras_sigmas(4), **settings)
    return ImageDataModule(images, apart, bank, 8, labels=own["train"], heldout_labels=own["heldout"], classes=10)


def measured(instruments, denoiser):
    instruments.to(torch.device("cpu"))
    for _ in instruments.measure({"ema": denoiser}, torch.device("cpu")):
        pass
    return instruments.result()


def probes(references):
    return {"ema": build(references)}


@pytest.fixture(scope="module")
def labels():
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().target).long()


def test_one_class_is_what_it_is_without_labels_bit_for_bit(digits, labels):
    data = data_of(digits, labels, [3])
    images, heldout = data.set.of_class(3)
    assert (labels[:1200] == 3).sum() == len(images)
    bank = ProbeBank(
        {"train": images, "heldout": heldout}, 128, karras_sigmas(4), samples=60, sampler_sigmas=karras_sigmas(5)
    )
    denoiser = GaussianDenoiser(estimate(digits[:1200]))
    plain = measured(Instruments(References(bank, images, heldout=heldout), probes(References(bank, images))), denoiser)
    whole = compared(data.set, estimate(data.images)).instruments(probes)
    assert isinstance(whole, ByClass)
    own = measured(whole, denoiser)
    any_class = {name.replace("_any", ""): value for name, value in own.row.items() if "_any" in name}
    own_row = {name: value for name, value in own.row.items() if "_any" not in name}
    assert own_row == pytest.approx(plain.row, rel=0, abs=0, nan_ok=True)
    assert any_class == {name: own_row[name] for name in any_class}
    assert (len(plain.row) > 200, len(any_class)) == (True, 4)
    assert own.draws == plain.draws == 128


def test_the_gaussians_of_classes_are_their_own_references(digits, labels):
    """The table of the class Gaussians is affine on each class and has no distance to them; one Gaussian has."""
    classes = [1, 4, 7]
    data = data_of(digits, labels, classes)
    moments = estimate(data.images)
    table = ByTable([GaussianDenoiser(estimate(data.images[data.labels == label])) for label in range(10)])
    instruments = compared(data.set, moments).instruments(probes, each=True)
    own = measured(instruments, table)
    for pool in ("train", "heldout"):
        assert own[f"gaussian/rmse/{pool}"].value < 1e-5
        assert own[f"linearity/affine_cosine/{pool}"].value == pytest.approx(1, abs=1e-5)
    assert own["samples/gaussian_cosine"].value == pytest.approx(1, abs=1e-5)
    other = measured(instruments, GaussianDenoiser(moments))
    assert other["gaussian/rmse/heldout"].value > 0.02
    assert other["denoising/mse/train"].value > own["denoising/mse/train"].value


def test_a_value_is_the_mean_over_classes_and_its_error_is_stratified(digits, labels):
    classes = [0, 6]
    data = data_of(digits, labels, classes)
    table = GaussianDenoiser(estimate(data.images))
    instruments = compared(data.set, estimate(data.images)).instruments(probes, each=True)
    row = measured(instruments, table).row
    sizes = [float((data.labels == label).sum()) for label in classes]
    shares = [size / sum(sizes) for size in sizes]
    for name in ("denoising/mse/heldout", "gaussian/rmse/train", "ladder/affine/heldout", "samples/frechet_pca"):
        each = [row[f"class_{label}/{name}"] for label in classes]
        assert row[name] == pytest.approx(sum(w * value for w, value in zip(shares, each, strict=True)), rel=1e-12)
    # draws and images of classes are independent, and errors add up in squares (within their own errors, for blocks)
    for name, close in (
        ("gap/mse_se", 1e-9),
        ("generalization/gl_score_heldout_se", 1e-9),
        ("denoising/mse/heldout_se", 0.5),
    ):
        each = [row[f"class_{label}/{name}"] for label in classes]
        together = sum((w * error) ** 2 for w, error in zip(shares, each, strict=True)) ** 0.5
        assert row[name] == pytest.approx(together, rel=close)
    assert row["gap/z"] == pytest.approx(
        max(row[f"gap/mse/{level}"] / row[f"gap/mse/{level}_se"] for level in levels(row, "gap/mse"))
    )
    low, high = row["generalization/memorized_fraction_low"], row["generalization/memorized_fraction_high"]
    assert low == 0
    # the upper end for none of 60 samples: z^2 / (n + z^2)
    assert high == pytest.approx(1.96**2 / (1 / sum(w**2 for w in shares) * 30 + 1.96**2), rel=0.02)


def test_labels_permuted_together_with_images_change_nothing(digits, labels):
    order = torch.randperm(1200, generator=torch.Generator().manual_seed(0))
    x = to_unit(digits[1200:1210]) + 0.5 * torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(1))

    def of_class(images, own):
        data = data_of(torch.cat([images, digits[1200:]]), torch.cat([own, labels[1200:]]), [2, 5])
        references = compared(data.set, estimate(data.images)).classes[5]
        found = references.nearest(x)
        distances = torch.stack([found.first, found.second])
        return [references[name](x.double(), 0.7) for name in ("gaussian", "empirical")] + [distances]

    first = of_class(digits[:1200], labels[:1200])
    together = of_class(digits[:1200][order], labels[:1200][order])
    apart = of_class(digits[:1200], labels[:1200][order])
    for one, same, other in zip(first, together, apart, strict=True):
        assert torch.allclose(one, same, rtol=0, atol=1e-5)
        assert not torch.allclose(one, other, rtol=0, atol=1e-2)


def test_samples_of_a_class_are_also_judged_among_the_images_of_any_class(digits, labels):
    """Against distances to all images of a class and of any, for points between images of a class and any others."""
    data = data_of(digits, labels, [3, 8])
    references = compared(data.set, estimate(data.images)).classes[3]
    probe = GeneralizationProbe(references)
    probe.to(torch.device("cpu"))
    every = to_unit(data.images).double().flatten(1)
    own = every[data.labels == 3]
    random = torch.Generator().manual_seed(0)
    shares = torch.linspace(0.15, 0.35, 30, dtype=torch.float64)[:, None]
    between = own[:30] + shares * (every[torch.randperm(len(every), generator=random)[:30]] - own[:30])
    for batch in sample_batches(data.bank.banks[3], torch.device("cpu")):
        samples = between[batch.start : batch.start + len(batch.latents)].view(-1, 1, 8, 8)
        probe.update(SampleValues(**vars(batch), samples=samples, path=samples[None]), references.gaussian)
    found = probe.result()
    for name, images in (("memorized_fraction", own), ("memorized_fraction_any", every)):
        distances = torch.cdist(between, images).sort(1).values
        expected = float((distances[:, 0] < distances[:, 1] / 3).double().mean())
        assert float(found[f"generalization/{name}"].value) == pytest.approx(expected)
        low, high = wilson_interval(expected * 30, 30)
        ends = (float(found[f"generalization/{name}_{end}"].value) for end in ("low", "high"))
        assert tuple(ends) == pytest.approx((low, high))
    assert found["generalization/memorized_fraction_any"].value < found["generalization/memorized_fraction"].value


def levels(row, name):
    ends = [key.rpartition("/")[2] for key in row if key.startswith(f"{name}/sigma_") and not key.endswith("_se")]
    return [end for end in ends if 0.1 <= float(end.removeprefix("sigma_").replace("p", ".")) <= 20]


def test_a_mean_over_levels_is_that_of_the_levels_of_all_classes(digits, labels):
    data = data_of(digits, labels, [0, 6])
    instruments = compared(data.set, estimate(data.images)).instruments(probes)
    one = Estimate(torch.tensor(0.0), torch.zeros(16), torch.tensor(True), "train")

    sigmas = [sigma for sigma in data.bank.sigmas if 0.1 <= sigma <= 20]
    first, second = (f"r2{Entry.end(sigma)}" for sigma in sigmas[:2])
    full = {"r2": 0.5, first: 0.1, second: 0.9}
    part = {"r2": 0.9, second: 0.9}
    classes = [{name: replace(one, value=torch.tensor(v)) for name, v in values.items()} for values in (full, part)]
    whole = {"r2": replace(one, value=torch.tensor(0.7)), second: replace(one, value=torch.tensor(0.9))}
    assert float(instruments._averaged_again(whole, classes)["r2"].value) == pytest.approx(0.9)
    same = instruments._averaged_again({**whole, first: whole[second]}, [classes[0]] * 2)
    assert float(same["r2"].value) == pytest.approx(0.7)
    assert "r2" not in instruments._averaged_again({"r2": whole["r2"]}, classes)


def test_contributions_of_classes_stand_side_by_side_with_the_right_error():
    random = torch.Generator().manual_seed(0)
    shares = [0.2, 0.3, 0.5]
    each = []
    for count in (5, 40, 11):
        pseudo = torch.randn(count, generator=random, dtype=torch.float64)
        each.append(Estimate(pseudo.mean(), pseudo, torch.tensor(True)))
    whole = over_classes(each, shares)
    assert float(whole.value) == pytest.approx(sum(w * float(e.value) for w, e in zip(shares, each, strict=True)))
    assert float(whole.se) == pytest.approx(
        sum((w * float(e.se)) ** 2 for w, e in zip(shares, each, strict=True)) ** 0.5
    )
    blocks = [Estimate(p.mean(), p, torch.tensor(True), "train") for p in torch.randn(3, 16, dtype=torch.float64)]
    together = over_classes(blocks, shares)
    by_hand = sum(w * e.pseudo for w, e in zip(shares, blocks, strict=True))
    assert torch.allclose(together.pseudo, by_hand)
    assert float(together.se) == pytest.approx(float(by_hand.std() / 4))
    # as many training images of each class as there are samples, or all that there are
    uneven = over_classes([replace(estimate, pool="samples") for estimate in each], shares)
    assert float(uneven.se) == pytest.approx(float(whole.se))


def test_draws_are_shared_out_to_classes(digits, labels):
    bank = data_of(digits, labels, list(range(10)), draws=512, samples=200).bank
    assert [part.label for part in bank.parts] == list(range(10))
    assert {(part.block, part.blocks, part.samples) for part in bank.parts} == {(4, 16, 20)}
    assert (bank.block, bank.blocks, bank.samples) == (40, 16, 200)
    for part in bank.parts:
        assert bool((labels[:1200][labels[:1200] == part.label] == part.label).all())
        assert part.draw("train", 0)[0].shape[0] == 4
    first, second = bank.parts[:2]
    assert not torch.equal(first.draw("train", 0)[1], second.draw("train", 0)[1])
    assert torch.equal(first.latents(0), second.latents(0))
    assert sample_labels(bank).tolist() == [label for label in range(10) for _ in range(20)]
    assert sum(bank.shares.values()) == pytest.approx(1)
    other = data_of(digits, labels.flip(0), list(range(10)), draws=512, samples=200).bank
    assert other.hash("train") != bank.hash("train")
    few = {"train": torch.tensor([0, 0, 4, 4]), "heldout": torch.tensor([0, 0, 4])}
    with pytest.raises(ValueError, match=r"at least 2 images of each class in the pool heldout, .* 1 of class 4"):
        bank_of({"train": digits[:4], "heldout": digits[:3]}, few, draws=32, sigmas=[1.0])


def test_a_ruler_measures_a_function_that_is_told_labels(digits, labels):
    data = data_of(digits, labels, [1, 4])
    chosen = [torch.isin(part, torch.tensor([1, 4])) for part in (data.labels, data.heldout_labels)]
    images, heldout = data.images[chosen[0]], data.heldout[chosen[1]]
    told = data.labels[chosen[0]], data.heldout_labels[chosen[1]]
    table = ByTable([GaussianDenoiser(estimate(data.images[data.labels == label])) for label in range(10)])
    keys = {"draws": 128, "samples": 60, "sigmas": karras_sigmas(4), "sampler_sigmas": karras_sigmas(5)}
    ruler = gaussbias.Ruler(images, heldout, labels=told[0], heldout_labels=told[1], each=True, **keys)
    found = ruler(lambda x, sigma, labels: table(x, sigma, labels))
    expected = measured(compared(data.set, estimate(images)).instruments(probes, each=True), table)
    assert found.row == pytest.approx(expected.row, rel=0, abs=0, nan_ok=True)
    assert found["class_4/gaussian/rmse/heldout"].value < 1e-5
    with pytest.raises(ValueError, match="both of them"):
        gaussbias.Ruler(images, heldout, labels=told[0])
    with pytest.raises(ValueError, match="with `guidance` too"):
        gaussbias.Ruler(images, heldout, guidance=[2])


# a run


KEYS = [
    *SMALL,
    "data.n_train=180",
    "data.n_heldout=60",
    "data.labels=true",
    "data.classes=[3,4,7]",
    "probes.per_class=true",
    "train.kimg=0.64",
    "probes.first_kimg=0.32",
]


def test_a_run_with_labels_is_measured_resumed_exported_and_drawn(tmp_path, capsys):
    keys = [*KEYS, "model.label_dropout=0.2", f"run.root={tmp_path}", "run.pictures=end"]
    assert main([*keys, "run.name=a"]) == 0
    assert main([*keys, "run.name=b", "train.kimg=0.32"]) == 0
    assert main([*keys, "run.name=b", "--resume"]) == 0
    assert differences(tmp_path / "a", tmp_path / "b") == []
    with (tmp_path / "a" / "history.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["class_7/gaussian/rmse/heldout"]) > 0
    assert "class_7/gaussian/rmse/heldout" not in capsys.readouterr().out
    with pytest.raises(UserError, match="class-conditional, with 10 classes: expected labels, which are data"):
        gaussbias.load_denoiser(tmp_path / "a")
    x = torch.randn(3, 1, 8, 8)
    every = gaussbias.load_denoiser(tmp_path / "a", labels="data")
    for file in ("denoiser.safetensors", "checkpoints/last.ckpt"):
        three = gaussbias.load_denoiser(tmp_path / "a" / file, labels=3)
        assert torch.allclose(every.given(3)(x, 0.5), three(x, 0.5), atol=1e-6)
    assert not torch.allclose(every.given(4)(x, 0.5), every.given(3)(x, 0.5), atol=1e-6)
    none = gaussbias.load_denoiser(tmp_path / "a", labels="none")
    assert torch.allclose(every.given(-1)(x, 0.5), none(x, 0.5), atol=1e-6)
    assert (tmp_path / "a" / "figures" / "samples.png").exists()


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0] * 20, r"`labels` to be a tensor of shape \(20,\), whole numbers from 0, but got list"),
        (torch.zeros(19, dtype=torch.int64), r"torch.int64 of shape \(19,\)"),
        (torch.zeros(20), "got torch.float32"),
        (torch.full((20,), -1), "the least of them -1"),
        (torch.zeros(20, 1, dtype=torch.int64), r"got torch.int64 of shape \(20, 1\)"),
    ],
)
def test_a_ruler_takes_a_class_for_each_image(labels, text):
    images = torch.zeros(20, 1, 4, 4)
    with pytest.raises(ValueError, match=text):
        gaussbias.Ruler(images, images, draws=32, labels=labels, heldout_labels=torch.zeros(20, dtype=torch.int64))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["model.label_dropout=0.1"], "model.label_dropout: expected 0 with data.labels=false"),
        (["data.labels=true", "model.label_dropout=1"], "model.label_dropout: expected below 1"),
        (["probes.per_class=true"], "probes.per_class: expected false with data.labels=false"),
        (["data.labels=true", "module.kind=gaussian"], "data.labels: expected false with module.kind=gaussian"),
        (["data.labels=true", "probes.surrogate=x"], "probes.surrogate: expected null with data.labels=true"),
        (["data.classes=[3,3]"], "data.classes: expected numbers of classes from 0, each once"),
        (["data.classes=[12]"], "data.classes: expected classes of the images"),
        (
            ["data.labels=true", "data.n_train=12"],
            "data.n_train: expected at least 2 images of each class in the pool train",
        ),
        (["data.labels=true", "data.source=gaussian"], "data.source=gaussian has none"),
    ],
)
def test_mistakes_are_one_line(keys, text, tmp_path, capsys):
    assert main([*SMALL, f"run.root={tmp_path}", "run.name=a", *keys]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1
    assert not (tmp_path / "a").exists()
