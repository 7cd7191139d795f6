"""Audits of samples against what is known of D_G, of D_M, and of new images."""

import csv

import numpy as np
import pytest
import torch
from runs import SMALL
from scipy.stats import false_discovery_control, kstest

from gaussbias.config import DataConfig
from gaussbias.data import origins, read
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.fit import main as fit
from gaussbias.lens.__main__ import main as lens
from gaussbias.measure import main as measure
from gaussbias.metrics.leaks import discovery_rates, ledger, p_values
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.numerics.seeding import generator
from gaussbias.probes import ProbeBank, References
from gaussbias.probes.audit import find_leaks, run_cycles

DOUBLE = torch.float64


@pytest.fixture(scope="module")
def shuffled(digits):
    return digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(1))]


def references(images, heldout, steps=18):
    bank = ProbeBank(
        {"train": images}, draws=32, sigmas=[0.5], samples=32, sampler="heun", sampler_sigmas=karras_sigmas(steps)
    )
    return References(bank, images, heldout=heldout)


# cycles


def test_a_cycle_of_the_gaussian_is_the_exact_affine_map(shuffled):
    images = shuffled[:200]
    moments = estimate(images)
    denoiser, sigma = GaussianDenoiser(moments), 0.5
    start = to_unit(images[:16])
    made = references(images, shuffled[200:300], steps=40)
    found = run_cycles(denoiser, made, start, 1, sigma)
    noise = torch.randn(start.shape, generator=generator("cycle", 0, 1))
    lam, basis = moments.eigenvalues, moments.eigenvectors
    gain = (lam / (lam + sigma**2)).sqrt()
    centred = (start + sigma * noise).double().flatten(1) - moments.mean
    exact = moments.mean + (gain * (centred @ basis)) @ basis.T
    pixels = ((exact.view_as(start) + 1) * 127.5).round().clamp(0, 255)
    assert (found.stages["1"].double() - pixels[:10]).abs().max() <= 1  # the solver's error, and rounding
    assert found.memorized == [16, int(made.nearest(exact.view_as(start).float()).memorized.sum())]


def test_the_memorisers_samples_stay_where_they_are(shuffled):
    """And where noise is small beside the distances of images, they end at the image that they began at."""
    images = shuffled[:60]
    made, denoiser, sigma = references(images, shuffled[60:160]), EmpiricalDenoiser(images), 0.3
    rows = to_unit(images, DOUBLE).flatten(1)
    distances = torch.cdist(rows, rows)
    others = distances[~torch.eye(60, dtype=torch.bool)].view(60, 59)
    # Verma et al. 2026: from an image itself (r = 0), noise of variance q, by exact stochastic reversal
    bound = 1 - (0.5 * torch.exp(-others.square() / (8 * sigma**2)).sum(1)).clamp(max=1)
    assert bound.min() > 0.9
    found = run_cycles(denoiser, made, to_unit(images), 3, sigma)
    assert found.memorized == [60] * 4
    assert torch.equal(found.stages["3"], images[:10])
    # and the bound holds for that reversal: draws of the posterior
    large = 0.8
    bound = 1 - (0.5 * torch.exp(-others.square() / (8 * large**2)).sum(1)).clamp(max=1)
    x = rows + large * torch.randn(200, *rows.shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    weights = (-torch.cdist(x, rows).square() / (2 * large**2)).softmax(-1)
    stays = weights.diagonal(dim1=1, dim2=2).mean(0)
    assert (bound > 0.3).any()
    assert (stays + 0.05 > bound).all()


def test_cycles_carry_samples_to_the_training_images(shuffled):
    """Between D_G and D_M, samples that are no copies become some."""
    images = shuffled[:60]
    made = references(images, shuffled[60:160])
    gaussian, memoriser = made.gaussian, EmpiricalDenoiser(images)

    def between(x, sigma):
        return 0.15 * gaussian(x, sigma) + 0.85 * memoriser(x, sigma)

    start = to_unit(shuffled[200:232])
    found = run_cycles(between, made, start, 10, 0.7)
    assert found.memorized[0] < 8 < found.memorized[-1]
    assert [row[0] for row in found.rows()] == list(range(11))
    assert all(low <= share <= high for _, share, low, high in found.rows())
    assert list(found.stages) == ["0", "1", "5", "10", "nearest"]


@pytest.mark.parametrize(("cycles", "sigma"), [(0, 0.5), (1, 0.002), (1, float("nan"))])
def test_cycles_that_cannot_be_are_refused(cycles, sigma, shuffled):
    made = references(shuffled[:20], shuffled[20:40])
    with pytest.raises(ValueError, match="Expected at least 1 of `cycles`"):
        run_cycles(made.gaussian, made, to_unit(shuffled[:4]), cycles, sigma)


# leaks


def test_new_images_have_uniform_p_values_and_copies_are_found(shuffled, random):
    training, new = shuffled[:300], shuffled[300:]
    found = NearestImages(training)(to_unit(new))
    ratios, some = found.first / found.second, []
    for _ in range(300):
        chosen = torch.randperm(len(ratios), generator=random)
        some.append(float(p_values(ratios[chosen[:1]], ratios[chosen[1:400]])))
    assert kstest(some, "uniform").pvalue > 0.01
    noisy = to_unit(training[:5]) + 0.05 * torch.randn(5, 1, 8, 8, generator=random)
    samples = torch.cat([noisy, noisy[:1] + 0.01, to_unit(new[:50])])
    search = NearestImages(training)
    leaks = ledger(search(samples), search(to_unit(new[50:])), 300, 64)
    assert {leak.place for leak in leaks[:5]} == set(range(5))
    assert all(leak.q <= 0.05 for leak in leaks[:5])
    assert sum(leak.q <= 0.05 for leak in leaks) <= 7
    first = next(leak for leak in leaks if leak.place == 0)
    assert first.samples >= 2
    assert first.sample in (0, 5)
    assert first.distance == pytest.approx(0.05, abs=0.02)
    assert sum(leak.samples for leak in leaks) == len(samples)
    assert [leak.ratio for leak in leaks] == sorted(leak.ratio for leak in leaks)


def test_discovery_rates_are_scipys(random):
    p = torch.rand(40, generator=random, dtype=DOUBLE).square()
    p[3] = p[7]
    assert torch.allclose(discovery_rates(p), torch.from_numpy(false_discovery_control(p.numpy())))


def test_mirrored_copies_leak_their_image(shuffled):
    images = shuffled[:20]
    bank = ProbeBank({"train": images}, draws=32, sigmas=[0.5], flip=True)
    made = References(bank, images, heldout=shuffled[20:80])
    leaks = find_leaks(made, to_unit(images[4:5]).flip(-1))
    assert [leak.place for leak in leaks.found] == [4]
    assert torch.equal(leaks.pictures["training images"], images[4:5].flip(-1))


def test_a_leak_is_named_as_its_source_names_it(tmp_path, shuffled):
    from PIL import Image

    for number in range(30):
        Image.fromarray(shuffled[number, 0].numpy()).save(tmp_path / f"digit_{number:02}.png")
    data = DataConfig(source="folder", path=str(tmp_path), n_heldout=6, n_train=20, subset_seed=3)
    images, _ = read(data)
    names = origins(data)
    assert len(names) == 20
    for name, image in zip(names, images, strict=True):
        assert torch.equal(image, shuffled[int(name[6:8])])
    assert origins(DataConfig(n_train=5))[0].isdigit()


# commands


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    keys = [*SMALL, "probes.samples=20", "train.kimg=0.2", "probes.cycles=2", f"run.root={root}", "run.name=x"]
    assert fit(keys) == 0
    return root / "x"


def table(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_run_ends_with_the_audit_that_it_asks_for(run):
    rows = table(run / "measured" / "0.224_cycles.csv")
    assert [row["cycle"] for row in rows] == ["0", "1", "2"]
    assert all(0 <= float(row["memorized_fraction_low"]) <= float(row["memorized_fraction_high"]) <= 1 for row in rows)
    assert (run / "figures" / "cycles.png").stat().st_size > 5000


def test_measure_and_the_lens_audit_the_same_samples(run, tmp_path, capsys):
    assert measure([str(run), "--cycles", "3", "--cycle-sigma", "0.4", "--leaks", "probes.draws=32"]) == 0
    shown = capsys.readouterr().out
    assert "after 3 cycles of adding noise of 0.4 and sampling back" in shown
    assert "training against held-out, ema weights" in shown
    assert (run / "figures" / "leaks.png").exists()
    out = tmp_path / "lens"
    line = [str(run / "denoiser.safetensors"), "--data", str(run), "--cycles", "3", "--cycle-sigma", "0.4"]
    line += ["probes.draws=32", "probes.samples=20", "probes.sampler_steps=4", f"--out={out}"]
    assert lens(line) == 0
    page = (out / "lens.html").read_text()
    assert "after 3 cycles" in page
    for kind in ("cycles", "leaks"):
        ours, theirs = (table(folder / "measured" / f"0.224_{kind}.csv") for folder in (run, out / "denoiser"))
        assert ours == theirs
    images = {row["image"] for row in ours}
    assert images <= set(origins(DataConfig(n_train=300, n_heldout=397)))
    assert np.sum([int(row["samples"]) for row in ours]) == 20
    assert lens(line) == 0  # from what it found before
    assert "after 3 cycles" in capsys.readouterr().out
    assert lens([*line[:-1], "probes.seed=1", f"--out={out}"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cycles", "-1"], "--cycles: expected a number of 0 or more, got -1"),
        (["--cycle-sigma", "1"], "--cycle-sigma: expected --cycles N as well"),
        (["--cycles", "1", "--cycle-sigma", "0"], "--cycle-sigma: expected a noise level above 0, got 0"),
        (["--cycles", "1", "--cycle-sigma", "0.001"], "probes.cycle_sigma: expected above 0.002"),
    ],
)
def test_audits_that_cannot_be_are_a_line(options, message, run, capsys):
    assert measure([str(run), *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
