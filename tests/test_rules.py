"""Early stopping: on curves whose minimum is known, and in real runs."""

import itertools

import numpy as np
import pytest
import torch
from runs import SMALL, rows

from gaussbias import checkpoints
from gaussbias.callbacks import GapStopping, GaussianGapStopping, MemorizationStopping
from gaussbias.fit import main
from gaussbias.history.rules import (
    Choice,
    Moment,
    choose_before_alarm,
    choose_by_gap,
    choose_by_memorization,
    read_moments,
)

BLOCKS = 16
END = 5.024
"""kimg, in whole steps."""


def moments(curve, shared=0.0, own=0.0, seed=0):
    """Measurements of a curve: noise of the draws, the same each time, and noise of each measurement."""
    random = np.random.default_rng(seed)
    draws = shared * random.standard_normal(BLOCKS)
    found = []
    for kimg, value in enumerate(curve, 1):
        blocks = value + draws + own * random.standard_normal(BLOCKS)
        found.append(Moment(float(kimg), float(blocks.mean()), blocks))
    return found


def test_the_gap_rule_finds_the_minimum_and_stops_after_its_patience():
    curve = [5, 3, 2, 1, 1.5, 2, 2.5, 3]
    for patience, stop in ((1, 4), (2, 5), (4, 7), (5, None)):
        assert choose_by_gap(moments(curve), patience, 2) == Choice(3, stop)
    assert choose_by_gap([], 3, 2) == Choice(None, None)


def test_noise_that_all_measurements_share_does_not_hide_the_minimum():
    """Errors are paired: draws a hundred times noisier than the rise, the same each time, cancel."""
    curve = [5, 3, 1, 1.1, 1.2, 1.3]
    assert choose_by_gap(moments(curve, shared=10), 3, 2) == Choice(2, 5)
    # in each measurement's own noise of that size nothing is sure
    stops = [choose_by_gap(moments(curve, own=10, seed=seed), 3, 4).stop for seed in range(20)]
    assert stops.count(None) >= 19


def test_a_curve_that_stays_at_its_minimum_is_not_stopped():
    """Of 200 flat curves of 20 measurements, two standard errors and a patience of 5 stop few; no errors nearly all."""
    flat = [1.0] * 20
    few = sum(choose_by_gap(moments(flat, own=1, seed=seed), 5, 4).stop is not None for seed in range(200))
    many = sum(choose_by_gap(moments(flat, own=1, seed=seed), 5, 0).stop is not None for seed in range(200))
    assert few <= 10
    assert many >= 180


def test_the_memorisation_rule_keeps_the_last_measurement_before_the_threshold():
    lows = [Moment(float(i), low, np.empty(0)) for i, low in enumerate([0.0, 0.01, 0.04, 0.06, 0.02])]
    assert choose_by_memorization(lows, 0.05) == Choice(2, 3)
    assert choose_by_memorization(lows[:3], 0.05) == Choice(2, None)
    assert choose_by_memorization(lows[3:], 0.05) == Choice(None, 0)


def test_an_alarm_takes_two_measurements_in_a_row_and_keeps_the_last_quiet_one():
    def of(*heights):
        return [Moment(float(i), z, np.empty(0)) for i, z in enumerate(heights, 1)]

    assert choose_before_alarm(of(0, 4, 1, 2, 5, 6, 1), 3) == Choice(3, 5)
    assert choose_before_alarm(of(0, 4, 1, 2, 5), 3) == Choice(3, None)  # not confirmed yet
    assert choose_before_alarm(of(0, 4, 1, 2), 3) == Choice(3, None)
    assert choose_before_alarm(of(4, 5), 3) == Choice(None, 1)
    assert choose_before_alarm(of(4), 3) == Choice(None, None)
    assert choose_before_alarm(of(0, 4, 5), 4.5) == Choice(1, None)
    assert choose_before_alarm(of(3, 3), 3) == Choice(1, None)
    assert choose_before_alarm([], 3) == Choice(None, None)


def test_what_an_alarm_keeps_was_always_the_newest_or_kept_before():
    """A checkpoint is written when it is chosen: a choice that changes is the measurement at hand."""
    random = np.random.default_rng(0)
    for _ in range(300):
        heights = random.normal(2.5, 1, 12)
        there = [Moment(float(i), z, np.empty(0)) for i, z in enumerate(heights, 1)]
        before = None
        for count in range(1, 13):
            choice = choose_before_alarm(there[:count], 3)
            assert choice.best in (before, count - 1)
            before = choice.best
            if choice.stop is not None:
                break


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: GaussianGapStopping("off"),
        lambda: GaussianGapStopping(patience=0),
        lambda: GapStopping(threshold=0),
        lambda: MemorizationStopping(threshold=1.0),
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        wrong()


MEMORISES = [
    *SMALL,
    "model.backbone=unet",
    "model.channels=8",
    "data.n_train=4",
    "data.n_heldout=100",
    "probes.samples=40",
    "probes.sampler_steps=12",
    "train.lr=0.005",
    "train.kimg=5",
    "train.ema_halflife_kimg=null",
    "probes.first_kimg=0.5",
    "probes.every_kimg=0.8",
]


MARKED = [f"stop.{rule}=mark" for rule in ("gaussian_gap", "memorization", "gap", "novelty")]


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """A run to its end that memorises its four images, with all rules marking."""
    root = tmp_path_factory.mktemp("runs")
    rules = [*MARKED, "stop.patience=1"]
    assert main([*MEMORISES, *rules, f"run.root={root}", "run.name=marked"]) == 0
    return root / "marked"


def measured(folder):
    return [row for row in rows(folder) if row.get("probes/seconds")]


def step_of(file):
    return torch.load(file, weights_only=True)["global_step"]


@pytest.mark.long
def test_a_marked_run_goes_on_and_keeps_what_the_rules_chose(marked):
    found = measured(marked)
    assert float(found[-1]["kimg"]) == END
    assert float(found[-1]["stop/memorization"]) == 1
    lows = [(float(row["kimg"]), float(row["generalization/memorized_fraction_low"])) for row in found[1:]]
    passed = next(i for i, (_, low) in enumerate(lows) if low > 0.05)
    assert 0 < passed < len(lows) - 1, "choose another length"
    assert float(found[-1]["stop/memorization_kimg"]) == lows[passed - 1][0]
    kept = marked / "checkpoints" / "best_memorization.ckpt"
    assert step_of(kept) * 32 / 1000 == lows[passed - 1][0]
    gaps = {float(row["kimg"]): float(row["gaussian/rmse/heldout"]) for row in found[1:]}
    chosen = float(found[-1]["stop/gaussian_gap_kimg"])
    stop = next((float(row["kimg"]) for row in found if row.get("stop/gaussian_gap") == "1.0"), END)
    assert chosen == min((kimg for kimg in gaps if kimg <= stop), key=gaps.__getitem__)
    assert step_of(marked / "checkpoints" / "best_gaussian_gap.ckpt") * 32 / 1000 == chosen
    share = [float(row["novelty/train_share_z"]) > 3 for row in found[1:]]
    rang = next(i for i in range(1, len(share)) if share[i - 1] and share[i])
    assert [row["stop/novelty"] for row in found[1:]] == ["0.0"] * rang + ["1.0"] * (len(share) - rang)
    if rang > 1:
        assert float(found[-1]["stop/novelty_kimg"]) == lows[rang - 2][0]
        assert step_of(marked / "checkpoints" / "best_novelty.ckpt") * 32 / 1000 == lows[rang - 2][0]
    assert rang - 1 <= passed  # it drifts before it copies
    assert found[-1]["stop/gap"] in ("0.0", "1.0")


@pytest.mark.long
def test_the_kept_checkpoint_is_the_denoiser_of_that_time(marked):
    denoiser = checkpoints.load_denoiser(marked / "checkpoints" / "best_memorization.ckpt")
    last = checkpoints.load_denoiser(marked / "checkpoints" / "last.ckpt")
    x = torch.randn(2, 1, 8, 8)
    assert not torch.equal(denoiser(x, 0.5), last(x, 0.5))


@pytest.mark.long
def test_a_rule_ends_a_run_which_then_stays_ended_and_goes_on_without_it(marked, tmp_path, caplog):
    """It ends where the marked run says, with the same weights and rows; taking the rule away, it goes on."""
    keys = [*MEMORISES, f"run.root={tmp_path}", "run.name=ended"]
    assert main([*keys, "stop.memorization=end"]) == 0
    assert "memorization ends the run" in caplog.text
    stop = next(float(row["kimg"]) for row in measured(marked) if row["stop/memorization"] == "1.0")
    there = measured(tmp_path / "ended")
    assert float(there[-1]["kimg"]) == stop
    same = [row for row in measured(marked) if float(row["kimg"]) <= stop]
    for one, other in zip(same, there, strict=True):
        for key in ("gaussian/rmse/heldout", "generalization/gl_score", "denoising/mse/train"):
            assert one[key] == other[key]
    before = (tmp_path / "ended" / "history.csv").read_text()
    assert main([*keys, "stop.memorization=end", "--resume"]) == 0
    assert (tmp_path / "ended" / "history.csv").read_text() == before
    assert main([*keys, "stop.memorization=null", "--resume"]) == 0
    assert float(measured(tmp_path / "ended")[-1]["kimg"]) == END
    for one, other in itertools.zip_longest(measured(marked), measured(tmp_path / "ended")):
        assert one["gaussian/rmse/heldout"] == other["gaussian/rmse/heldout"]


@pytest.mark.long
def test_a_run_that_goes_on_remembers_what_the_rules_saw(marked, tmp_path, power_cut):
    """Broken off between two checkpoints, it ends with the same choices: they are read from its measurements."""
    from gaussbias.modules import EDMModule

    rules = [*MARKED, "stop.patience=1"]
    keys = [*MEMORISES, *rules, f"run.root={tmp_path}", "run.name=marked"]
    with power_cut(EDMModule, 120), pytest.raises(RuntimeError, match="power cut"):
        main(keys)
    assert main([*keys, "--resume"]) == 0
    for one, other in itertools.zip_longest(measured(marked), measured(tmp_path / "marked")):
        assert {k: v for k, v in one.items() if k.startswith(("stop/", "spectrum/"))} == {
            k: v for k, v in other.items() if k.startswith(("stop/", "spectrum/"))
        }
    assert any(key.startswith("spectrum/gain_") for key in measured(marked)[-1])
    for rule in ("gaussian_gap", "memorization", "gap", "novelty"):
        name = f"checkpoints/best_{rule}.ckpt"
        assert (marked / name).exists() == (tmp_path / "marked" / name).exists()
        if (marked / name).exists():
            assert step_of(marked / name) == step_of(tmp_path / "marked" / name)


@pytest.mark.long
def test_a_rule_that_is_changed_does_not_keep_what_the_old_one_kept(marked, tmp_path, caplog):
    """With a lower threshold the choice is an earlier measurement, whose weights are gone: that is said."""
    import shutil

    shutil.copytree(marked, tmp_path / "marked")
    keys = [
        *MEMORISES,
        "stop.memorization=mark",
        "stop.memorized_fraction=0",
        f"run.root={tmp_path}",
        "run.name=marked",
    ]
    low = {float(row["kimg"]): float(row["generalization/memorized_fraction_low"]) for row in measured(marked)[1:]}
    first = next(kimg for kimg in low if low[kimg] > 0)
    chosen = max((kimg for kimg in low if kimg < first), default=None)
    assert main([*keys, "--resume", "train.kimg=6"]) == 0
    kept = tmp_path / "marked" / "checkpoints" / "best_memorization.ckpt"
    if chosen is not None and step_of(marked / "checkpoints" / "best_memorization.ckpt") * 32 / 1000 != chosen:
        assert "which memorization chooses, were not kept" in caplog.text
        assert not kept.exists()
    else:
        assert step_of(kept) * 32 / 1000 == chosen


def test_a_value_that_is_not_finite_is_no_choice():
    from gaussbias.history import Measurement
    from gaussbias.history.rules import GAUSSIAN_GAP, moment_of

    for value in (float("nan"), float("inf")):
        assert moment_of(Measurement(1.0, [1.0], {GAUSSIAN_GAP: value}, {}, {}, {}), GAUSSIAN_GAP) is None
    assert moment_of(Measurement(1.0, [1.0], {f"raw/{GAUSSIAN_GAP}": 0.5}, {}, {}, {}), GAUSSIAN_GAP).value == 0.5


@pytest.mark.long
def test_moments_are_read_as_they_were_logged(marked):
    found = read_moments(marked, "gaussian/rmse/heldout")
    logged = [(float(row["kimg"]), float(row["gaussian/rmse/heldout"])) for row in measured(marked)[1:]]
    assert [(moment.kimg, moment.value) for moment in found] == logged
    assert all(len(moment.blocks) == BLOCKS for moment in found)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["stop.patience=0"], "stop.patience: expected at least 1 measurement, got 0"),
        (["stop.memorization=off"], "stop.memorization: expected one of mark, end or null"),
        (["stop.memorized_fraction=1"], "stop.memorized_fraction: expected a fraction in 0..1, got 1.0"),
        (["stop.gaussian_gap=end", "probes.pools=[train]"], "stop.gaussian_gap: expected heldout among probes.pools"),
        (["stop.gaussian_gap=end", "module.kind=gaussian"], "stop.gaussian_gap: expected null"),
    ],
)
def test_a_mistake_in_the_rules_is_one_line(keys, said, capsys, tmp_path):
    assert main([*keys, f"run.root={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
