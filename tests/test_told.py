"""What runs with and without labels say together: against curves made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gaussbias.analysis import Record, studies
from gaussbias.analysis.crossings import tau_mem
from gaussbias.analysis.labels import ANY, PLAIN, more, sooner, told_apart
from gaussbias.figures.atlas.labels import labels_figure
from gaussbias.metrics.generalization import wilson_interval
from gaussbias.report.labels import HEAD, claims, table
from gaussbias.report.sections import across

TIMES = (0.0, 8.0, 16.0, 32.0, 64.0)
KEYS = {
    "module.kind": "edm",
    "model.channels": 8,
    "data.source": "digits",
    "train.kimg": 64,
    "probes.samples": 200,
    "data.labels": False,
    "model.label_dropout": 0.0,
}


def run_of(name, shares, error, seed=0, size=100, own=None, rows=5, **more):
    """A run whose memorised share is given at each time; with labels by both rules."""
    measured = []
    for place, kimg in enumerate(TIMES[:rows]):
        row = {"kimg": kimg, "epoch": kimg * 10, "denoising/mse/heldout": error, "denoising/mse/heldout_se": 0.01}
        by_rule = {PLAIN: shares[place]} if own is None else {PLAIN: own[place], ANY: shares[place]}
        for key, share in by_rule.items():
            low, high = wilson_interval(share * 200, 200)
            row |= {key: share, f"{key}_low": low, f"{key}_high": high}
        measured.append(row)
    keys = KEYS | {"data.n_train": size, "run.seed": seed, "data.subset_seed": seed, "data.labels": own is not None}
    return Record(name, None, keys | more, True, tuple(measured))


LATE, EARLY = (0, 0, 0, 0.1, 0.3), (0, 0, 0.1, 0.4, 0.8)
LATER, ALWAYS = (0, 0, 0, 0.09, 0.26), (0, 1, 1, 1, 1)
NEVER, OWN = (0, 0, 0, 0, 0.01), (0, 0.2, 0.5, 0.7, 0.9)


@pytest.fixture
def runs():
    return [
        run_of("plain 0", LATE, 0.2),
        run_of("plain 1", LATER, 0.2, seed=1),
        run_of("plain 2", NEVER, 0.2, seed=2),
        run_of("told 0", EARLY, 0.1, own=OWN),
        run_of("told 1", EARLY, 0.1, seed=1, own=OWN),
        run_of("told 2", EARLY, 0.1, seed=2, own=OWN),
        run_of("told 3", ALWAYS, 9.0, seed=3, own=ALWAYS),  # no such run without labels
    ]


def test_runs_on_the_same_images_are_pairs_and_studies_that_differ_otherwise_are_none(runs):
    wide = [run_of("wide", ALWAYS, 9.0, seed=9, own=ALWAYS, **{"model.channels": 16})]
    (compared,) = told_apart(studies([*runs, *wide]))
    assert [(plain.name, told.name) for plain, told in compared.pairs()] == [
        (f"plain {seed}", f"told {seed}") for seed in range(3)
    ]
    assert (compared.sizes, compared.width) == ([100], 8)
    dropped = [
        run_of(f"dropped {seed}", EARLY, 0.1, seed=seed, own=OWN, **{"model.label_dropout": 0.2}) for seed in (0, 1)
    ]
    assert len(told_apart(studies([*runs, *dropped]))) == 2
    assert told_apart(studies(runs[:3])) == told_apart(studies(runs[3:])) == []
    other = [run_of("other", EARLY, 0.1, own=OWN, **{"data.resolution": 8})]
    assert told_apart(studies(runs[:3] + other)) == []
    assert told_apart(studies([*runs[:3], run_of("larger", EARLY, 0.1, size=200, own=OWN)])) == []


def test_runs_are_compared_up_to_the_last_time_of_both():
    shorter = run_of("plain", LATE, 0.2, rows=3)
    other = run_of("told", EARLY, 0.1, own=OWN)
    (compared,) = told_apart(studies([shorter, other]))
    ((plain, told),) = compared.pairs()
    assert [row["kimg"] for row in told.rows] == [row["kimg"] for row in plain.rows] == [0, 8, 16]
    assert more(compared.pairs()).mean == pytest.approx(0.1)
    assert told_apart(studies([run_of("plain", LATE, 0.2, rows=1), other])) == []


def test_times_are_compared_by_the_share_among_images_of_any_class(runs):
    pairs = list(zip(runs[:3], runs[3:6], strict=True))
    value, first, last = sooner(pairs)
    late, later = (tau_mem(run).time for run in runs[:2])
    early = tau_mem(runs[3], ANY).time
    assert 16 < late < later < 32
    assert 8 < early < 16
    assert tau_mem(runs[3]).time < 8.01  # by its own rule it is sooner still, which is not what is compared
    logs = np.log(np.array([late, later, 64]) / early)  # the third had not memorised at 64 kimg
    assert value.mean == pytest.approx(logs.mean())
    assert (value.runs, first, last) == (3, 1, 0)
    # each time lies anywhere between two measurements that are a factor of two apart, of two runs, or of one
    spacing = math.log(2) / math.sqrt(12)
    draws = spacing**2 * (2 + 2 + 1) / 3
    assert value.se == pytest.approx(math.sqrt(draws + logs.var(ddof=1) / 3))


@pytest.mark.parametrize(
    ("plain", "told", "expected", "counts"),
    [
        (EARLY, NEVER, lambda time: math.log(time / 64), (0, 1)),
        (LATE, ALWAYS, lambda time: math.log(time / 8), (1, 0)),
        (ALWAYS, NEVER, lambda time: math.log(8 / 64), (0, 1)),
        (NEVER, ALWAYS, lambda time: math.log(64 / 8), (1, 0)),
        (NEVER, NEVER, None, (0, 0)),
        (ALWAYS, ALWAYS, None, (0, 0)),
    ],
)
def test_a_bound_brings_the_ratio_nearer_to_one(plain, told, expected, counts):
    one, other = run_of("a", plain, 0.2), run_of("b", told, 0.2, own=told)
    value, *found = sooner([(one, other)])
    assert tuple(found) == counts
    if expected is None:
        assert value.runs == 0
    else:
        assert value.mean == pytest.approx(expected(tau_mem(one).time))


def test_what_is_memorised_at_the_end_is_compared_pair_by_pair(runs):
    value = more(list(zip(runs[:3], runs[3:6], strict=True)))
    differences = np.array([0.5, 0.54, 0.79])
    assert value.mean == pytest.approx(differences.mean())
    assert value.se > differences.std(ddof=1) / math.sqrt(3)  # and the error of shares of 200 samples
    assert value.low > 0.2


def test_the_report_has_a_table_claims_and_a_figure(runs, tmp_path):
    (compared,) = told_apart(studies(runs))
    head, (row,) = table(compared)
    assert head == HEAD
    assert row[:2] == ("100", "3")
    assert row[2].endswith("> 64")
    assert row[5:] == ("0.19(9)", "0.80(3)", "0.90(2)", "0.20(1)", "0.10(1)")
    sooner_claim, more_claim = claims(compared)
    assert (sooner_claim.verdict, more_claim.verdict) == ("held", "held")
    assert "in 1 pairs only the run with labels had memorised" in sooner_claim.found
    ((section,), missing) = across(studies(runs), tmp_path)
    assert (section.claims, missing) == ([sooner_claim, more_claim], [])
    assert all(file.is_file() for file in section.pictures)
    assert across(studies(runs[:3]), tmp_path) == ([], [])
    old = [replace(run, rows=tuple({k: v for k, v in row.items() if ANY not in k} for row in run.rows)) for run in runs]
    assert across(studies(old), tmp_path)[0] == []
    assert "no share of memorised samples among images of any class" in across(studies(old), tmp_path)[1][0]


def test_a_pair_that_points_the_other_way_leaves_the_claim_undecided(runs):
    many = [run_of(f"plain {seed}", LATE, 0.2, seed=seed) for seed in range(4, 12)]
    many += [run_of(f"told {seed}", EARLY, 0.1, seed=seed, own=OWN) for seed in range(4, 12)]
    (compared,) = told_apart(studies([*runs, *many]))
    assert claims(compared)[0].verdict == "held"
    against = [run_of("plain", LATE, 0.2, seed=20), run_of("told", NEVER, 0.1, seed=20, own=NEVER)]
    (compared,) = told_apart(studies([*runs, *many, *against]))
    value, _, last = sooner(compared.pairs())
    assert (value.low > 0, last) == (True, 1)
    assert claims(compared)[0].verdict == "undecided"


def test_the_figure_draws_means_over_runs(runs):
    (compared,) = told_apart(studies(runs))
    figure = labels_figure(compared)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert list(lines["without labels"]) == pytest.approx(np.mean([LATE, LATER, NEVER], 0)[1:])
    assert list(lines["with labels"]) == pytest.approx(EARLY[1:])
    assert list(lines["with labels, among images of the class"]) == pytest.approx(OWN[1:])
    errors = [line.get_ydata()[-1] for line in figure.axes[1].get_lines()]
    assert errors == pytest.approx([0.2, 0.1])
