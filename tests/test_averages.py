"""Averages of weights of any length: their formulas, and those that are made afterwards against those that are kept."""

import csv
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import gaussbias
from gaussbias.callbacks.averages import KeptAverages
from gaussbias.ema import main, read_lengths
from gaussbias.fit import main as fit
from gaussbias.modules import EDMModule
from gaussbias.numerics.averages import LONGEST, coefficients, exponent, kept_share, length_of, overlaps
from gaussbias.system.errors import UserError
from gaussbias.training.averaging import kept_in, rebuild


@pytest.mark.parametrize("length", [0.005, 0.05, 0.1, 0.25, LONGEST])
def test_a_length_is_the_standard_deviation_of_its_profile(length):
    """By numerical integration of the profile on 200,001 points, and there and back."""
    gamma = exponent(length)
    assert length_of(gamma) == pytest.approx(length, rel=1e-9)
    tau = np.linspace(0, 1, 200_001)
    profile = (gamma + 1) * tau**gamma
    mass, mean = (np.trapezoid(profile * tau**power, tau) for power in (0, 1))
    assert mass == pytest.approx(1, abs=1e-6)
    assert math.sqrt(np.trapezoid(profile * (tau - mean) ** 2, tau)) == pytest.approx(length, rel=1e-3)


def test_lengths_that_are_none_are_refused():
    for length in (0, -0.1, 0.3):
        with pytest.raises(ValueError, match=r"Expected `length` above 0 and at most 0\.2887"):
            exponent(length)


@pytest.mark.parametrize("length", [0.02, 0.15, 0.25, 0.28])
def test_weights_that_stay_the_same_stay_the_same(length):
    """Whatever the length: coefficients add up to 1."""
    times = [t for t in range(100, 3201, 100) for _ in range(2)]
    found, _ = coefficients(times, [exponent(0.05), exponent(0.1)] * 32, 3200, exponent(length))
    assert found.sum() == pytest.approx(1, abs=1e-12)


def test_updates_make_the_profile():
    """After 4,000 steps weights of time tau count by the share of the profile of their step, to 1 / t."""
    gamma, steps = exponent(0.1), 4000
    share = np.zeros(steps)
    for step in range(1, steps + 1):
        share *= kept_share(step, gamma)
        share[step - 1] += 1 - kept_share(step, gamma)
    edges = np.arange(steps + 1) / steps
    expected = np.diff(edges ** (gamma + 1))
    assert np.abs(share - expected).sum() < 1e-3
    assert share.sum() == pytest.approx(1, abs=1e-12)


def test_overlaps_are_integrals():
    times, exponents = [3.0, 7.0, 7.0], [2.0, 0.5, 9.0]
    tau = np.linspace(0, 7, 700_001)
    profiles = [np.where(tau <= t, (g + 1) * tau**g / t ** (g + 1), 0) for t, g in zip(times, exponents, strict=True)]
    found = overlaps(times, exponents, times, exponents)
    for i in range(3):
        for j in range(3):
            assert found[i, j] == pytest.approx(np.trapezoid(profiles[i] * profiles[j], tau), rel=1e-4)


def test_a_kept_average_is_made_of_itself():
    times = [t for t in range(10, 101, 10) for _ in range(2)]
    exponents = [exponent(0.05), exponent(0.1)] * 10
    found, missed = coefficients(times, exponents, 70, exponent(0.1))
    place = [i for i, (t, g) in enumerate(zip(times, exponents, strict=True)) if t == 70 and g == exponent(0.1)]
    expected = np.zeros(20)
    expected[place] = 1
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert missed < 1e-5


class Walk(torch.nn.Module):
    """Weights that drift and shake as in training, seen by a callback as a Trainer's module."""

    def __init__(self):
        super().__init__()
        self.denoiser = torch.nn.Linear(40, 50)

    def step(self, number, generator):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= 0.999
                parameter += 0.02 * torch.randn(parameter.shape, generator=generator) / number**0.25


class Trainer:
    is_global_zero = True
    global_step = 0


WANTED = (0.03, 0.075, 0.15)


def test_averages_that_are_made_afterwards_are_those_that_were_really_kept(tmp_path):
    """Relative error of weights below 1e-2 at three lengths, from two lengths at 32 times (EDM2 takes as many)."""
    module, trainer = Walk(), Trainer()
    steps = {round(3200 * i / 32) for i in range(1, 33)}
    kept = KeptAverages([0.05, 0.1], tmp_path / "averages", steps, 10)
    really = KeptAverages(WANTED, tmp_path / "really", {3200}, 10)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 3201):
        module.step(step, generator)
        trainer.global_step = step
        for callback in (kept, really):
            callback.on_train_batch_end(trainer, module, None, None, step)
    found = kept_in(tmp_path)
    assert len(found) == 64
    assert found[-1].kimg == 32
    for length in WANTED:
        made = rebuild(found, length, 3200)
        true = really.averages[f"{length:g}"]
        error = math.sqrt(sum(float((made.weights[name] - true[name]).square().sum()) for name in true))
        size = math.sqrt(sum(float(value.square().sum()) for value in true.values()))
        assert error / size < 1e-2, length
        assert made.missed < 0.05
    last = module.denoiser.weight.detach()
    apart = float((made.weights["weight"] - last).norm() / last.norm())
    assert apart > 0.05  # an average that is not the last weights


SHORT = [
    *("model.backbone=mlp", "model.channels=16", "data.n_train=100", "data.n_heldout=100", "train.batch_size=20"),
    *(
        "train.kimg=2",
        "train.checkpoint_every_kimg=1",
        "probes.draws=32",
        "probes.samples=12",
        "probes.sampler_steps=4",
    ),
    *(
        "probes.sigmas=[4,0.5]",
        "run.wandb=disabled",
        "run.pictures=none",
        "train.accelerator=cpu",
        "probes.theories=[]",
    ),
    *("probes.first_kimg=2", "train.ema_lengths=[0.05,0.1,0.2]", "train.ema_every_kimg=0.1", "train.lr=1e-2"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    assert fit([*SHORT, f"run.root={root}", "run.name=x"]) == 0
    return root / "x"


def test_a_run_keeps_averages_and_goes_on_with_them(run, power_cut):
    """One that broke off and went on has the same averages, bit for bit."""
    found = kept_in(run)
    assert [average.step for average in found[::3]] == list(range(5, 101, 5))
    assert {average.length for average in found} == {"0.05", "0.1", "0.2"}
    keys = [*SHORT, f"run.root={run.parent}", "run.name=y"]
    with power_cut(EDMModule, 70), pytest.raises(RuntimeError, match="power cut"):
        fit(keys)
    strange = run.parent / "y" / "averages" / "00000071.safetensors"
    strange.write_bytes(b"of a stretch that was given up")
    assert fit([*keys, "--resume"]) == 0
    assert not strange.exists()
    for average in found[-3:]:
        other = next(o for o in kept_in(run.parent / "y") if (o.step, o.length) == (average.step, average.length))
        a, b = (rebuild([one], float(one.length), one.step).weights for one in (average, other))
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_command_measures_each_length_and_writes_them(run, capsys):
    assert main([str(run), "--std", "0.05,0.08,0.2", "--save"]) == 0
    said = capsys.readouterr().out
    assert "averages made of those of the lengths 0.05 and 0.1 and 0.2" in said
    assert "least error on held-out images at the length" in said
    with (run / "measured" / "averages_2_32.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["length"]) for row in rows] == [0.05, 0.08, 0.2]
    assert all(float(row["denoising/mse/heldout"]) > 0 and float(row["missed"]) < 0.05 for row in rows)
    assert len({row["denoising/mse/heldout"] for row in rows}) == 3
    assert float(rows[0]["generalization/memorized_fraction_high"]) <= 1
    assert (run / "figures" / "averages.png").stat().st_size > 10_000
    denoiser = gaussbias.load_denoiser(run / "averages" / "2_0.2" / "denoiser.safetensors")
    kept = rebuild(kept_in(run), 0.2, 100).weights
    for name, value in denoiser.named_parameters():
        torch.testing.assert_close(value, kept[name], rtol=1e-5, atol=1e-6)
    assert main([str(run), "--std", "0.06"]) == 0
    with (run / "measured" / "averages_2_32.csv").open() as file:  # what was measured before stays
        assert [float(row["length"]) for row in csv.DictReader(file)] == [0.05, 0.06, 0.08, 0.2]
    assert main([str(run), "--std", "0.1", "--kimg", "1.04"]) == 0
    assert "at 1 kimg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["--std", "0.5"], "--std: expected lengths from 0.005 to 0.28, such as 0.05,0.1 or 0.03..0.15:9, got 0.5"),
        (["--std", "0.1..0.05"], "--std: expected lengths"),
        (["--std", "some"], "--std: expected lengths"),
        (["--kimg", "0.01"], "--kimg: expected at least 0.1, when the first averages were kept, got 0.01"),
        (["train.lr=1"], "train.lr=1: expected a key of probes."),
    ],
)
def test_mistakes_are_one_line(keys, text, run, capsys):
    assert main([str(run), *keys]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_a_run_without_averages_says_how_to_keep_them(tmp_path, capsys):
    keys = [key for key in SHORT if not key.startswith("train.ema")]
    assert fit([*keys, "train.kimg=0.1", "probes.first_kimg=0.1", f"run.root={tmp_path}", "run.name=x"]) == 0
    assert main([str(tmp_path / "x")]) == 2
    assert "a run keeps them with train.ema_lengths=[0.05,0.1]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("train.ema_lengths=[0.5]", "train.ema_lengths: expected standard deviations from 0.005 to 0.28"),
        ("train.ema_lengths=[0.1,0.1]", "train.ema_lengths: expected different lengths"),
        ("train.ema_every_kimg=0", "train.ema_every_kimg: expected a number above 0"),
    ],
)
def test_lengths_of_a_run_are_checked(key, text, tmp_path, capsys):
    assert fit([*SHORT, key, f"run.root={tmp_path}", "run.name=x"]) == 2
    assert text in capsys.readouterr().err


def test_ranges_have_equal_ratios():
    lengths = read_lengths("0.03..0.15")
    assert len(lengths) == 7
    assert lengths[0] == 0.03
    assert lengths[-1] == pytest.approx(0.15)
    ratios = [b / a for a, b in pairwise(lengths)]
    assert ratios == pytest.approx([ratios[0]] * 6)
    with pytest.raises(UserError):
        read_lengths("0.1..0.2:1")
