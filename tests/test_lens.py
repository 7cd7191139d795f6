"""The lens gives what a run logs of itself, for checkpoints from anywhere."""

import csv
import json
import math
import re
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from edm_pickles import EasyDict, network_pickle

from gaussbias import config as configuration
from gaussbias.backbones.dhariwal import DhariwalUNet
from gaussbias.backbones.songunet import SongUNet
from gaussbias.checkpoints import load
from gaussbias.data.images import fingerprint
from gaussbias.denoisers import IDDPMDenoiser
from gaussbias.fit import main as fit
from gaussbias.history import last, read_measurement
from gaussbias.lens import looking
from gaussbias.lens.__main__ import main
from gaussbias.lens.source import read_source
from gaussbias.modules import build_data
from gaussbias.moments import estimate
from gaussbias.system import bars

DATA = ["data.n_train=300", "data.n_heldout=400"]
DRAWS = ["probes.draws=64", "probes.samples=8", "probes.sampler_steps=4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run."""
    root = tmp_path_factory.mktemp("runs")
    keys = [
        "model.backbone=mlp",
        "model.channels=16",
        "run.wandb=disabled",
        "run.pictures=none",
        "train.batch_size=32",
        "train.kimg=0.8",
    ]
    assert fit([*keys, *DATA, *DRAWS, "probes.first_kimg=0.4", f"run.root={root}", "run.name=x"]) == 0
    return root / "x"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A pipeline of diffusers for digits, untrained."""
    return saved_pipeline(tmp_path_factory.mktemp("diffusers") / "pipeline")


def saved_pipeline(folder, **more):
    torch.manual_seed(0)
    network = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        add_attention=False,
        **more,
    )
    DDPMPipeline(unet=network.eval(), scheduler=DDPMScheduler()).save_pretrained(folder)
    return folder


def snapshot(folder, kimg, kind=SongUNet, channels=1, preconditioning="EDMPrecond", **attributes):
    torch.manual_seed(kimg)
    arguments = {
        "img_resolution": 8,
        "in_channels": channels,
        "out_channels": channels * (1 + (preconditioning == "iDDPMPrecond")),
        "label_dim": 0,
        "model_channels": 8,
        "channel_mult": [1, 2],
        "num_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
    }
    file = folder / f"network-snapshot-{kimg:06d}.pkl"
    return network_pickle(file, kind(**arguments).eval(), arguments, preconditioning, **attributes)


def values_of(folder):
    return json.loads((folder / "checkpoint.json").read_text())["values"]


def table(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_run_looked_at_is_what_it_logged(run, tmp_path, capsys):
    """Every value of its last measurement, to the round-off of batches of other sizes."""
    assert main([str(run), "--data", str(run), *DRAWS, f"--out={tmp_path}/out"]) == 0
    shown = capsys.readouterr().out
    found, logged = values_of(tmp_path / "out" / "x"), last(run)
    compared = 0
    for key, value in found.items():
        if not key.startswith("probes/"):
            assert value == pytest.approx(logged[key], rel=1e-4, abs=1e-6), key
            compared += 1
    assert compared > 300
    assert "heldout, x" in shown
    assert "no held-out pool: give data.heldout_path" in shown
    page = (tmp_path / "out" / "lens.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "0.8" in page
    assert [row["checkpoint"] for row in table(tmp_path / "out" / "lens.csv")] == ["x"]
    assert read_measurement(tmp_path / "out" / "x" / "measured" / "0.8_64.safetensors").kimg == 0.8


def test_a_pipeline_is_looked_at_within_its_noise_levels(pipeline, tmp_path, capsys):
    assert main([str(pipeline), "--data", "digits", *DATA, *DRAWS, f"--out={tmp_path}/out"]) == 0
    shown = capsys.readouterr().out
    assert "diffusers, UNet2DModel with DDPMScheduler (epsilon)" in shown
    one = read_measurement(tmp_path / "out" / "pipeline" / "measured" / "unknown_64.safetensors")
    assert math.isnan(one.kimg)
    assert one.sigmas[0] == pytest.approx(80)
    low = ((1 - DDPMScheduler().alphas_cumprod[0]) / DDPMScheduler().alphas_cumprod[0]) ** 0.5
    assert one.sigmas[-1] == pytest.approx(float(low), rel=1e-5)
    assert one.values["denoising/mse/heldout"] > 0
    assert (tmp_path / "out" / "pipeline" / "figures" / "ladder.png").exists()
    assert (tmp_path / "out" / "pipeline" / "figures" / "samples.png").exists()


def test_the_gaussian_denoiser_looked_at_is_affine_and_itself(run, tmp_path):
    """An oracle through the whole command: D_G has distance 0 to itself, and is affine."""
    file = run / "moments.safetensors"
    keys = [*DRAWS, "--surrogate", "linear.draws=640", f"--out={tmp_path}/out"]
    assert main([str(file), "--data", str(run), *keys]) == 0
    found = values_of(tmp_path / "out" / "moments")
    for pool in ("train", "heldout"):
        assert found[f"gaussian/rmse/{pool}"] < 1e-5
        assert found[f"ladder/r2/{pool}"] == pytest.approx(1, abs=1e-5)
        assert found[f"linearity/affine_cosine/{pool}"] == pytest.approx(1, abs=1e-6)
        assert found[f"linear/rmse/{pool}"] < 1e-4  # the surrogate shrinks to W_G, and has nothing to add
    assert found["samples/gaussian_cosine"] == pytest.approx(1, abs=1e-5)
    assert found["generalization/gl_score"] == pytest.approx(found["generalization/gl_score_gaussian"], rel=1e-5)
    figures = {path.name for path in (tmp_path / "out" / "moments" / "figures").iterdir()}
    assert figures == {"ladder.png", "leaks.png", "samples.png", "surrogate.png", "surrogate_paths.png"}


@pytest.mark.long
def test_snapshots_are_drawn_over_time_and_what_is_there_is_not_measured_again(tmp_path, monkeypatch, capsys):
    files = [snapshot(tmp_path, kimg) for kimg in (1, 20)]
    line = [*map(str, files), "--data", "digits", *DATA, *DRAWS, "probes.sigmas=[10,1,0.1]", f"--out={tmp_path}/out"]
    original = looking._measure

    def once(denoiser, instruments, device, subject, advance, guidance):
        if subject.kimg == 20:
            raise KeyboardInterrupt
        return original(denoiser, instruments, device, subject, advance, guidance)

    monkeypatch.setattr(looking, "_measure", once)
    assert main(line) == 130
    assert "goes on with the checkpoint that it was at" in capsys.readouterr().err
    before = (tmp_path / "out" / "network-snapshot-000001" / "checkpoint.json").read_bytes()
    measured = []

    def counted(denoiser, instruments, device, subject, advance, guidance):
        measured.append(subject.kimg)
        return original(denoiser, instruments, device, subject, advance, guidance)

    monkeypatch.setattr(looking, "_measure", counted)
    assert main(line) == 0
    assert measured == [20]
    assert (tmp_path / "out" / "network-snapshot-000001" / "checkpoint.json").read_bytes() == before
    rows = table(tmp_path / "out" / "lens.csv")
    assert [float(row["kimg"]) for row in rows] == [1, 20]
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {
        "levels.png",
        "numbers.png",
        "samples.png",
    }
    # the second alone, on fresh baselines, is the same
    assert main([str(files[1]), *line[2:-1], f"--out={tmp_path}/alone"]) == 0
    assert values_of(tmp_path / "alone" / files[1].stem) == pytest.approx(values_of(tmp_path / "out" / files[1].stem))
    capsys.readouterr()
    for key, said in (
        ("probes.seed=1", "another checkpoint, images, draws or options"),
        ("data.subset_seed=1", "other images"),
    ):
        assert main([*line, key]) == 2
        assert said in capsys.readouterr().err


def test_iddpm_is_measured_at_the_noise_levels_that_it_knows(tmp_path, capsys):
    file = snapshot(tmp_path, 3, DhariwalUNet, preconditioning="iDDPMPrecond", u=IDDPMDenoiser(torch.nn.Identity()).u)
    assert main([str(file), "--data", "digits", *DATA, *DRAWS, f"--out={tmp_path}/out"]) == 0
    sigmas = read_measurement(tmp_path / "out" / file.stem / "measured" / "3_64.safetensors").sigmas
    known = set(IDDPMDenoiser(torch.nn.Identity()).u.double().tolist())
    assert set(sigmas) <= known
    assert len(sigmas) == 10


@pytest.mark.long
def test_halves_are_compared_from_the_same_latents(tmp_path):
    """Two Gaussian denoisers in place of networks: each is the Gaussian of its own half."""
    for half in ("S1", "S2"):
        config = configuration.from_keys({"data.source": "digits", "data.half": half, "data.n_heldout": 400}, "", half)
        images = build_data(config).images
        (tmp_path / half).mkdir()
        estimate(images).save(tmp_path / half / "moments.safetensors", fingerprint(images, False))
    files = [str(tmp_path / half / "moments.safetensors") for half in ("S1", "S2")]
    keys = ["--data", "digits", "--strong", "data.n_heldout=400", *DRAWS]
    assert main([*files, *keys, f"--out={tmp_path}/out"]) == 0
    found = json.loads((tmp_path / "out" / "strong.json").read_text())
    cosine = found["cosine"]
    # samples are compared as pixels, so to the last bit of them
    assert cosine[0][2] == pytest.approx(1, abs=1e-4)
    assert cosine[1][3] == pytest.approx(1, abs=1e-4)
    assert cosine[0][1] == pytest.approx(cosine[2][3], abs=1e-3)
    assert 0.8 < cosine[0][1] < 0.999
    assert abs(found["chance"]) < 0.3
    assert found["names"] == ["S1_moments", "S2_moments", "Gaussian of S1", "Gaussian of S2"]
    assert (tmp_path / "out" / "figures" / "strong.png").exists()
    assert "Strong generalisation" in (tmp_path / "out" / "lens.html").read_text()


def test_sources_are_told_by_what_they_are(run, tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.zip", "a.npy", "cifar-10-python.tar.gz", "train-images-idx3-ubyte"):
        (tmp_path / name).touch()
    kinds = {
        "digits": "digits",
        "cifar10": "cifar10",
        str(tmp_path / "images"): "folder",
        str(tmp_path / "a.zip"): "edm_zip",
        str(tmp_path / "a.npy"): "array",
        str(tmp_path / "cifar-10-python.tar.gz"): "cifar10",
        str(tmp_path / "train-images-idx3-ubyte"): "idx",
        str(run): "digits",
        str(run / "config.yaml"): "digits",
    }
    assert {source: read_source(source)["source"] for source in kinds} == kinds
    assert read_source(str(run))["n_train"] == 300


def test_mistakes_are_one_line(pipeline, run, tmp_path, capsys):
    colour = snapshot(tmp_path, 7, channels=3)
    grey = snapshot(tmp_path, 8)
    narrow = snapshot(tmp_path, 9, preconditioning="VEPrecond", sigma_min=0.02, sigma_max=100.0)
    bad = tmp_path / "bad.pkl"
    bad.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    digits = ["--data", "digits", *DATA, *DRAWS, f"--out={tmp_path}/out"]
    cases = (
        ([colour, *digits], "denoises images of 3 x 8 x 8, but those of data.* are 1 x 8 x 8"),
        ([pipeline, *digits, "data.resolution=4"], "denoises images of 1 x 8 x 8, but those of data.* are 1 x 4 x 4"),
        ([pipeline, *digits, "probes.sigmas=[300,1]"], "expected noise levels from 0.01 to 157.4"),
        ([narrow, *digits, "probes.sigmas=[1,0.002]"], "expected noise levels from 0.02 to 100"),
        ([grey, colour, *digits], "expected checkpoints of images of one shape"),
        ([grey, grey, *digits], "expected different checkpoints"),
        ([bad, *digits], "was refused, and nothing in it was run: it asks for os.system"),
        ([tmp_path / "none", *digits], "found nothing"),
        ([grey, "--data", "digit"], "--data: expected one of digits"),
        ([grey, *digits, "train.kimg=3"], "expected a key of data.*"),
        ([grey, *digits, "probes.drawz=3"], "Did you mean probes.draws?"),
        ([grey, *digits, "--labels=1"], "expected no labels, got 1"),
        ([grey, *digits, "--strong"], "expected two checkpoints"),
        ([grey, *digits, "--data=digits"], "expected one source of images"),
        ([*digits], "expected a checkpoint"),
        ([grey], "--data"),
        ([grey, *digits, "probes.sigmas=[1,2]", "--surrogate"], "expected descending noise levels"),
    )
    for line, said in cases:
        assert main([str(item) for item in line]) == 2, said
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1, err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_what_is_measured_on_is_said_and_what_does_not_go_with_the_checkpoint(run, tmp_path, capsys):
    """EDM's pickles say how many images there were; a run of ours knows which."""

    def told(*line):
        capsys.readouterr()
        out = f"--out={tmp_path / str(len(list(tmp_path.iterdir())))}"
        assert main([*map(str, line), *DRAWS, "probes.sigmas=[2,0.5]", "probes.draws=32", out]) == 0
        shown = capsys.readouterr().out
        page = (Path(out.removeprefix("--out=")) / "lens.html").read_text()
        lines = [line for line in shown.splitlines() if "warning: " in line or "training images" in line]
        assert all(escape(line) in page for line in lines if "held-out ones" in line or "warning: " in line)
        return shown

    def saying(name, **about):
        place = tmp_path / name
        place.mkdir()
        return snapshot(place, 5, extra={"dataset_kwargs": EasyDict(about)})

    whole = saying("whole", max_size=1797, xflip=False)
    shown = told(whole, "--data", "digits")
    assert (
        "1,438 training images without mirrored copies and 359 held-out ones, of 1 x 8 x 8; 32 draws in each pool, 8 "
        "samples, seed 0\n"
    ) in shown
    assert "says that it was trained on 1,797 images, and 1,438 are taken for them; give data.heldout_path" in shown
    assert "mirrored copies; set" not in shown
    mirrored = saying("mirrored", max_size=600, xflip=True)
    shown = told(mirrored, "--data", "digits", "data.n_train=400")
    assert "trained on 300 images, and 400 are taken for them; give just those as --data" in shown
    assert "it was trained with mirrored copies; set data.flip=true" in shown
    shown = told(mirrored, "--data", "digits", "data.n_train=300", "data.flip=true")
    assert "warning" not in shown
    assert "300 training images with their mirrored copies" in shown
    assert "was trained on other images than these; give its run folder as --data" in told(run, "--data", "digits")
    assert "warning" not in told(run, "--data", run)


@pytest.mark.long
def test_labels_of_a_pickle_are_those_of_the_images_one_class_a_mixture_or_a_mean(tmp_path, capsys, digits):
    arguments = {"img_resolution": 8, "in_channels": 1, "out_channels": 1, "label_dim": 10, "model_channels": 8}
    arguments |= {"channel_mult": [1], "num_blocks": 1, "attn_resolutions": []}
    torch.manual_seed(0)
    file = network_pickle(tmp_path / "x.pkl", SongUNet(**arguments).eval(), arguments)
    line = [str(file), "--data", "digits", *DATA, *DRAWS, "probes.sigmas=[2,0.5]"]
    assert main([*line, "--labels=3", f"--out={tmp_path}/out", "data.n_train=100", "data.n_heldout=40"]) == 0
    assert "--labels 3: only the images of class 3 are taken" in capsys.readouterr().out
    arrays = tmp_path / "x.npy"
    np.save(arrays, digits.numpy())
    unlabelled = [str(file), "--data", str(arrays), *DATA, *DRAWS, "probes.sigmas=[2,0.5]"]
    assert main([*unlabelled, "--labels=3", f"--out={tmp_path}/unlabelled"]) == 0
    assert "--labels 3: the Gaussian, the memoriser and the nearest images are those of all" in capsys.readouterr().out
    some = ["data.classes=[3,4]", "data.n_train=100", "data.n_heldout=60"]
    assert main([*line, *some, "--labels=average", f"--out={tmp_path}/all"]) == 0
    assert "--labels" not in capsys.readouterr().out
    assert main([*line, *some, "--labels=mixture", f"--out={tmp_path}/mixture"]) == 0
    assert "--labels mixture: the denoisers of classes are weighted" in capsys.readouterr().out
    assert main([*line, *some, "--labels=data", "--guidance=2", f"--out={tmp_path}/data"]) == 0
    said = capsys.readouterr().out
    assert "--labels data: each image has its class, and all is measured on 2 classes" in said
    assert "warning: x was always told the class of its images" in said
    values = values_of(tmp_path / "data" / "x")
    assert values["guided_2/generalization/gl_score"] > 0
    # three ways to put classes together differ, and only one of them is on images of the class
    errors = {values_of(tmp_path / name / "x")["denoising/mse/heldout"] for name in ("data", "all", "mixture")}
    assert len(errors) == 3
    three = values_of(tmp_path / "out" / "x")
    assert three["gaussian/rmse/train"] > 0
    few = [str(file), "--data", str(tmp_path / "y.npz"), *DRAWS, "--labels=data", f"--out={tmp_path}/few"]
    np.savez(tmp_path / "y.npz", images=digits[:60].numpy(), labels=np.arange(60) % 2 * 12)
    assert main([*few, "data.n_heldout=20"]) == 2
    assert "expected images with classes from 0 to 9, those of" in capsys.readouterr().err
    for wrong, text in (
        (["--labels=data", "--surrogate"], "--surrogate: expected --labels with the number of a class"),
        (["--labels=3", "--guidance=2"], "--guidance: expected --labels data, got 3"),
        (["--guidance=x"], "--guidance: expected numbers that are separated by commas, got x"),
        (["--labels=data", "data.source=gaussian"], "data.source=gaussian has none"),
    ):
        assert main([*line, *wrong, f"--out={tmp_path}/wrong"]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.long
def test_a_labelled_network_in_the_format_of_edm_is_what_it_logged_as_a_run(tmp_path, capsys):
    """A network of EDM's kind, trained here with labels, is written as EDM writes it, and looked at from there."""
    keys = ["model.backbone=ddpmpp", "model.channels=8", "model.channel_mult=[1]", "model.layers_per_block=1"]
    keys += ["data.labels=true", "model.label_dropout=0.2", "probes.guidance=[2]", "train.batch_size=32"]
    keys += ["train.kimg=0.8", "probes.first_kimg=0.8", "run.wandb=disabled", "run.pictures=none", "probes.theories=[]"]
    keys += ["probes.sigmas=[2,0.5]", "model.attention=[]", *DATA, *DRAWS]
    keys += ["data.classes=[3,4]", "data.n_train=100", "data.n_heldout=60"]
    assert fit([*keys, f"run.root={tmp_path}", "run.name=a"]) == 0
    own = load(tmp_path / "a", labels="data").denoiser
    arguments = {"img_resolution": 8, "in_channels": 1, "out_channels": 1, "label_dim": 10, "model_channels": 8}
    arguments |= {"channel_mult": [1], "num_blocks": 1, "attn_resolutions": [], "label_dropout": 0.2}
    constants = {"sigma_data": own.sigma_data}
    file = network_pickle(tmp_path / "x.pkl", own.backbone, arguments, **constants)
    line = ["--data", str(tmp_path / "a"), *DRAWS, "probes.sigmas=[2,0.5]", "probes.guidance=[2]"]
    assert main([str(file), *line, f"--out={tmp_path}/out"]) == 0
    said = capsys.readouterr().out
    assert "measured on 2 classes" in said
    assert "was always told" not in said
    found, logged = values_of(tmp_path / "out" / "x"), last(tmp_path / "a")
    known = [key for key in found if not key.startswith("probes/")]
    for key in known:
        assert found[key] == pytest.approx(logged[key], rel=1e-4, abs=1e-6), key
    assert len(known) > 300
    assert "guided_2/generalization/gl_score" in known


@pytest.mark.long
def test_labels_of_a_diffusers_network_are_those_of_the_images(tmp_path, capsys):
    line = [
        str(saved_pipeline(tmp_path / "p", num_class_embeds=10)),
        "--data",
        "digits",
        *DATA,
        *DRAWS,
        "probes.sigmas=[2,0.5]",
        "data.classes=[3,4]",
        "data.n_train=100",
        "data.n_heldout=60",
    ]
    assert main([*line, "--labels=data", f"--out={tmp_path}/out"]) == 0
    assert "measured on 2 classes" in capsys.readouterr().out
    assert values_of(tmp_path / "out" / "p")["gaussian/rmse/heldout"] > 0
    assert main([*line, "--labels=data", "--guidance=2", f"--out={tmp_path}/guided"]) == 2
    assert "cannot be told no class, and guidance needs that; leave out --guidance" in capsys.readouterr().err


@pytest.mark.long
def test_how_long_it_takes_is_said_before_and_while_it_is_measured(tmp_path, capsys, monkeypatch):
    """Off a terminal as well; and what would make it shorter, if it is long."""
    file = snapshot(tmp_path, 3)
    line = [str(file), "--data", "digits", *DATA, *DRAWS, "probes.sigmas=[2,0.5]"]
    monkeypatch.setattr(bars, "EVERY", 0.0)
    assert main([*line, f"--out={tmp_path}/out"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"network-snapshot-000003: about \d+ s on a cpu for 504 images to denoise\n", shown.out)
    assert "probes.sampler_steps" not in shown.out
    assert shown.out.index("images to denoise") < shown.out.index("heldout, network-snapshot")
    assert re.search(r"network-snapshot-000003: \d+% measured, about \d+ s left\n", shown.err)
    monkeypatch.setattr(looking, "seconds_per_image", lambda *_: 60.0)
    assert main([*line, f"--out={tmp_path}/long", "--surrogate", "linear.draws=256"]) == 0
    assert (
        "network-snapshot-000003: about 17 h on a cpu for 1,016 images to denoise, 60 s each; fewer probes.draws, "
        "probes.samples, probes.sampler_steps, linear.draws or noise levels (probes.sigmas) take less\n"
    ) in capsys.readouterr().out


def test_a_network_without_numbers_is_noticed_before_a_surrogate_is_fitted(tmp_path, capsys):
    file = snapshot(tmp_path, 3, sigma_data=1e38)  # whose square is infinite
    line = [str(file), "--data", "digits", *DATA, *DRAWS, "probes.sigmas=[2,0.5]", "linear.draws=256"]
    assert main([*line, "--surrogate", f"--out={tmp_path}/out"]) == 2
    assert "expected finite images, got others at sigma" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*/surrogate*"))


@pytest.mark.long
def test_another_description_or_surrogate_is_not_taken_for_the_same(tmp_path, capsys):
    """The same weights with another constant beside them, or another fit, are something else."""
    from gaussbias.convert import main as convert

    file = tmp_path / "made.safetensors"
    assert convert([str(snapshot(tmp_path, 4)), "--to", str(file)]) == 0
    line = [str(file), "--data", "digits", *DATA, *DRAWS, f"--out={tmp_path}/out"]
    fit = ["--surrogate", "linear.draws=256", "probes.sigmas=[10,1]"]
    assert main([*line, *fit]) == 0
    capsys.readouterr()
    assert main([*line, *fit[:1], "linear.draws=512", *fit[2:]]) == 2
    assert "another checkpoint, images, draws or options" in capsys.readouterr().err
    (tmp_path / "out" / "made" / "checkpoint.json").unlink()  # it was interrupted after the surrogate
    about = json.loads(file.with_suffix(".json").read_text())
    file.with_suffix(".json").write_text(json.dumps(about | {"constants": {"sigma_data": 0.4}}))
    assert main([*line, *fit]) == 2
    assert "surrogate is of another checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key", ["linear.draws=3", "train.batch_size=7", "probes.features=a:b", "probes.every_kimg=3", "linear.teacher=x"]
)
def test_keys_without_effect_are_refused(key, tmp_path, capsys):
    assert main(["x.pkl", "--data", "digits", key, *(["--surrogate"] if "teacher" in key else [])]) == 2
    assert f"{key}: expected a key of data.*" in capsys.readouterr().err
