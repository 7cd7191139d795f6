"""Measuring a run after the fact gives what was logged while it ran."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from runs import SMALL

from gaussbias.catalogue import known_entry
from gaussbias.checkpoints import load
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.fit import main as fit
from gaussbias.history import last, read_measurement
from gaussbias.measure import main
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import Instruments, LadderProbe, PicturesProbe, ProbeBank, References, build, evaluate
from gaussbias.probes.cost import counted, evaluations
from gaussbias.sampling import sample
from gaussbias.system.terminal import with_error

POOLS = ("train", "heldout", "trajectory", "noise")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run, measured with both weights and on all pools."""
    root = tmp_path_factory.mktemp("runs")
    keys = [*SMALL, "probes.draws=64", "probes.weights=[ema,raw]"]
    keys += [f"probes.pools=[{','.join(POOLS)}]", "train.kimg=0.8", "probes.first_kimg=0.4", f"run.root={root}"]
    assert fit([*keys, "run.name=x"]) == 0
    return root / "x"


def rows(file):
    with file.open(newline="") as opened:
        return {(row["weights"], row["pool"], row["sigma"]): row for row in csv.DictReader(opened)}


def test_measuring_afterwards_gives_what_was_logged(run, capsys):
    assert main([str(run)]) == 0
    shown = capsys.readouterr().out
    assert f"{run} at 0.8 kimg, 64 draws in each pool:" in shown
    for pool in POOLS:
        for weights in ("ema", "raw"):
            assert f"{pool}, {weights} weights" in shown
    logged, table = last(run), rows(run / "measured" / "0.8_64.csv")
    assert len(table) == 2 * (4 + 1) * 11  # and what differs between training and held-out images
    compared = 0
    for (weights, pool, sigma), row in table.items():
        level = "" if sigma == "band" else f"/sigma_{float(sigma):.3g}".replace(".", "p")
        for name, value in row.items():
            if "/" not in name or not value:
                continue
            stem, tail = name.removesuffix("_se"), "_se" if name.endswith("_se") else ""
            baseline = known_entry(stem).reference and pool != "trajectory"
            where = "" if pool == "difference" else f"/{pool}"
            key = f"{'raw/' if weights == 'raw' and not baseline else ''}{stem}{where}{level}{tail}"
            # images pass through the network in other numbers at once, and weights through a file; traces grow
            near = 0.02 if stem.startswith(("freedom/", "gap/")) else 2e-5
            assert float(value) == pytest.approx(logged[key], rel=1e-3, abs=near), key
            compared += 1
    assert compared > 1000
    assert logged["raw/ladder/total/heldout"] != logged["ladder/total/heldout"]
    found = read_measurement(run / "measured" / "0.8_64.safetensors")
    assert found.hashes == read_measurement(run / "probes" / "0.8.safetensors").hashes
    assert (run / "figures" / "ladder.png").exists()


def test_pools_without_images_have_what_is_defined_on_them(run):
    keys = last(run)
    groups = {pool: {"/".join(key.split("/")[:2]) for key in keys if key.split("/")[2:3] == [pool]} for pool in POOLS}
    everywhere = {f"linearity/{n}" for n in ("cosine", "cosine_signed", "nmse", "affine_cosine", "affine_nmse")}
    everywhere |= {f"linearity/gaussian_{n}" for n in ("cosine", "cosine_signed", "nmse")}
    everywhere |= {"gaussian/rmse", "gaussian/nmse", "empirical/rmse", "ladder/total"}
    known = {"ladder/affine", "ladder/nonlinear", "ladder/weight_gap", "ladder/r2", "linear/weight_nmse"}
    clean = {"denoising/mse", "denoising/gaussian_mse", "denoising/empirical_mse"}
    clean |= {f"freedom/{name}" for name in ("trace", "gaussian_trace", "empirical_trace", "consistency")}
    assert groups["trajectory"] == everywhere
    assert groups["noise"] == everywhere | known
    assert groups["heldout"] == everywhere | known | clean
    assert groups["train"] == everywhere | known | clean | {"ladder/position"}


def test_the_affine_fit_on_pure_noise_is_the_mean_jacobian(digits):
    """Stein: on x = sigma eps the closest affine map of D has weights E[J]; here D is tanh, of diagonal Jacobian."""
    bank = ProbeBank({"train": digits[:200]}, 1024, [0.5], points=["noise"])
    references = References(bank, digits[:200])
    instruments = Instruments(references, {"ema": [LadderProbe(references)]})
    for _ in instruments.measure({"ema": lambda x, sigma: torch.tanh(2 * x)}, torch.device("cpu")):
        pass
    row = instruments.result().row
    eps = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope = float((2 / torch.cosh(2 * 0.5 * eps).square()).mean())
    moments = references.moments
    gaussian = moments.eigenvectors * (moments.eigenvalues / (moments.eigenvalues + 0.25)) @ moments.eigenvectors.T
    expected = float((slope * torch.eye(64, dtype=torch.float64) - gaussian).square().sum())
    key = "ladder/weight_gap/noise/sigma_0p5"
    assert abs(row[key] - expected) < 4 * row[f"{key}_se"]
    assert row[f"{key}_se"] < 0.08 * expected
    assert "denoising/mse/noise/sigma_0p5" not in row


def test_the_trajectory_is_the_denoisers_own_path(digits):
    sigmas = karras_sigmas(10)
    bank = ProbeBank(
        {"train": digits[:100]}, 32, sigmas, sampler_sigmas=karras_sigmas(18), points=["trajectory"], seed=3
    )
    assert bank.names == ["train", "trajectory"]
    steps = bank.path_sigmas
    assert steps == sorted(steps, reverse=True)
    assert set(steps) == set(sigmas) | set(karras_sigmas(18))
    gaussian = GaussianDenoiser(estimate(digits[:100]))
    batch = bank.batch("trajectory", 0)
    found = evaluate(gaussian, batch)
    _, path = sample(gaussian, batch.eps, steps, "heun", path=True)
    for level, sigma in enumerate(sigmas):
        assert torch.equal(found.x[level], path[steps.index(sigma)].float())
        assert torch.allclose(found.output[level], gaussian(found.x[level], sigma), atol=1e-6)
    other = ProbeBank(
        {"train": digits[:90]}, 32, sigmas, sampler_sigmas=karras_sigmas(18), points=["trajectory"], seed=3
    )
    assert other.hash("trajectory") == bank.hash("trajectory")  # the latents are shared, whatever the images
    fewer = ProbeBank(
        {"train": digits[:90]}, 32, sigmas, sampler_sigmas=karras_sigmas(9), points=["trajectory"], seed=3
    )
    assert fewer.hash("trajectory") != bank.hash("trajectory")
    with pytest.raises(ValueError, match="`points` to be of trajectory, noise"):
        ProbeBank({"train": digits}, 32, sigmas, points=["train"])


@pytest.mark.long
def test_more_draws_have_smaller_errors_and_a_target_ends_it(run, capsys):
    keys = ["probes.pools=[train,heldout]", "probes.draws=1024"]
    assert main([str(run), *keys]) == 0
    many = rows(run / "measured" / "0.8_1024.csv")
    assert main([str(run), *keys[:1], "probes.draws=2048", "probes.block=16", "--target-se", "0.06"]) == 0
    line = capsys.readouterr().out.split(" draws in each pool")[-2]
    draws = int(line.split()[-1])
    assert draws % 16 == 0
    assert 256 <= draws < 2048
    some = rows(run / "measured" / f"0.8_{draws}.csv")
    few = last(run)
    key = ("ema", "heldout", "band")
    assert float(many[key]["ladder/affine_se"]) < 0.5 * few["ladder/affine/heldout_se"]
    for pool in ("train", "heldout"):
        row = some["ema", pool, "band"]
        assert float(row["ladder/affine_se"]) <= 0.06 * float(row["ladder/total"])


def test_how_many_images_are_evaluated_at_once_changes_nothing(run):
    """But the round-off of float32."""
    keys = ["probes.draws=32", "probes.pools=[train,trajectory]", "probes.weights=[ema]"]
    tables = []
    for more in ([], ["train.microbatch=7"]):
        assert main([str(run), *keys, *more]) == 0
        tables.append(rows(run / "measured" / "0.8_32.csv"))
    whole, parts = tables
    assert whole.keys() == parts.keys()
    compared = 0
    for place, row in whole.items():
        for name, value in row.items():
            if "/" in name and value:
                scale = abs(float(value)) + float(row.get(f"{name.removesuffix('_se')}_se") or 0)
                assert float(parts[place][name]) == pytest.approx(float(value), abs=1e-3 * scale + 1e-7), (place, name)
                compared += 1
    assert compared > 300


@pytest.mark.parametrize(("points", "sampler", "at_once"), [([], "heun", None), (["noise", "trajectory"], "euler", 7)])
def test_what_is_given_to_a_network_is_counted(points, sampler, at_once, run):
    """Beforehand by a formula, which progress and estimates of time go by, and while it is measured."""
    denoiser = load(run).denoiser
    denoiser.at_once = at_once
    images = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8)
    how = {"samples": 20, "sampler": sampler, "sampler_sigmas": karras_sigmas(5), "points": points}
    bank = ProbeBank({"train": images}, 32, karras_sigmas(3), **how)
    given, told = [], []
    denoiser.backbone.register_forward_pre_hook(lambda module, x: given.append(len(x[0])))
    references = References(bank, images, heldout=images)
    probes = [part for part in build(references) if not isinstance(part, PicturesProbe)]
    instruments = Instruments(references, {"ema": probes})
    instruments.to(torch.device("cpu"))
    total = evaluations(bank)
    with counted(denoiser, lambda done, total: told.append((done, total)), total):
        for _ in instruments.measure({"ema": denoiser}, torch.device("cpu")):
            pass
    assert sum(given) == total
    assert told[-1] == (total, total)
    assert len(told) == len(given)


@pytest.mark.parametrize(
    "key", ["surrogate=runs/x", "features=a:b", "first_kimg=2", "every_kimg=2", "samples=9", "sampler_steps=3"]
)
def test_keys_without_effect_are_refused(key, run, capsys):
    assert main([str(run), f"probes.{key}", "probes.pools=[train]"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gaussbias.measure: probes.{key}: expected ")
    assert error.count("\n") == 1


@pytest.mark.long
def test_raw_weights_alone_have_the_picture_and_the_warning_too(tmp_path, caplog):
    """What one of several weights' callbacks does for all is done by the first there is."""
    keys = [
        "model.backbone=mlp",
        "model.channels=16",
        "data.n_train=300",
        "run.wandb=disabled",
        "run.pictures=live",
        "train.batch_size=32",
    ]
    keys += ["probes.samples=8", "probes.sampler_steps=4", "probes.draws=32", "train.kimg=0.1", f"run.root={tmp_path}"]
    for name in ("raw", "ema,raw"):
        caplog.clear()
        assert fit([*keys, f"probes.weights=[{name}]", f"run.name={name}"]) == 0
        assert (tmp_path / name / "figures" / "ladder_kimg.png").exists()
        assert sum("are nearly the same as a training image" in line for line in caplog.messages) == 1


@pytest.mark.long
def test_a_checkpoint_of_ones_choice(run, capsys):
    numbered = sorted((run / "checkpoints").glob("0*.ckpt"))
    assert main([str(run), "--checkpoint", str(numbered[0]), "probes.draws=32", "probes.weights=[ema]"]) == 0
    step = int(numbered[0].stem)
    assert f"at {step * 32 / 1000:g} kimg, 32 draws" in capsys.readouterr().out
    export = run / "denoiser.safetensors"
    assert main([str(run), "--checkpoint", str(export), "probes.draws=32", "probes.weights=[ema]"]) == 0
    assert json.loads(export.with_suffix(".json").read_text())["kimg"] == 0.8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{0}/nowhere"], "expected a run folder with config.yaml, found none at"),
        (["{0}", "train.lr=3"], "train.lr=3: expected a key of probes., data.path"),
        (["{0}", "probes.draws=31"], "probes.draws: expected 16 or more blocks"),
        (["{0}", "--target-se", "2"], "--target-se: expected a share of the distance between 0 and 1, got 2"),
        (["{0}", "--checkpoint", "{0}/none.ckpt"], "found nothing"),
        (["{0}", "--checkpoint", "{0}/denoiser.safetensors"], "expected raw weights in"),
        (["{0}", "--checkpoint", "{0}/config.yaml"], "expected a checkpoint of gaussbias at"),
        (["{0}", "--frobnicate"], "--frobnicate"),
        ([], "RUN"),
    ],
)
def test_mistakes_are_one_line(arguments, text, run, capsys):
    (run / "measured").mkdir(exist_ok=True)
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}
    assert main([argument.format(run) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gaussbias.measure: ")
    assert text in error
    assert error.count("\n") == 1
    assert before == {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}


def test_what_was_measured_is_never_lost(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (tmp_path / "measured").write_text("in the way")
    assert main([str(tmp_path)]) == 2
    assert "cannot write to" in capsys.readouterr().err

    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr("gaussbias.probes.measured.write_measurement", full)
    assert main([str(run), "probes.draws=32", "probes.pools=[train]", "probes.weights=[ema]"]) == 2
    shown = capsys.readouterr()
    assert "train, ema weights" in shown.out
    assert "what was measured is above, but could not be written" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.long
def test_a_run_is_measured_only_with_the_images_it_was_trained_on(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "a.npy", images)
    np.save(tmp_path / "h.npy", images[::-1] // 2)
    keys = ["data.source=array", f"data.path={tmp_path}/a.npy", f"data.heldout_path={tmp_path}/h.npy"]
    keys += ["data.n_heldout=20", "model.backbone=mlp", "model.channels=8", "train.kimg=0.1", "probes.draws=32"]
    keys += [
        "probes.samples=2",
        "probes.sampler_steps=2",
        "run.wandb=disabled",
        "run.pictures=none",
        f"run.root={tmp_path}",
        "run.name=x",
    ]
    assert fit(keys) == 0
    np.save(tmp_path / "h.npy", images[::-1] // 3)
    capsys.readouterr()
    assert fit([*keys, "--resume", "train.kimg=0.2"]) == 2
    error = capsys.readouterr().err
    assert "was measured on other draws of heldout than there are now" in error
    assert error.count("\n") == 1
    assert main([str(tmp_path / "x")]) == 0  # other held-out images are another pool, with a hash of its own
    np.save(tmp_path / "a.npy", images + 1)
    assert main([str(tmp_path / "x")]) == 2
    assert "was trained on other images than are there now" in capsys.readouterr().err


def test_errors_stand_in_units_of_the_last_digit():
    assert with_error(0.03642, 0.00091) == "0.0364(9)"
    assert with_error(0.0996, 0.00096) == "0.100(1)"
    assert with_error(math.nan, 0.1) == "nan"
