"""Theories beside a network: samples from the same latents, pictures, tables, pages, and the command without one."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import SMALL
from safetensors import safe_open
from scipy import stats

from gaussbias import Ruler, dashboard, measure
from gaussbias.analysis import Record
from gaussbias.analysis.theories import best_theory, compared, not_of_theories, paired, theories_in
from gaussbias.catalogue import read_extra
from gaussbias.config import load as load_config
from gaussbias.denoisers import Denoiser, LinearDenoiser
from gaussbias.denoisers.theories import EmpiricalDenoiser, LocalDenoiser, WienerDenoiser, theory
from gaussbias.figures import curves, ladder
from gaussbias.figures import theories as figures
from gaussbias.figures.samples import read_samples
from gaussbias.fit import main as fit
from gaussbias.history import Measurement, last, measurement_files, read_measurement, write_measurement
from gaussbias.lens.__main__ import main as lens
from gaussbias.metrics.pairing import Likeness, likeness, median
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import BetweenProbe
from gaussbias.probes.likeness import has_samples
from gaussbias.report import theories as report_theories
from gaussbias.report.__main__ import main as report
from gaussbias.sampling import sample
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import with_error
from gaussbias.tables.levels import print_table
from gaussbias.tables.summary import summary
from gaussbias.theories.__main__ import main as command

SIGMAS = "probes.sigmas=[1.5,0.47,0.117]"
THEORIES = "[bootstrap,mixture:5,local:1,local:3,wiener:3]"
NAMES = ["gaussian", "empirical", "mixture-5", "local-1", "local-3", "wiener-3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three measurements that is compared with theories, with pictures."""
    root = tmp_path_factory.mktemp("compared")
    keys = [*SMALL, SIGMAS, f"probes.theories={THEORIES}", "probes.samples=20", "data.n_train=100", "train.kimg=0.2"]
    assert fit([*keys, "run.pictures=live", f"run.root={root}", "run.name=x"]) == 0
    return root / "x"


# samples from the same latents


def test_likeness_is_correlation_and_determination(random):
    a, b = torch.randn(2, 6, 3, 4, 4, generator=random)
    found = likeness(b, a)
    for i in range(6):
        x, y = a[i].flatten().double().numpy(), b[i].flatten().double().numpy()
        assert float(found["r"][i]) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
        assert float(found["r2"][i]) == pytest.approx(1 - ((x - y) ** 2).sum() / (y.size * y.var()), abs=1e-12)
    same = likeness(b, b)
    assert same["r"].tolist() == pytest.approx([1] * 6)
    assert same["r2"].tolist() == pytest.approx([1] * 6)
    # a shift of all pixels leaves r and lowers R2; the mean of a sample itself explains none of it
    assert likeness(b, b + 1)["r"].tolist() == pytest.approx([1] * 6, abs=1e-6)
    flat = b.double().mean((1, 2, 3), keepdim=True).expand(b.shape)
    assert likeness(b.double(), flat)["r2"].tolist() == pytest.approx([0] * 6, abs=1e-12)


@pytest.mark.parametrize("count", [6, 10, 17, 200])
def test_the_median_has_the_interval_of_the_sign_test(count, random):
    values = torch.randn(count, generator=random, dtype=torch.float64)
    middle, low, high = median(values).tolist()
    ordered = sorted(values.tolist())
    assert middle == pytest.approx(float(np.median(ordered)))
    below, above = ordered.index(low), ordered.index(high)
    assert below == count - 1 - above
    missed = stats.binom.cdf(below, count, 0.5)  # at most so many values below the median
    assert missed <= 0.025 < stats.binom.cdf(below + 1, count, 0.5)


def test_few_values_have_no_interval_of_their_median():
    middle, low, high = median(torch.tensor([3.0, 1.0, 2.0])).tolist()
    assert middle == 2
    assert math.isnan(low)
    assert math.isnan(high)


def test_likeness_is_a_mean_over_samples(random):
    a, b = torch.randn(2, 20, 1, 4, 4, generator=random)
    metric = Likeness(20)
    metric.update(b[:12], a[:12])
    metric.update(b[12:], a[12:], 12)
    values, each = metric.compute(), likeness(b, a)
    for name in ("r", "r2"):
        assert float(values[name]) == pytest.approx(float(each[name].mean()))
        assert float(values[f"{name}_se"]) == pytest.approx(float(each[name].std()) / 20**0.5)
    assert float(values["r_median"]) == pytest.approx(float(each["r"].quantile(0.5)))


@pytest.fixture(scope="module")
def ruler(digits):
    theories = {"local-3": theory("local", 3), "wiener-3": theory("wiener", 3)}
    how = {"draws": 32, "sigmas": [1.5, 0.47], "samples": 150, "sampler_sigmas": [10.0, 1.0, 0.1]}
    return Ruler(digits[:100], digits[1400:], theories=theories, theory_samples=140, **how)


def test_samples_of_a_theory_are_its_own(ruler, digits):
    """Beyond a block, and beyond those that pictures show."""
    machine = LocalDenoiser(digits[:100], 3)
    measured = ruler(machine)
    for end in ("r", "r2", "r_median", "r_median_low"):
        assert measured[f"theory/local-3/samples_{end}"].value == pytest.approx(1, abs=1e-5)
    bank = ruler.bank
    latents = torch.cat([bank.latents(0), bank.latents(1)])[:140]
    wiener = WienerDenoiser(estimate(digits[:100]), 3)
    own, other = (sample(one, latents, bank.sampler_sigmas, bank.sampler) for one in (machine, wiener))
    each = likeness(own, other)
    found = measured["theory/wiener-3/samples_r"]
    assert found.value == pytest.approx(float(each["r"].mean()), abs=1e-6)
    assert found.se == pytest.approx(float(each["r"].std()) / 140**0.5, rel=1e-4)
    assert measured["theory/wiener-3/samples_r2"].value == pytest.approx(float(each["r2"].mean()), abs=1e-5)
    assert measured["theory/empirical/samples_r"].value < 0.999
    assert ruler(EmpiricalDenoiser(digits[:100]))["theory/empirical/samples_r"].value == pytest.approx(1, abs=1e-5)
    assert ruler(ruler.references.gaussian)["theory/gaussian/samples_r2"].value == pytest.approx(1, abs=1e-5)


def test_a_surrogate_without_the_levels_of_the_sampler_has_no_samples(ruler):
    levels = torch.tensor([1.5, 0.47])
    surrogate = LinearDenoiser(levels, torch.zeros(2, 64, 64), torch.zeros(2, 64), (1, 8, 8))
    assert not has_samples(surrogate, ruler.references)
    whole = LinearDenoiser(
        torch.tensor(ruler.bank.sampler_sigmas), torch.zeros(3, 64, 64), torch.zeros(3, 64), (1, 8, 8)
    )
    assert has_samples(whole, ruler.references)


def _compared_by(images):
    theories = {"local-3": theory("local", 3), "mixture-5": theory("mixture", 5)}
    how = {"draws": 64, "sigmas": [1.5, 0.47], "samples": 150, "sampler_sigmas": [10.0, 1.0, 0.1]}
    ruler = Ruler(images[:100], images[200:260], theories=theories, theory_samples=140, also=[BetweenProbe], **how)
    for _ in range(2):  # what is kept of the first measurement serves the second one
        measured = ruler(lambda x, sigma: torch.tanh(x))
    return measured.row


def _share(rank, folder, images):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(_compared_by(images), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_processes_share_out_theories(digits, tmp_path):
    torch.multiprocessing.spawn(_share, (str(tmp_path), digits), nprocs=2)
    rows = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    assert rows[0] == rows[1]
    alone = _compared_by(digits)
    assert rows[0].keys() == alone.keys()
    for key, value in alone.items():  # products of float32 depend on how many there are, in their last digits
        assert rows[0][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


# a run


def test_a_run_logs_what_theories_explain(run):
    values = last(run)
    for name in NAMES:
        assert values[f"theory/{name}/unexplained/heldout/sigma_0p47"] > 0
        assert values[f"theory/{name}/unexplained/heldout/sigma_0p47_se"] > 0
        assert -1 <= values[f"theory/{name}/samples_r_median_low"] <= values[f"theory/{name}/samples_r_median"] <= 1
        assert values[f"theory/{name}/samples_r_se"] > 0
    # distances and errors that have another name are logged under that alone
    assert not any(key.startswith(("theory/gaussian/mse", "theory/empirical/rmse")) for key in values)
    own = read_measurement(measurement_files(run)[-1])
    assert set(compared(own)[0]) == set(NAMES)
    extra = read_extra(run)
    assert theories_in(extra) == NAMES
    assert not_of_theories(extra) == []


def test_a_run_that_is_done_keeps_no_values_of_theories(run):
    assert not RunFolder(run).theories.exists()


def test_values_of_theories_are_found_again_when_a_run_goes_on(tmp_path, monkeypatch):
    seen = []
    plain = LocalDenoiser.forward_grid
    monkeypatch.setattr(LocalDenoiser, "forward_grid", lambda *call: (seen.append(len(call[1])), plain(*call))[1])
    keys = [*SMALL, SIGMAS, "probes.theories=[local:3]", "probes.samples=2", f"run.root={tmp_path}", "run.name=x"]
    # as if it had been stopped before its end
    monkeypatch.setattr("gaussbias.training.run.clear", lambda folder: None)
    assert fit([*keys, "train.kimg=0.1"]) == 0
    assert sum(seen) == 2 * 32  # all draws of both pools, once for two measurements
    files = list(RunFolder(tmp_path / "x").theories.iterdir())
    assert len(files) == 2 * 16
    before = last(tmp_path / "x")
    seen.clear()
    monkeypatch.undo()
    monkeypatch.setattr(LocalDenoiser, "forward_grid", lambda *call: (seen.append(len(call[1])), plain(*call))[1])
    assert fit([*keys, "train.kimg=0.2", "--resume"]) == 0
    assert seen == [1]
    after = last(tmp_path / "x")
    key = "theory/local-3/mse/heldout/sigma_0p47"
    assert after["kimg"] > before["kimg"]
    assert after[key] == before[key]
    assert not RunFolder(tmp_path / "x").theories.exists()


def test_samples_of_theories_are_rows_of_the_picture(run, monkeypatch):
    file = sorted(RunFolder(run).samples.iterdir())[-1]
    *_, tensors = read_samples(file)
    rows = []
    monkeypatch.setattr("gaussbias.figures.samples.draw_tiles", lambda axes, tiles, labels: rows.append(labels))
    figures_drawn = __import__("gaussbias.figures.samples", fromlist=["draw_samples"])
    figures_drawn.draw_samples([file], run / "figures" / "again.png")
    assert set(rows[0][4:]) == {"mixture-5", "local-1", "local-3", "wiener-3"}
    assert tensors["by/local-3"].shape == tensors["gaussian"].shape == (10, 1, 8, 8)
    assert tensors["path_by/local-3"].shape == tensors["gaussian_path"].shape
    assert len(rows[1]) == 2 * (3 + 4)


def test_the_summary_has_a_line_for_each_theory(run):
    text = summary(run)
    assert "theories on held-out images    not explained        error   samples: r     median r" in text
    for title in ("D_G", "D_M", "mixture-5", "local-3"):
        assert any(line.startswith(f"  {title} ") for line in text.split("theories on held-out")[1].splitlines())
    assert "nearest D_h: h" in text
    assert "error of the best theory" in text
    assert "figures/theories_kimg.png" in text


def test_pictures_are_drawn_live_and_at_the_end(run):
    for name in ("theories.png", "theories_kimg.png"):
        assert (RunFolder(run).figures / name).stat().st_size > 20_000


def test_the_picture_of_levels_has_a_line_for_each_theory(run, monkeypatch):
    seen = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: seen.update(figure=figure))
    figures.draw_theories([measurement_files(run)[-1]], Path("unused.png"))
    panels = seen["figure"].axes
    assert len(panels) == 2 * 4  # shares, errors, h and k, of two pools
    values = last(run)
    lines = {line.get_label(): line for line in panels[4].get_lines()}
    assert set(lines) == {
        "$D_G$",
        "$D_M$",
        "mixture-5",
        "local-1",
        "local-3",
        "wiener-3",
        "nearest $D_h$",
        "any affine map, at best",
    }
    assert panels[4].get_title(loc="left").endswith("heldout")
    drawn = dict(zip(*lines["local-3"].get_data(), strict=True))
    assert drawn[0.47] == pytest.approx(values["theory/local-3/unexplained/heldout/sigma_0p47"])
    floor = dict(zip(*lines["any affine map, at best"].get_data(), strict=True))
    assert floor[0.47] == pytest.approx(1 - values["ladder/r2/heldout/sigma_0p47"])
    errors = {line.get_label(): dict(zip(*line.get_data(), strict=True)) for line in panels[5].get_lines()}
    gaussian = values["denoising/gaussian_mse/heldout/sigma_0p47"]
    assert errors["network"][0.47] == pytest.approx(values["denoising/mse/heldout/sigma_0p47"] / gaussian)
    assert errors["best theory"][0.47] == pytest.approx(values["theory/best_mse/heldout/sigma_0p47"] / gaussian)
    assert panels[6].get_lines()[0].get_ydata()[1] == values["between/h/heldout/sigma_0p47"]


def test_the_map_has_the_best_theory_of_each_cell(run, monkeypatch):
    seen = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: seen.update(figure=figure))
    figures.draw_theory_times([run], Path("unused.png"))
    axes = seen["figure"].axes[3]
    times = [read_measurement(file) for file in measurement_files(run)]
    (image,) = axes.get_images()
    looks = figures._looks(compared(*times)[0])
    assert len({colour for colour, _ in looks.values()}) == len(looks)
    for column, measurement in enumerate(times):
        for row, sigma in enumerate((1.5, 0.47, 0.117)):
            found = best_theory(measurement, "heldout", sigma)
            cell = image.get_array()[row, column]
            if found.share >= 1:
                assert tuple(cell) == (1, 1, 1, 1)
            else:
                assert cell[3] == (figures.SURE if found.sure else figures.UNSURE)
                assert tuple(cell[:3]) == pytest.approx(figures.to_rgb(looks[found.name][0]))
    assert len(axes.texts) == 3 * len(times)


def test_the_best_theory_is_sure_if_all_others_are_worse_draw_by_draw(random):
    noise = torch.randn(16, generator=random, dtype=torch.float64).numpy()
    values = {"a": 0.30, "b": 0.31, "c": 0.5}
    # all vary far more than they differ, but together
    blocks = {name: value + noise for name, value in values.items()}
    key = "theory/{}/unexplained/heldout/sigma_0p47"

    def at(blocks):
        values = {key.format(name): float(part.mean()) for name, part in blocks.items()}
        named = {key.format(name): part for name, part in blocks.items()}
        return Measurement(1.0, [0.47], values, dict.fromkeys(values, "heldout"), {}, named)

    blocks["b"] = blocks["b"] + 1e-3 * torch.randn(16, generator=random, dtype=torch.float64).numpy()
    best = best_theory(at(blocks), "heldout", 0.47)
    assert best.name == "a"
    assert best.sure
    value, se = paired(at(blocks), key.format("b"), key.format("a"))
    assert value == pytest.approx(0.01, abs=1e-3)
    assert se < 1e-3
    blocks["b"] = blocks["a"] + 0.01 + torch.randn(16, generator=random, dtype=torch.float64).numpy()
    blocks["b"] += blocks["a"].mean() + 0.01 - blocks["b"].mean()
    assert not best_theory(at(blocks), "heldout", 0.47).sure
    assert best_theory(at({}), "heldout", 0.47) is None


def test_curves_and_ladders_leave_theories_to_their_own_pictures(run, monkeypatch):
    seen = {}
    monkeypatch.setattr(curves, "save", lambda figure, path: seen.update(figure=figure))
    curves.draw_curves([run], Path("unused.png"))
    titles = [axes.get_title(loc="left") for axes in seen["figure"].axes if axes.get_title(loc="left")]
    assert titles[-2:] == ["Line to beat, held-out", "Between memoriser and Gaussian"]
    monkeypatch.setattr(ladder, "save", lambda figure, path: seen.update(ladder=figure))
    ladder.draw_ladder([measurement_files(run)[-1]], Path("unused.png"))
    labels = {line.get_label() for axes in seen["ladder"].axes for line in axes.get_lines()}
    assert not any("local" in label for label in labels)


def test_the_dashboard_has_a_section_of_theories(run):
    shown = dashboard.layout(karras_sigmas(10), read_extra(run))
    assert "Further values" not in shown
    keys = {key for panel in shown["Theories"] for key in panel.keys}
    values = last(run)
    for name in NAMES:
        assert f"theory/{name}/unexplained/heldout" in keys
        assert f"theory/{name}/samples_r" in keys
    assert {key for key in keys if "sigma" not in key} <= set(values)
    assert "Theories" not in dashboard.layout(karras_sigmas(10))


def test_a_report_says_which_formula_explains_a_network(run, capsys):
    assert report([str(run), "--out", str(run.parent / "report")]) == 0
    said = capsys.readouterr().out
    assert "A network of N = 100 denoises unseen images better than every formula it is compared with." in said
    text = (run.parent / "report" / "report.html").read_text()
    assert "Which formula explains the network" in text
    assert "least unexplained by" in text
    best = best_theory(read_measurement(measurement_files(run)[-1]), "heldout", 0.47)
    assert f"<td>0.47</td><td>{best.name} {best.share:.3g}" in text.replace("D_G", "gaussian").replace(
        "D_M", "empirical"
    )
    assert len(list((run.parent / "report" / "figures").glob("theories*"))) == 4


@pytest.fixture
def told(tmp_path, random):
    """Claims on a run with values that are given: its error, the best theory's, and what two theories leave."""

    def claims(mse, best, local, wiener):
        values = {}
        for sigma, place in (("", 0), ("/sigma_1p5", 0), ("/sigma_0p47", 1)):
            for name, pair in (
                ("denoising/mse", mse),
                ("theory/best_mse", best),
                ("theory/local-3/unexplained", local),
                ("theory/wiener-3/unexplained", wiener),
                ("theory/linear/unexplained", (0.001, 0.001)),
            ):
                values[f"{name}/heldout{sigma}"] = sum(pair) / 2 if not sigma else pair[place]
        noise = torch.randn(16, generator=random, dtype=torch.float64).numpy()
        noise -= noise.mean()
        blocks = {
            key: value + noise + 1e-4 * (torch.arange(16).double().numpy() - 7.5) * (len(key) % 3)
            for key, value in values.items()
        }
        pools = dict.fromkeys(values, "heldout")
        file = tmp_path / "probes" / "1.safetensors"
        write_measurement(file, Measurement(1.0, [1.5, 0.47], values, pools, {}, blocks))
        runs = {100: [Record("x", tmp_path, {}, True, ())]}
        return report_theories.claims(runs), report_theories.table(runs)

    return claims


def test_claims_are_judged_by_their_signs(told):
    (beats, early), (_, rows) = told(mse=(0.1, 0.3), best=(0.2, 0.4), local=(0.2, 0.2), wiener=(0.4, 0.1))
    assert beats.verdict == "held"
    assert "0.1" in beats.found
    assert "better at sigma 1.5, 0.47" in beats.found
    assert early.verdict == "held"  # 0.2 against 0.25
    assert rows == [("100", "1.5", "local-3 0.2", "0.500"), ("100", "0.47", "wiener-3 0.1", "0.750")]
    (beats, early), _ = told(mse=(0.3, 0.3), best=(0.2, 0.4), local=(0.5, 0.5), wiener=(0.4, 0.1))
    assert beats.verdict == "undecided"
    assert "better at sigma 0.47; worse at sigma 1.5" in beats.found
    assert early.verdict == "did not hold"
    (beats, _), _ = told(mse=(0.3, 0.5), best=(0.2, 0.4), local=(0.5, 0.5), wiener=(0.4, 0.1))
    assert beats.verdict == "did not hold"


def test_nothing_is_early_before_a_theory_explains_something(told):
    claims, _ = told(mse=(0.1, 0.3), best=(0.2, 0.4), local=(2.0, 2.0), wiener=(2.0, 1.0))
    assert len(claims) == 1


def test_a_theory_without_the_levels_of_the_sampler_has_no_samples(digits):
    class Narrow(Denoiser):
        def forward(self, x, sigma):
            if float(torch.as_tensor(sigma).max()) > 2:
                raise ValueError("Expected sigma up to 2.")
            return x / 2

    theories = {"narrow": lambda images, moments, flip: Narrow()}
    how = {"draws": 32, "sigmas": [1.5, 0.47], "samples": 20, "sampler_sigmas": [10.0, 1.0, 0.1]}
    measured = Ruler(digits[:50], digits[1400:], theories=theories, **how)(lambda x, sigma: x)
    assert measured["theory/narrow/rmse/heldout"].value > 0
    assert not any(name.startswith("theory/narrow/samples") for name in measured)
    assert measured["theory/empirical/samples_r"].se > 0


def test_too_few_samples_have_no_interval(digits):
    how = {"draws": 32, "sigmas": [1.5], "samples": 4, "sampler_sigmas": [10.0, 1.0]}
    theories = {"wiener-1": theory("wiener", 1)}
    measured = Ruler(digits[:50], digits[1400:], theories=theories, **how)(lambda x, sigma: x / 2)
    assert "theory/wiener-1/samples_r_median" in measured
    assert "theory/wiener-1/samples_r_median_low" not in measured
    none = Ruler(digits[:50], digits[1400:], theories=theories, theory_samples=0, **how)(lambda x, sigma: x / 2)
    assert not any("samples_r" in name for name in none if name.startswith("theory/"))


def test_tables_of_raw_weights_have_their_own_values(run):
    values = {
        "theory/local-3/unexplained/heldout/sigma_0p47": 0.5,
        "raw/theory/local-3/unexplained/heldout/sigma_0p47": 0.25,
    }
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gaussbias.tables.levels.say", said.append)
        settings = load_config(None, ["probes.sigmas=[0.47]", "probes.weights=[raw,ema]"])
        for weights in ("raw", "ema"):
            print_table(settings, values, weights, "heldout", extra=read_extra(run))
    assert "0.25" in said[1]
    assert "0.5" not in said[1]
    assert "0.5" in said[3]


def test_measuring_afterwards_shows_theories(run, capsys):
    assert measure.main([str(run), "probes.draws=32", "probes.theories=[wiener:5,bootstrap]"]) == 0
    said = capsys.readouterr().out
    assert "theories, heldout, ema weights" in said
    assert "but for wiener-5" in said
    assert "theories.png" in said


# the lens


def test_the_lens_takes_theories(run, tmp_path, capsys):
    keys = [SIGMAS, "probes.draws=32", "probes.samples=16", "probes.sampler_steps=4"]
    given = [str(run), "--data", str(run), "--out", str(tmp_path / "out"), *keys]
    assert lens([*given, "--theories", "bootstrap,local:3,"]) == 0
    assert "but for local-3" in capsys.readouterr().out
    page = (tmp_path / "out" / "lens.html").read_text()
    assert "Theories, on held-out images" in page
    assert "between D_M (0) and D_G (1)" in page
    folder = tmp_path / "out" / "x"
    assert (folder / "figures" / "theories.png").exists()
    with safe_open(next((folder / "samples").glob("*.safetensors")), "numpy") as opened:
        assert "by/local-3" in set(opened.keys())
    with (tmp_path / "out" / "lens.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["theory/local-3/samples_r_median"]) > 0
    assert not RunFolder(tmp_path / "out").theories.exists()
    elsewhere = ["--out", str(tmp_path / "other"), *keys]
    assert lens([str(run), "--data", str(run), *elsewhere, "--theories", "windows:3"]) == 2
    assert "probes.theories: expected package.module:function, bootstrap" in capsys.readouterr().err


# theories alone


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the command leaves for two windows, a mixture and D_h, on 100 digits."""
    out = tmp_path_factory.mktemp("alone") / "out"
    keys = ["data.n_train=100", "data.n_heldout=100", "probes.draws=32", "probes.sigmas=[1.5,0.47,0.117]"]
    assert (
        command(["--data", "digits", "--theories", "bootstrap,mixture:3,local:1,local:3", "--out", str(out), *keys])
        == 0
    )
    return out


def test_theories_alone_have_the_errors_that_a_run_logs(alone, tmp_path):
    with (alone / "theories.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = {row["theory"] for row in rows}
    assert names == {"gaussian", "empirical", "mixture-3", "local-1", "local-3"} | {
        f"bootstrap-0p{tenth}" for tenth in range(1, 10)
    }
    assert {row["family"] for row in rows if row["theory"].startswith("bootstrap")} == {"bootstrap"}
    keys = [*SMALL, SIGMAS, "probes.theories=[mixture:3,local:3]", "data.n_train=100", "data.n_heldout=100"]
    assert fit([*keys, "train.kimg=0.04", f"run.root={tmp_path}", "run.name=x"]) == 0
    values = last(tmp_path / "x")
    for row in rows:
        end = f"heldout/sigma_{row['sigma'].replace('.', 'p')}"
        if row["theory"] in ("mixture-3", "local-3"):
            assert float(row["mse"]) == pytest.approx(values[f"theory/{row['theory']}/mse/{end}"], rel=1e-6)
            assert float(row["mse_se"]) == pytest.approx(values[f"theory/{row['theory']}/mse/{end}_se"], rel=1e-4)
        if row["theory"] in ("gaussian", "empirical"):
            assert float(row["mse"]) == pytest.approx(values[f"denoising/{row['theory']}_mse/{end}"], rel=1e-6)


def test_theories_alone_make_a_page(alone):
    page = (alone / "theories.html").read_text()
    for text in ("The best of each family", "D_G", "D_M", "bootstrap", "local-3", "held-out", "data:image/png"):
        assert text in page
    assert {file.name for file in alone.iterdir()} == {"theories.html", "theories.csv", "figures"}
    assert {file.name for file in (alone / "figures").iterdir()} == {"errors.png", "samples.png"}


def test_the_best_of_each_family_is_told(capsys, tmp_path):
    keys = ["data.n_train=50", "data.n_heldout=100", "probes.draws=32", "probes.sigmas=[0.47,0.117]"]
    assert command(["--data", "digits", "--theories", "wiener:1,wide=wiener:3", "--out", str(tmp_path), *keys]) == 0
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.strip().startswith("wiener")]
    with (tmp_path / "theories.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["family"] == "wiener"]
    cells = line.split()
    for place, sigma in ((1, "0.47"), (3, "0.117")):
        best = min((row for row in rows if row["sigma"] == sigma), key=lambda row: float(row["mse"]))
        assert cells[place] == with_error(float(best["mse"]), float(best["mse_se"]))
        assert cells[place + 1] == {"wiener-1": "1", "wide": "wide"}[best["theory"]]


def test_several_of_each_family_are_tried_by_default(capsys, tmp_path, monkeypatch):
    keys = ["data.n_train=20", "data.n_heldout=50", "probes.draws=32", "probes.sigmas=[0.47]"]
    assert command(["--data", "digits", "--out", str(tmp_path / "a"), *keys]) == 0
    said = capsys.readouterr().out
    assert all(family in said for family in ("bootstrap", "mixture", "local", "wiener", "smoothed"))
    monkeypatch.setattr("gaussbias.theories.comparing.WORK", 1)
    assert command(["--data", "digits", "--out", str(tmp_path / "b"), *keys]) == 0
    said = capsys.readouterr().out
    assert "local machines are left out: each takes about" in said
    assert "local machines are left out" in (tmp_path / "b" / "theories.html").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--data", "nowhere"], "--data: expected one of"),
        (["--data", "digits", "--theories", "windows:3"], "probes.theories: expected package.module:function"),
        (["--data", "digits", "--theories", "local:2"], "Expected an odd `window`"),
        (["--data", "digits", "--theories", "local:3,local:3"], "expected different names"),
        (["--data", "digits", "model.channels=3"], "expected a key of data.*, train.accelerator, or of probes.*"),
        (["--data", "digits", "probes.pools=[train]"], "one that has an effect here: draws, block, sigmas"),
        ([], "--data"),
    ],
)
def test_mistakes_are_one_line(given, said, tmp_path, capsys):
    assert command([*given, *(["--out", str(tmp_path)] if given else [])]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
