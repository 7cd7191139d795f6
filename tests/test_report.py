"""The report: what is drawn, read from the figures, against what the table says; fits and intervals against oracles."""

import base64
import csv
import math
from html.parser import HTMLParser

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from gaussbias.analysis import (
    Crossing,
    PowerLaw,
    Record,
    Value,
    change,
    choices,
    combine,
    crossing,
    fit_power_law,
    powerlaw,
    read_table,
    similarities,
    studies,
    tau_gen,
    tau_mem,
    write_table,
)
from gaussbias.figures.atlas.capacity import capacity_figure, time_figure
from gaussbias.figures.atlas.distances import distances_figure
from gaussbias.figures.atlas.halves import halves_figure
from gaussbias.figures.atlas.phases import phase, phases_figure, taus_figure
from gaussbias.figures.atlas.sizes import sizes_figure
from gaussbias.figures.atlas.stops import stops_figure
from gaussbias.history import Measurement, write_measurement
from gaussbias.metrics.generalization import wilson_interval
from gaussbias.report.__main__ import main
from gaussbias.report.claims import about_sizes, about_taus, judge
from gaussbias.report.page import page
from gaussbias.report.sections import sections
from gaussbias.system.errors import UserError


@pytest.fixture(scope="module")
def table(root):
    """Of the real runs of configs/atlas_tiny.yaml, fewer columns."""
    return root / "tests" / "data" / "atlas_tiny.csv"


@pytest.fixture(scope="module")
def lines(table):
    """The table as text, for oracles that do not use the code under test."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def digits(table):
    return next(study for study in studies(read_table(table)) if study.title == "digits")


@pytest.fixture(scope="module")
def cifar(table):
    return next(study for study in studies(read_table(table)) if study.title.startswith("cifar10"))


def ends(lines, source, key, **where):
    """Last values of runs whose columns are these, by the number of training images."""
    last = {}
    for line in lines:
        wanted = line["data.source"] == source and line["module.kind"] == "edm"
        if wanted and all(line[name.replace("_", ".", 1)] == str(value) for name, value in where.items()):
            last[line["run"]] = line
    found = {}
    for line in last.values():
        found.setdefault(int(line["data.n_train"]), []).append(float(line[key]))
    return dict(sorted(found.items()))


def drawn(axes, label=None):
    """x and y of a line of a panel."""
    line = next(line for line in axes.get_lines() if label is None or line.get_label() == label)
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def band(axes, number=0):
    """Lower and upper edge of a band at its left end."""
    points = axes.collections[number].get_paths()[0].vertices
    left = points[np.isclose(points[:, 0], points[:, 0].min())][:, 1]
    return left.min(), left.max()


def test_studies_are_of_one_data_set_and_surrogates_find_their_networks(table, digits, cifar):
    assert len(studies(read_table(table))) == 2
    assert (len(digits.runs), digits.widths, digits.main_width()) == (18, [16], 16)
    assert (len(cifar.runs), cifar.sizes, cifar.widths) == (12, [100, 1000, 10000], [8, 16, 32])
    assert set(cifar.surrogates) == {"cifar-n_train100-channels32", "cifar-n_train10000-channels32"}
    assert (cifar.main_width(), cifar.main_size()) == (32, 100)


def test_a_table_is_read_as_it_was_written(table, tmp_path):
    records = read_table(table)
    write_table(records, tmp_path / "again.csv")
    again = read_table(tmp_path / "again.csv")
    assert [(one.name, one.finished, one.rows) for one in again] == [
        (one.name, one.finished, one.rows) for one in records
    ]
    assert [(one.images, one.channels, one.replicate) for one in again] == [
        (one.images, one.channels, one.replicate) for one in records
    ]


def test_figure_1_has_the_means_over_seeds_with_their_intervals(lines, digits):
    _, _, score, memorized = sizes_figure(digits).axes
    for axes, key, label in (
        (score, "generalization/gl_score", "samples"),
        (score, "generalization/gl_score_heldout", "real held-out images"),
        (memorized, "generalization/memorized_fraction", None),
    ):
        expected = ends(lines, "digits", key)
        x, y = drawn(axes, label)
        assert x.tolist() == list(expected)
        np.testing.assert_allclose(y, [np.mean(values) for values in expected.values()], rtol=1e-12)
    few = ends(lines, "digits", "generalization/gl_score")
    own = ends(lines, "digits", "generalization/gl_score_se")
    smallest = min(few)
    scatter, draws = np.var(few[smallest], ddof=1) / 3, np.mean(np.square(own[smallest]))
    degrees = (scatter + draws) ** 2 / (scatter**2 / 2 + draws**2 / 15)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(scatter + draws)
    low, high = band(score)
    assert (low, high) == pytest.approx((np.mean(few[smallest]) - half, np.mean(few[smallest]) + half), rel=1e-9)


def test_figure_1_has_linearity_at_each_noise_level(lines, cifar):
    cosine, r2, _, _ = sizes_figure(cifar).axes
    for axes, name in ((cosine, "linearity/cosine/heldout"), (r2, "ladder/r2/heldout")):
        x, y = drawn(axes, "$N$ = 10,000")
        assert x.tolist() == [0.117, 0.47, 1.5, 21.1]
        levels = [f"{name}/sigma_{end}" for end in ("0p117", "0p47", "1p5", "21p1")]
        expected = [ends(lines, "cifar10", key, data_n_train=10000, model_channels=32)[10000][0] for key in levels]
        np.testing.assert_allclose(y, expected)


def test_figure_2_has_the_distances_of_the_surrogates(lines, cifar):
    panels = distances_figure(cifar).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["$N$ = 100, 32 channels", "$N$ = 10,000, 32 channels"]
    for axes, run in zip(panels, ("cifar-n_train100-channels32", "cifar-n_train10000-channels32"), strict=True):
        (line,) = [line for line in lines if line["run"] == f"{run}-linear"]
        for name, label in (("linear", "to $D_L$"), ("gaussian", "to $D_G$"), ("empirical", "to $D_M$")):
            x, y = drawn(axes, label)
            np.testing.assert_allclose(
                y, [float(line[f"teacher/{name}_rmse/heldout/sigma_{f'{s:g}'.replace('.', 'p')}"]) for s in x]
            )


def test_figure_2_without_a_surrogate_uses_the_nonlinear_part(lines, digits):
    few, many = distances_figure(digits).axes
    _, y = drawn(many, "to $D_L$")
    ends_of = ("0p117", "0p47", "1p5", "21p1")
    means = [np.mean(ends(lines, "digits", f"ladder/nonlinear/heldout/sigma_{end}")[1400]) for end in ends_of]
    expected = np.sqrt(np.maximum(means, 0))
    np.testing.assert_allclose(y, expected)
    assert "25" in few.get_title(loc="left")


def test_figure_3_has_each_capacity_and_each_time(lines, cifar, digits):
    score, *_, heldout, train = capacity_figure(cifar).axes
    for axes, key in (
        (score, "generalization/gl_score"),
        (heldout, "gaussian/rmse/heldout"),
        (train, "gaussian/rmse/train"),
    ):
        x, y = drawn(axes, "$N$ = 100")
        assert x.tolist() == [8, 16, 32]
        expected = [np.mean(ends(lines, "cifar10", key, model_channels=width)[100]) for width in (8, 16, 32)]
        np.testing.assert_allclose(y, expected)
    x, y = drawn(time_figure(digits).axes[1], "$N$ = 100")
    chosen = [line for line in lines if line["data.source"] == "digits" and line["data.n_train"] == "100"]
    for kimg, value in zip(x, y, strict=True):
        shares = [float(line["generalization/memorized_fraction"]) for line in chosen if float(line["kimg"]) == kimg]
        assert len(shares) == 3
        assert value == pytest.approx(np.mean(shares), abs=1e-12)


def test_phase_diagrams_have_a_colour_for_each_size_and_time(lines, digits, cifar):
    figure = phases_figure(digits, channels=16)
    for axes, key in zip(figure.axes, ("generalization/gl_score", "generalization/memorized_fraction"), strict=False):
        shown = axes.collections[0].get_array()
        times = digits.times(channels=16)
        assert shown.shape == (len(times), len(digits.sizes))
        for i, kimg in enumerate(times):
            for j, size in enumerate(digits.sizes):
                values = [
                    float(line[key])
                    for line in lines
                    if line["data.source"] == "digits"
                    and line["data.n_train"] == str(size)
                    and float(line["kimg"]) == kimg
                ]
                assert shown[i, j] == pytest.approx(np.mean(values), abs=1e-12)
    assert phase(cifar, "gaussian/rmse/heldout", [8, 16, 32], [80.0], images=100).shape == (1, 3)


def test_times_are_where_the_lower_end_of_the_interval_passes(digits):
    """Between the two measurements around the threshold, and late in a gap that nearly all samples jump over."""
    seen = set()
    for run in digits.runs:
        found = tau_mem(run)
        times, lows = (np.array(part) for part in run.curve("generalization/memorized_fraction_low"))
        seen.add(found.kind)
        if (lows > 0.05).any():
            place = int(np.argmax(lows > 0.05))
            assert found.kind == "at"
            assert found.between == (times[place - 1], times[place])
            assert times[place - 1] <= found.time <= times[place]
        else:
            assert found == Crossing(times[-1], "after")
        errors = dict(zip(*run.curve("denoising/mse/heldout"), strict=True))
        before = max([t for t in errors if t < tau_gen(run).time], default=0)
        assert all(error > 1.05 * min(errors.values()) for t, error in errors.items() if t <= before)
    assert seen == {"at", "after"}
    assert crossing([1, 2], [0.1, 0.2], 0.05) == Crossing(1, "before")
    assert crossing([], [], 0.05) is None


def test_the_time_of_memorisation_does_not_depend_on_how_often_one_measures():
    """Of a share that is logistic in log time, coarse and fine measurements give the time of Wilson's end."""
    count, middle, slope = 1000, 40.0, 5.0

    def share(t):
        return round(count / (1 + (middle / t) ** slope)) / count

    level = 0.05 + 1.959964 * math.sqrt(0.05 * 0.95 / count)
    exact = middle / (1 / level - 1) ** (1 / slope)
    assert wilson_interval(level * count, count)[0] == pytest.approx(0.05)
    for times in ([12, 48], [10, 20, 40], np.geomspace(5, 80, 60)):
        rows = tuple({"kimg": float(t), "epoch": 1.0, "generalization/memorized_fraction": share(t)} for t in times)
        found = tau_mem(Record("x", None, {"probes.samples": count}, True, rows))
        assert found.time == pytest.approx(exact, rel=0.06)


def test_every_time_is_a_mark(digits):
    axes = taus_figure(digits, "none").axes[0]
    marks = sum(len(line.get_xdata()) for line in axes.get_lines())
    assert marks == 2 * len(digits.runs)
    assert "$\\tau_{mem}$: later" in axes.get_legend_handles_labels()[1]


def simulated(alpha, sizes, seeds, spread, end=math.inf, seed=0):
    random = np.random.default_rng(seed)
    times = {}
    for n in sizes:
        taus = 0.7 * n**alpha * np.exp(spread * random.standard_normal(seeds))
        times[n] = [Crossing(min(tau, end), "at" if tau <= end else "after") for tau in taus]
    return times


def test_a_power_law_without_bounds_is_least_squares():
    """Then the likelihood is largest at the straight line through the logarithms."""
    times = simulated(0.8, [20, 50, 100, 300], 3, 0.3)
    x, y = zip(*[(math.log(n), math.log(one.time)) for n, found in times.items() for one in found], strict=True)
    law = fit_power_law(times)
    slope, level = np.polyfit(x, y, 1)
    assert law.alpha == pytest.approx(slope, abs=1e-3)
    assert law.constant == pytest.approx(math.exp(level), rel=5e-3)
    assert (law.runs, law.censored) == (12, 0)
    assert law.least == law.most == pytest.approx(law.alpha)  # times that are not between measurements
    assert law.low < 0.8 < law.high
    assert fit_power_law(times) == law  # the bootstrap has a seed


def test_a_coarse_schedule_widens_what_an_exponent_may_be():
    """Times known to a factor of 2, all at their lower ends or their upper ones: the slope of the extremes."""
    exact = {n: [Crossing(float(n), "at", (n / 2**0.5, n * 2**0.5))] * 3 for n in (20, 50, 100, 300)}
    law = fit_power_law(exact)
    x = np.log([20, 50, 100, 300])
    tilt = np.polyfit(x, np.where(x < x.mean(), 1, -1) * math.log(2) / 2, 1)[0]
    assert law.alpha == pytest.approx(1, abs=1e-3)
    assert (law.least, law.most) == (pytest.approx(1 + tilt, abs=5e-3), pytest.approx(1 - tilt, abs=5e-3))


def test_runs_that_never_memorise_are_not_dropped(monkeypatch):
    """With an end that cuts the largest sizes, bounds keep the exponent where dropping them biases it down."""
    monkeypatch.setattr(powerlaw, "REPETITIONS", 20)  # of the interval, which is not looked at
    kept, dropped = [], []
    for seed in range(8):
        times = simulated(1.0, [25, 50, 100, 150, 200], 4, 0.4, end=100.0, seed=seed)
        law = fit_power_law(times)
        assert isinstance(law, PowerLaw)
        assert law.censored > 0
        kept.append(law.alpha)
        points = [(math.log(n), math.log(one.time)) for n, found in times.items() for one in found if one.kind == "at"]
        dropped.append(np.polyfit(*zip(*points, strict=True), 1)[0])
    error = np.std(kept, ddof=1) / math.sqrt(len(kept))
    assert abs(np.mean(kept) - 1) < 3 * error
    assert np.mean(dropped) < np.mean(kept) - 3 * error


def test_there_is_no_exponent_from_too_few_sizes_or_seeds():
    four = simulated(1.0, [20, 50, 100, 300], 3, 0.2)
    assert isinstance(fit_power_law(four), PowerLaw)
    for times in (
        {n: four[n] for n in (20, 50, 100)},
        {n: found[:2] for n, found in four.items()},
        {**four, 300: [Crossing(100, "after")] * 3},
    ):
        law = fit_power_law(times)
        assert isinstance(law, str)
        assert law.startswith("no exponent: it takes 4 values of N with 3 seeds")
        assert [claim.verdict for claim in about_taus(law, times)] == ["undecided"]


def test_means_are_those_of_student_and_welch():
    values = [1.0, 2.0, 4.0]
    alone = combine(values, [math.nan] * 3)
    interval = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (alone.low, alone.high) == pytest.approx(interval)
    one = combine([3.0], [0.5])
    assert (one.low, one.high) == pytest.approx(stats.t.interval(0.95, 15, 3.0, 0.5))
    assert combine([2.0, math.nan], [0.1, 0.1]).runs == 1
    assert math.isnan(combine([], []).mean)


def test_intervals_over_seeds_and_shared_draws_cover_the_truth():
    """1,000 simulations of three runs with scatter 1 on draws whose shared error is 1, known from 16 blocks."""
    random, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        shared = random.standard_normal(16) * 4  # blocks; their mean has an error of 1
        values = shared.mean() + random.standard_normal(3)
        error = shared.std(ddof=1) / 4
        found = combine(values.tolist(), [float(error)] * 3)
        hits += found.low <= 0 <= found.high
    assert 0.93 <= hits / 1000 <= 0.99


def measured_run(tmp_path, name, blocks):
    """A run folder with two measurements of one value, its blocks shared draw by draw."""
    for kimg, part in blocks.items():
        write_measurement(
            tmp_path / name / "probes" / f"{kimg:g}.safetensors",
            Measurement(kimg, [1.0], {"a/b/heldout": float(part.mean())}, {"a/b/heldout": "heldout"}, {"heldout": "h"},
                        {"a/b/heldout": part}),
        )  # fmt: skip
    rows = tuple({"kimg": kimg, "epoch": 1.0, "a/b/heldout": float(part.mean())} for kimg, part in blocks.items())
    return Record(name, tmp_path / name, {}, True, rows)


def test_a_change_within_a_run_has_the_error_of_paired_draws(tmp_path):
    random = np.random.default_rng(0)
    draws, own = 10 * random.standard_normal(16), random.standard_normal(16)
    run = measured_run(tmp_path, "x", {1.0: draws, 2.0: draws + 3 + own})
    found = change([(run, 1.0, 2.0)], "a/b/heldout")
    assert found.mean == pytest.approx(3 + own.mean())
    assert found.se == pytest.approx(own.std(ddof=1) / 4)
    assert judge(found) == "held"


def test_choices_of_rules_are_those_of_their_definition(digits):
    for run in digits.runs:
        found = {one.rule: one for one in choices(run)}
        times, lows = run.curve("generalization/memorized_fraction_low")
        passed = [i for i, low in enumerate(lows) if low > 0.05]
        kept = times[passed[0] - 1] if passed else times[-1]
        assert found["memorization"].row["kimg"] == kept
        assert found["memorization"].ended == (times[passed[0]] if passed else None)
        assert found["end"].row["kimg"] == run.rows[-1]["kimg"]
        times, errors = run.curve("denoising/mse/heldout")
        assert found["least held-out loss"].row["kimg"] == times[int(np.argmin(errors))]


def test_the_stopping_figure_has_what_each_rule_kept(digits):
    chosen = {run.name: choices(run) for run in digits.runs}
    _, score, _, _ = stops_figure(digits, chosen).axes
    for rule in ("end", "memorization"):
        x, y = drawn(score, rule)
        assert x.tolist() == digits.sizes
        for size, value in zip(digits.sizes, y, strict=True):
            rows = [one.row for run in digits.select(size) for one in chosen[run.name] if one.rule == rule]
            assert value == pytest.approx(np.mean([row["generalization/gl_score"] for row in rows]))


def half_run(folder, name, half, samples, gaussian, mean, about=None, **more):
    place = folder / name
    (place / "samples").mkdir(parents=True)
    tensors = {"network_samples": samples, "gaussian_samples": gaussian}
    save_file(tensors, place / "samples" / "8.safetensors", {"format": "x"} | (about or {}))
    save_file({"mean": mean}, place / "moments.safetensors")
    keys = {"data.half": half, "data.n_train": 50, "model.channels": 8, "data.subset_seed": 0, "run.seed": 0, **more}
    return Record(name, place, keys, True, ({"kimg": 8.0, "epoch": 1.0},))


def test_halves_are_compared_about_the_mean_of_both(tmp_path):
    """Cosines from the formula, one by one, in data units."""
    random = np.random.default_rng(0)
    a, b, g, h = (random.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8) for _ in range(4))
    means = [random.standard_normal(16) * 0.1 for _ in range(2)]
    runs = [half_run(tmp_path, "one", "S1", a, g, means[0]), half_run(tmp_path, "two", "S2", b, h, means[1])]
    (found,) = similarities(runs)
    centre = (means[0] + means[1]) / 2

    def cosine(x, y):
        x, y = (part.reshape(-1) / 127.5 - 1 - centre for part in (x, y))
        return float(x @ y / math.sqrt((x @ x) * (y @ y)))

    pairs = [cosine(x, y) for x, y in zip(a, b, strict=True)]
    assert found.cosine == pytest.approx(np.mean(pairs))
    assert found.se == pytest.approx(stats.sem(pairs))
    assert found.gaussian == pytest.approx(np.mean([cosine(x, y) for x, y in zip(g, h, strict=True)]))
    others = [cosine(a[i], b[j]) for i in range(12) for j in range(12) if i != j]
    assert found.chance == pytest.approx(np.mean(others))
    (axes,) = halves_figure(_study(runs), [found]).axes
    assert drawn(axes, "networks, 8 channels")[1][0] == pytest.approx(found.cosine)
    assert similarities(runs[:1]) == []
    other = half_run(tmp_path, "other", "S2", b, h, means[1], **{"probes.seed": 1})
    assert similarities([runs[0], other]) == []  # other latents


def test_samples_of_classes_are_compared_latent_by_latent(tmp_path):
    """Three classes from the same four latents: means over classes, chance among latents of one class."""
    random = np.random.default_rng(0)
    a, b, g, h = (random.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8) for _ in range(4))
    mean, about = np.zeros(16), {"classes": "[0, 4, 7]"}
    one, two = (half_run(tmp_path, *n, mean, about) for n in (("one", "S1", a, g), ("two", "S2", b, h)))
    (found,) = similarities([one, two])

    def cosine(x, y):
        x, y = (part.reshape(-1) / 127.5 - 1 for part in (x, y))
        return float(x @ y / math.sqrt((x @ x) * (y @ y)))

    latents = [np.mean([cosine(a[4 * c + k], b[4 * c + k]) for c in range(3)]) for k in range(4)]
    assert found.cosine == pytest.approx(np.mean(latents))
    assert found.se == pytest.approx(stats.sem(latents))
    others = [cosine(a[4 * c + i], b[4 * c + j]) for c in range(3) for i in range(4) for j in range(4) if i != j]
    assert found.chance == pytest.approx(np.mean(others))
    turns = [a[4 * c + k] for k in range(4) for c in range(3)][:10]
    assert (found.samples[0] == np.stack(turns)).all()
    for number, classes in enumerate(("[]", "[0, 4, 8]", "[0, 4]")):
        other = half_run(tmp_path, f"other {number}", "S2", b, h, mean, {"classes": classes})
        assert similarities([one, other]) == []
    for classes in ("3", "[0, 1, 2, 3, 4]", "x"):
        damaged = half_run(tmp_path, f"damaged {classes}", "S2", b, h, mean, {"classes": classes})
        with pytest.raises(UserError, match="expected samples of a measurement at"):
            similarities([one, damaged])


def _study(runs):
    from gaussbias.analysis import Study

    return Study("two halves", "halves", tuple(runs), {})


def law(low, high):
    return PowerLaw((low + high) / 2, low, high, low, high, 1.0, 0.1, 12, 0)


@pytest.mark.parametrize(
    ("low", "high", "grows", "even"),
    [
        (0.8, 1.2, "held", "held"),
        (0.3, 0.8, "held", "did not hold"),
        (0.1, 2.9, "held", "undecided"),
        (-0.2, 1.3, "undecided", "undecided"),
        (-0.9, -0.2, "did not hold", "did not hold"),
    ],
)
def test_growth_and_proportion_are_judged_apart(low, high, grows, even):
    claims = about_taus(law(low, high), {10: [Crossing(5.0, "at")]})
    assert [claim.verdict for claim in claims] == [grows, even]


def run_of(name, length, seed=0, finished=True, **more):
    keys = {"module.kind": "edm", "data.source": "digits", "data.n_train": 50, "model.channels": 8, "run.seed": seed,
            "data.subset_seed": seed, "train.kimg": length, **more}  # fmt: skip
    rows = [{"kimg": float(kimg), "epoch": 1.0, "a/b": kimg / 10} for kimg in range(1, length + 1)]
    return Record(name, None, keys, finished, tuple(rows))


def test_a_shorter_run_of_the_same_seed_is_no_other_seed():
    """Ends are those of the longest runs; of unfinished ones nothing is said once any is finished."""
    runs = [run_of("a", 4), run_of("b", 64), run_of("c", 64, seed=1), run_of("d", 8, seed=2, finished=False)]
    (study,) = studies(runs)
    assert [run.name for run in study.ended(50, 8)] == ["b", "c"]
    assert study.value("a/b", 50, 8) == combine([6.4, 6.4], [math.nan] * 2)
    assert sorted(run.name for run in study.longest(50, 8)) == ["b", "c", "d"]


def test_runs_that_are_measured_in_another_way_are_another_study():
    other = {"probes.sampler": "euler"}
    found = studies([run_of("a", 4, **{"probes.sampler": "heun"}), run_of("b", 4, **other)])
    assert [len(study.runs) for study in found] == [1, 1]
    assert len({study.name for study in found}) == 2
    ended = studies([run_of("a", 4), run_of("b", 4, **{"stop.memorization": "end"})])
    assert len(ended) == 2


def test_a_change_is_that_of_runs_that_have_both_times():
    runs = [run_of("a", 4), run_of("b", 2)]
    assert change([(run, 1.0, 4.0) for run in runs], "a/b").runs == 1


def test_claims_are_judged_by_their_interval(digits):
    assert judge(Value(1.0, 0.1, 0.3, 3)) == "held"
    assert judge(Value(-1.0, 0.1, 0.3, 3)) == "did not hold"
    assert judge(Value(0.2, 0.1, 0.3, 3)) == "undecided"
    assert judge(Value(math.nan, math.nan, math.nan, 0)) == "undecided"
    claims = about_sizes(digits)
    assert len(claims) == 5
    assert all(claim.verdict == "held" for claim in claims)
    upside_down = _study([_mirrored(run) for run in digits.runs])
    assert [claim.verdict for claim in about_sizes(upside_down)] == ["did not hold"] * 5


def _mirrored(run):
    """With the values of a run of another size: trends turn around."""
    sizes = [25, 50, 100, 140, 200, 1400]
    keys = {**run.keys, "data.n_train": sizes[len(sizes) - 1 - sizes.index(run.images)]}
    return Record(run.name, None, keys, run.finished, run.rows)


@pytest.fixture(scope="module")
def drawn_sections(digits, cifar, tmp_path_factory):
    """Of each study of the table."""
    folder = tmp_path_factory.mktemp("figures")
    return [(study, *sections(study, folder)) for study in (cifar, digits)]


@pytest.mark.long
def test_a_table_alone_gives_all_sections_but_those_of_pictures(drawn_sections):
    for study, there, missing in drawn_sections:
        assert missing == []
        found = {section.title: section for section in there}
        expected = {
            "Figure 1: data-set size",
            "Figure 2: which denoiser it is",
            "Figure 3: training time",
            "Phase diagrams",
            "How long until it memorises",
            "Early stopping",
        } | ({"Figure 3: capacity"} if len(study.widths) > 1 else set())
        assert set(found) == expected
        for section in found.values():
            assert {picture.suffix for picture in section.pictures} == {".png", ".pdf"}
            assert all(picture.stat().st_size > 1000 for picture in section.pictures)
            assert all(claim.found and claim.text for claim in section.claims)


class Page(HTMLParser):
    """Sources of pictures, targets of links, and text."""

    def __init__(self, text):
        super().__init__()
        self.pictures, self.links, self.names, self.text = [], [], set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert not ({"href", "src"} & given.keys()) or tag in ("a", "img"), tag
        self.pictures += [given["src"]] if tag == "img" else []
        self.links += [given["href"]] if tag == "a" else []
        self.names |= {given["id"]} if "id" in given else set()

    def handle_data(self, data):
        self.text += data


@pytest.mark.long
def test_the_page_is_one_file_that_says_what_held(table, drawn_sections, tmp_path):
    records = read_table(table)
    found = [study for study, _, _ in drawn_sections]
    there = [section for _, part, _ in drawn_sections for section in part]
    parsed = Page(page("<a & b>", found, there, records, {tmp_path / "<x>": "it is <damaged>"}, ["small & short"]))
    files = [picture for section in there for picture in section.pictures if picture.suffix == ".png"]
    assert [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in parsed.pictures] == [
        file.read_bytes() for file in files
    ]
    assert {link.removeprefix("#") for link in parsed.links} <= parsed.names
    for text in ("<a & b>", "it is <damaged>", "small & short", "32 runs, 32 of them finished"):
        assert text in parsed.text
    for section in there:
        for claim in section.claims:
            assert f"{claim.verdict}: {claim.text}" in parsed.text
            assert claim.found in parsed.text
    assert "0.038(1)" in parsed.text  # the GL score of N = 25 in the table of values


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "expected a run folder, or a folder of runs, found neither at"),
        (lambda folder: (folder / "x").mkdir(parents=True) or (folder / "x" / "config.yaml").touch(), "found none"),
    ],
)
def test_a_mistake_is_one_line(make, said, tmp_path, capsys):
    make(tmp_path / "runs")
    assert main([str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_table_that_is_none_is_one_line(tmp_path):
    (tmp_path / "x.csv").write_text("run,finished,kimg\na,true,x\n")
    with pytest.raises(UserError, match="expected a table of runs at"):
        read_table(tmp_path / "x.csv")
