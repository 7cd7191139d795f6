"""What runs with and without labels say together: against curves made by hand."""

import math

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


def run_of(name, shares, error, seed=0, size=100, own=None, **more):
    """A run whose memorised share is given at each time; with labels by both rules."""
    rows = []
    for place, kimg in enumerate(TIMES):
        row = {"kimg": kimg, "epoch": kimg * 10, "denoising/mse/heldout": error, "denoising/mse/heldout_se": 0.01}
        by_rule = {PLAIN: shares[place]} if own is None else {PLAIN: own[place], ANY: shares[place]}
        for key, share in by_rule.items():
            low, high = wilson_interval(share * 200, 200)
            row |= {key: share, f"{key}_low": low, f"{key}_high": high}
        rows.append(row)
    keys = KEYS | {"data.n_train": size, "run.seed": seed, "data.subset_seed": seed, "data.labels": own is not None}
    return Record(name, None, keys | more, True, tuple(rows))


LATE, EARLY = (0, 0, 0, 0.1, 0.3), (0, 0, 0.1, 0.4, 0.8)
NEVER, OWN = (0, 0, 0, 0, 0.01), (0, 0.2, 0.5, 0.7, 0.9)


@pytest.fixture
def runs():
    return [
        run_of("plain 0", LATE, 0.2),
        run_of("plain 1", LATE, 0.2, seed=1),
        run_of("plain 2", NEVER, 0.2, seed=2),
        run_of("told 0", EARLY, 0.1, own=OWN),
        run_of("told 1", EARLY, 0.1, seed=1, own=OWN),
        run_of("told 2", EARLY, 0.1, seed=2, own=OWN),
        run_of("told 3", EARLY, 0.1, seed=3, own=OWN),  # no such run without labels
    ]


def test_runs_on_the_same_images_are_pairs_and_studies_that_differ_otherwise_are_none(runs):
    (compared,) = told_apart(studies(runs))
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


def test_times_are_compared_by_the_share_among_images_of_any_class(runs):
    pairs = list(zip(runs[:3], runs[3:6], strict=True))
    value, first, last = sooner(pairs)
    late, early = tau_mem(runs[0]).time, tau_mem(runs[3], ANY).time
    assert 16 < late < 32
    assert 8 < early < 16
    assert tau_mem(runs[3]).time < 8.01  # by its own rule it is sooner still, which is not what is compared
    assert value.mean == pytest.approx(math.log(late / early))
    assert (value.runs, first, last) == (2, 1, 0)
    turned = [(told, plain) for plain, told in pairs]
    without = [run_of("a", EARLY, 0.2)], [run_of("b", NEVER, 0.2, own=NEVER)]
    assert sooner(list(zip(*without, strict=True)))[1:] == (0, 1)
    assert math.isnan(sooner(turned)[0].mean)  # runs without labels have no such share


def test_what_is_memorised_at_the_end_is_compared_pair_by_pair(runs):
    value = more(list(zip(runs[:3], runs[3:6], strict=True)))
    differences = np.array([0.5, 0.5, 0.79])
    assert value.mean == pytest.approx(differences.mean())
    assert value.se > differences.std(ddof=1) / math.sqrt(3)  # and the error of shares of 200 samples
    assert value.low > 0.2


def test_the_report_has_a_table_claims_and_a_figure(runs, tmp_path):
    (compared,) = told_apart(studies(runs))
    head, (row,) = table(compared)
    assert head == HEAD
    assert row[:2] == ("100", "3")
    assert row[2].endswith("> 64")
    assert row[5:] == ("0.2(1)", "0.80(3)", "0.90(2)", "0.20(1)", "0.10(1)")
    sooner_claim, more_claim = claims(compared)
    assert (sooner_claim.verdict, more_claim.verdict) == ("held", "held")
    assert "Pairs in which only the run with labels memorised: 1; only that without: 0" in sooner_claim.found
    (section,) = across(studies(runs), tmp_path)
    assert section.claims == [sooner_claim, more_claim]
    assert all(file.is_file() for file in section.pictures)
    assert across(studies(runs[:3]), tmp_path) == []


def test_the_figure_draws_means_over_runs(runs):
    (compared,) = told_apart(studies(runs))
    figure = labels_figure(compared)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert list(lines["without labels"]) == pytest.approx(np.mean([LATE, LATE, NEVER], 0)[1:])
    assert list(lines["with labels"]) == pytest.approx(EARLY[1:])
    assert list(lines["with labels, among images of the class"]) == pytest.approx(OWN[1:])
    errors = [line.get_ydata()[-1] for line in figure.axes[1].get_lines()]
    assert errors == pytest.approx([0.2, 0.1])
