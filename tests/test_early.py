"""What many runs say of early signs, and of bias and variance: against hand-made curves and toys."""

import csv
import math

import numpy as np
import pytest
import torch
from runs import SMALL
from safetensors.numpy import save_file

from gaussbias.analysis import Record, Study, choices
from gaussbias.analysis.clock import clock
from gaussbias.analysis.signs import departure, first_copies, lead, least_error, missed, signs_of
from gaussbias.analysis.variance import pairs
from gaussbias.checkpoints import load
from gaussbias.fit import main as fit
from gaussbias.metrics.variance import BiasVariance
from gaussbias.modules import build_data
from gaussbias.report import signs as report_signs
from gaussbias.report.__main__ import main as report
from gaussbias.report.claims import about_clocks
from gaussbias.report.sections import sections

PLACES = (1, 2, 5, 10, 20)
TIMES = (0.0, 4.0, 8.0, 16.0, 32.0, 64.0)
KEYS = {"module.kind": "edm", "model.channels": 8, "data.source": "digits", "train.kimg": 64, "stop.gap_z": 3}


def run_of(name, gap, share, low, error, size=100, **more):
    """A run whose gap, share of samples and lower end of the memorised share are given at each time."""
    rows = []
    for place, kimg in enumerate(TIMES):
        rows.append(
            {
                "kimg": kimg,
                "epoch": kimg * 10,
                "gap/mse": gap[place],
                "gap/mse_se": 1.0,
                "gap/mse/sigma_0p47": 2 * gap[place],
                "gap/mse/sigma_0p47_se": 1.0,
                "gap/mse/sigma_80": 0.0,
                "gap/mse/sigma_80_se": 1.0,
                "gap/z": 2 * gap[place],
                "novelty/train_share": share[place],
                "novelty/train_share_se": 0.1,
                "novelty/train_share_null": 0.2,
                "novelty/train_share_z": (share[place] - 0.2) / 0.1,
                "generalization/memorized_fraction": 2 * low[place],
                "generalization/memorized_fraction_low": low[place],
                "generalization/memorized_fraction_high": 3 * low[place],
                "generalization/gl_score": 0.5,
                "gaussian/rmse/heldout": 1.0,
                "denoising/mse/heldout": error[place],
                "denoising/mse/heldout_se": 0.01,
            }
        )
    keys = {**KEYS, "data.n_train": size, "run.seed": more.get("seed", 0), "data.subset_seed": more.get("seed", 0)}
    return Record(name, None, keys, True, tuple(rows))


@pytest.fixture
def runs():
    copies = (0, 0, 0, 0, 0.1, 0.3)
    early = run_of("a", (9, -2, 1, 3.5, 4, 5), (0.9, 0.2, 0.55, 0.4, 0.6, 0.9), copies, (9, 5, 3, 2, 3, 4))
    later = run_of("b", (0, 0, 4, 1, 3.2, 5), (0.2, 0.2, 0.6, 0.7, 0.8, 0.9), copies, (9, 5, 3, 2, 2.5, 4), seed=1)
    return [early, later]


def test_the_signs_are_those_with_a_null_and_errors_means_before_levels(runs):
    there = [sign.title for sign in signs_of(runs)]
    assert there == ["novelty/train_share", "gap/mse, band", "gap/mse, sigma 0.47", "gap/mse, largest level"]
    share, band, level, largest = signs_of(runs)
    assert largest.z(runs[0].rows[2]) == 2
    row = runs[0].rows[2]
    assert share.z(row) == pytest.approx(3.5)
    assert (band.z(row), level.z(row)) == (1, 2)
    assert math.isnan(share.z({"kimg": 1.0, "novelty/train_share": 0.4}))


def test_a_sign_is_there_when_it_is_above_twice_in_a_row(runs):
    share, band, level, _ = signs_of(runs)
    a, b = runs
    assert departure(a, band).time == 16  # not before training, and 3.5 is confirmed by 4
    assert departure(b, band).time == 32  # 4 at 8 kimg is not
    assert departure(a, share).time == 32  # 3.5 at 8 kimg is not
    assert departure(b, share).time == 8
    assert departure(a, level).time == 16
    assert departure(b, level).between == (16.0, 32.0)
    assert first_copies(a).time == 32
    assert least_error(a).time == 16
    quiet = run_of("c", [0] * 6, [0.2] * 6, [0] * 6, (9, 5, 4, 3, 2, 1))
    assert departure(quiet, band).kind == first_copies(quiet).kind == least_error(quiet).kind == "after"


def test_leads_are_ratios_of_times_over_runs_that_have_both(runs):
    share, band, *_ = signs_of(runs)
    value = lead(runs, band)
    assert value.mean == pytest.approx(math.log(2) / 2)
    assert value.runs == 2
    grid = math.log(2) / 12**0.5  # each time lies anywhere between two measurements
    assert value.se == pytest.approx(math.hypot(math.log(2) / 2, math.hypot(grid, grid)))
    assert lead(runs, band, least_error).mean == pytest.approx(math.log(16 / 16) / 2 + math.log(16 / 32) / 2)
    quiet = run_of("c", (0, 0, 0, 4, 4, 4), [0.2] * 6, [0] * 6, (9, 5, 4, 3, 2, 1), seed=2)
    late = run_of("d", (0, 0, 0, 0, 0, 0), [0.2] * 6, (0, 0, 0, 0, 0.1, 0.2), (9, 5, 4, 3, 2, 1), seed=3)
    assert lead([*runs, quiet, late], band).runs == 2
    assert missed([*runs, quiet, late], band) == (1, 1)
    assert missed([*runs, quiet, late], share) == (1, 0)


def test_the_table_and_the_claims_say_so(runs, tmp_path):
    study = Study("digits", "digits", tuple(runs), {})
    there = signs_of(runs)
    head, rows = report_signs.table(study, there)
    assert len(rows) == 4
    band = dict(zip(head, rows[1], strict=True))
    assert band["kimg"] == "16, 32"
    assert band["first copies"] == "32, 32"
    assert band["copies / sign (95 %)"].startswith("1.41 (")
    claim = report_signs.claims(study, there)[1]
    assert claim.verdict == "undecided"  # of two runs
    assert "over 2 runs; N = 100: 1.41" in claim.found
    made, missing = sections(study, tmp_path / "figures")
    assert missing == []
    section = next(part for part in made if part.title == "How early each sign is")
    assert section.table is not None
    with (tmp_path / "early_signs_digits.csv").open() as file:
        assert [tuple(row) for row in csv.reader(file)] == [tuple(head), *map(tuple, rows)]


def test_rules_of_signs_are_judged_like_the_others(runs):
    found = {choice.rule: choice for choice in choices(runs[0])}
    assert found["gap"].row["kimg"] == 8  # the largest level passes 3 at 16 and 32 kimg
    assert found["gap"].ended == 32
    assert found["novelty"].row["kimg"] == 16
    assert found["novelty"].ended == 64
    study = Study("digits", "digits", tuple(runs), {})
    from gaussbias.report.claims import about_stops

    claims = about_stops(study, {run.name: choices(run) for run in runs})
    (gap,) = (claim for claim in claims if "stopping by gap would" in claim.text)
    assert "it rang -16(16) kimg before the first copies, in 2 of 2 runs" in gap.found


# bias and variance


def test_bias_and_variance_of_a_toy_are_known_and_add_up(random):
    """D_i = x0 + bias + noise_i, with independent noise."""
    metric, count = BiasVariance(64, 2), 64
    bias, spread = 0.3, torch.tensor([0.5, 2.0], dtype=torch.float64)
    for block in range(count):
        x0 = torch.randn(32, 1, 4, 4, generator=random, dtype=torch.float64)
        one, other = (
            x0 + bias + spread[:, None, None, None, None] * torch.randn(2, *x0.shape, generator=random).double()
            for _ in range(2)
        )
        metric.update(one, other, x0, block)
    found = metric.compute()
    for name, expected in (("bias", torch.full((2,), bias**2)), ("variance", spread.square())):
        assert ((found[name] - expected).abs() < 4 * found[f"{name}_se"]).all()
    assert (found["bias"] + found["variance"] - found["error"]).abs().max() < 1e-12


def test_the_same_denoiser_twice_has_no_variance(random):
    metric = BiasVariance(16, 1)
    for block in range(16):
        x0, output = torch.randn(4, 1, 2, 2, generator=random), torch.randn(1, 4, 1, 2, 2, generator=random)
        metric.update(output, output, x0, block)
    found = metric.compute()
    assert float(found["variance"].abs()) < 1e-15
    assert float(found["bias"]) == pytest.approx(float(found["error"]))


@pytest.mark.long
def test_the_report_compares_halves_and_seeds_draw_by_draw(tmp_path):
    keys = [*SMALL, "data.n_train=100", "train.kimg=0.32", "train.checkpoint_every_kimg=0.16"]
    keys += ["train.checkpoints_kept=all", f"run.root={tmp_path}", "probes.first_kimg=0.16"]
    for name, half, seed in (("one", "S1", 0), ("two", "S2", 0), ("again", "S1", 1)):
        assert fit([*keys, f"run.name={name}", f"data.half={half}", f"run.seed={seed}"]) == 0
        assert len(list((tmp_path / name / "checkpoints").glob("0*.ckpt"))) == 2
    assert report([str(tmp_path)]) == 0
    out = tmp_path / "report"
    assert "Bias and variance" in (out / "report.html").read_text()
    (file,) = out.glob("variance_*.csv")
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    assert {(row["kind"], row["first"], row["second"]) for row in rows} == {
        ("halves", "one", "two"),
        ("seeds", "again", "one"),
    }
    assert {float(row["kimg"]) for row in rows} == {0.16, 0.32}
    # one value by hand, from the exported networks, on the draws of the run's own bank
    from gaussbias import config

    bank = build_data(config.load(tmp_path / "one" / "config.yaml")).bank
    networks = [load(tmp_path / name / "denoiser.safetensors").denoiser for name in ("one", "two")]
    sigma, differences = bank.sigmas[6], []
    for number in range(bank.blocks):
        x0, eps = bank.draw("heldout", number)
        with torch.no_grad():
            a, b = (network(x0 + sigma * eps, sigma) for network in networks)
        differences.append(float((a - b).double().square().mean()) / 2)
    row = next(row for row in rows if row["kind"] == "halves" and row["kimg"] == "0.32" and row["sigma"] == repr(sigma))
    assert float(row["variance"]) == pytest.approx(np.mean(differences), rel=1e-5)
    assert float(row["gaussian_variance"]) > 0


def test_pairs_are_runs_that_differ_in_one_thing(tmp_path):
    def record(name, **more):
        keys = {
            "data.half": "S1",
            "data.n_train": 50,
            "model.channels": 8,
            "run.seed": 0,
            "data.subset_seed": 0,
            **more,
        }
        return Record(name, tmp_path / name, keys, True, ({"kimg": 1.0, "epoch": 1.0},))

    runs = [record("a"), record("b", **{"data.half": "S2"}), record("c", **{"run.seed": 1})]
    runs += [record("d", **{"run.seed": 1, "data.subset_seed": 1}), record("e", **{"data.n_train": 60})]
    assert [(pair.kind, pair.first.name, pair.second.name) for pair in pairs(runs)] == [
        ("halves", "a", "b"),
        ("seeds", "a", "c"),
    ]


def test_the_clock_has_the_exponent_of_its_curves(tmp_path):
    """Gains of gradient flow whose rates grow as a known power of the variance, of three seeds."""
    lam = np.geomspace(4, 0.5, 20)
    sigma, times = 1.5, [0.0, *(4 * 1.3**step for step in range(20))]
    target = lam / (lam + sigma**2)
    runs = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        save_file({"mean": np.zeros(20), "eigenvalues": lam}, folder / "moments.safetensors")
        rates = 0.05 * lam**0.5 * (1 + 0.05 * seed)
        rows = []
        for kimg in times:
            gains = target * (1 - 0.9 * np.exp(-rates * kimg))
            rows.append({"kimg": kimg, "epoch": kimg} | {f"spectrum/gain_{k}/sigma_1p5": gains[k - 1] for k in PLACES})
            rows[-1] |= {f"spectrum/gain_{k}/sigma_0p02": 0.9 for k in PLACES}  # they begin near their end
        keys = {**KEYS, "data.n_train": 400, "run.seed": seed, "data.subset_seed": seed}
        runs.append(Record(str(seed), folder, keys, True, tuple(rows)))
    found = clock(runs)
    assert found.sigma == 1.5
    assert found.falling == {}
    assert sorted(found.rising) == pytest.approx(sorted(lam[[k - 1 for k in PLACES]]))
    assert found.law.alpha == pytest.approx(-0.5, abs=0.03)
    (claim,) = about_clocks([found])
    assert claim.verdict == "held"
    assert "N = 400: alpha 0.5" in claim.found
    assert clock([Record("x", None, KEYS, True, runs[0].rows)]) is None
