"""A probe, a theory and a source of one's own: a file and a line each, and all that shows values shows theirs."""

import csv
import json
import re
import sys

import numpy as np
import pytest
import torch
from runs import SMALL

from gaussbias import Ruler, config, dashboard
from gaussbias.analysis.theories import not_of_theories, theories_in
from gaussbias.catalogue import read_extra, theory_parts
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser
from gaussbias.figures import curves
from gaussbias.fit import main as fit
from gaussbias.history import last, read_measurement
from gaussbias.lens.__main__ import main as lens
from gaussbias.measure import main as measure
from gaussbias.modules import build_data
from gaussbias.report.__main__ import main as report
from gaussbias.tables.summary import summary

MINE = '''
import numpy as np
import torch

from gaussbias.catalogue import IMAGES, POOLS, Entry
from gaussbias.denoisers import Denoiser
from gaussbias.probes import MeanProbe, SampleProbe
from gaussbias.metrics import BlockMetric

CONTRAST = Entry(
    "contrast/ratio", "contrast", "`||D - mean(D)|| / ||x0 - mean(x0)||`", low=0, pools=IMAGES, levels=True, ideal=1.0
)
BRIGHTNESS = Entry("samples/brightness", "brightness of samples", "mean of all pixels", unit="data units")


class Contrast(MeanProbe):
    """How much of the contrast of clean images is left."""

    entries = (CONTRAST,)

    def of_draws(self, batch, denoiser):
        clean = batch.x0.flatten(1).std(1)
        return {CONTRAST.name: batch.output.flatten(2).std(2) / clean}


class Brightness(SampleProbe):
    """The mean of all pixels of samples."""

    entries = (BRIGHTNESS,)

    def __init__(self, references):
        super().__init__(references)
        self.metric = Brightest(self.bank.samples, 1, ("brightness",))

    def metrics(self):
        return (self.metric,)

    def measure(self, batch, denoiser):
        self.metric.update(batch.samples, batch.start)

    def result(self):
        self.metric.compute()
        return {BRIGHTNESS.name: self.metric.estimates["brightness"].at(0)}


class Brightest(BlockMetric):
    def update(self, samples, start):
        rows = slice(start, start + len(samples))
        self.fill(rows, {"brightness": samples.double().flatten(1).mean(1)[:, None]})


class Shrunk(Denoiser):
    """D(x, sigma) = x / (1 + sigma^2): the Gaussian of white images."""

    def forward(self, x, sigma):
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.ndim - 1))
        return x / (1 + level.square())


def white(images, moments, flip):
    return Shrunk()


def checks(path):
    """Checkerboards of random sizes and brightness."""
    random = np.random.default_rng(0)
    at = np.indices((8, 8)).sum(0)
    sizes, light = random.integers(1, 4, 500), random.integers(60, 255, 500)
    pixels = [((at // size % 2) * value).astype(np.uint8) for size, value in zip(sizes, light)]
    return torch.from_numpy(np.stack(pixels))[:, None]


def nothing(*arguments):
    return 3


def broken(*arguments):
    raise RuntimeError("no such thing")
'''
OWN = ["probes.also=[mine:Contrast,mine:Brightness]", "probes.theories=[white=mine:white]"]
KEYS = (
    "contrast/ratio/heldout",
    "samples/brightness",
    "theory/white/unexplained/heldout",
    "theory/white/rmse/heldout",
    "theory/white/mse/heldout",
)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The file of a user, on the path."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MINE)
    sys.path.insert(0, str(folder))
    yield __import__("mine")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def run(mine, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    keys = [*SMALL, *OWN, "data.source=mine:checks", "train.kimg=0.2", "probes.first_kimg=0.1", f"run.root={root}"]
    assert fit([*keys, "run.name=x", "run.wandb=offline", "probes.sigmas=[10,1,0.3]"]) == 0
    return root / "x"


def test_their_values_are_logged_with_errors(run, mine):
    values = last(run)
    for key in KEYS:
        assert np.isfinite(values[key])
        assert values.get(f"{key}_se", 0) > 0 or key == "samples/brightness"  # of too few samples for an error
    assert "contrast/ratio/train/sigma_0p3" in values
    assert "theory/white/rmse/train" in values
    blocks = read_measurement(sorted((run / "probes").glob("*"))[-1]).blocks
    assert blocks["contrast/ratio/heldout"].shape == (16,)
    # by hand: at sigma 1 the theory halves the noisy image
    stored = config.load(run / "config.yaml")
    data = build_data(stored)
    errors = []
    for number in range(data.bank.blocks):
        x0, eps = data.bank.draw("heldout", number)
        errors.append(((x0 + eps) / 2 - x0).square().flatten(1).mean(1).double().mean())
    means = torch.stack(errors)  # less the noise that D_G's error foretells
    off = values["theory/white/mse/heldout/sigma_1"] - float(means.mean())
    assert 0 < abs(off) < 4 * float(means.std()) / len(means) ** 0.5


def test_weights_and_biases_has_them(run):
    (binary,) = run.glob("wandb/offline-run-*/*.wandb")
    content = binary.read_bytes()
    assert all(key.encode() in content for key in KEYS)


def test_the_final_table_shows_them(run):
    text = summary(run)
    for title in ("brightness of samples", "contrast", "white"):
        assert f"  {title} " in text


def test_figures_show_them(run):
    extra = read_extra(run)
    others = not_of_theories(extra)
    assert [entry.name for entry in others] == ["contrast/ratio", "samples/brightness"]
    assert theories_in(extra) == ["gaussian", "empirical", "white"]
    titles = [curves.further_panel(entry).title for entry in others]
    assert titles == ["Contrast, held-out", "Brightness of samples"]
    plain = curves.draw_curves([run], run / "figures" / "again.png").stat().st_size
    (run / "catalogue.json").rename(run / "away.json")
    try:
        assert curves.draw_curves([run], run / "figures" / "again.png").stat().st_size < 0.9 * plain
    finally:
        (run / "away.json").rename(run / "catalogue.json")


def test_the_dashboard_has_panels_for_them(run, tmp_path, capsys):
    out = tmp_path / "dashboard.json"
    assert dashboard.main(["--project", "p", "--runs", str(run), "--dry-run", "--out", str(out)]) == 0
    text = out.read_text()
    assert "Further values" in text
    assert all(key in text for key in KEYS if "rmse" not in key)
    assert dashboard.main(["--project", "p", "--runs", str(tmp_path / "none"), "--dry-run"]) == 2
    assert "--runs: expected run folders, found none at" in capsys.readouterr().err


@pytest.mark.long
def test_the_report_has_columns_for_them(run, tmp_path):
    assert report([str(run), "--out", str(tmp_path / "report")]) == 0
    text = (tmp_path / "report" / "report.html").read_text()
    assert "<th>contrast, held-out</th>" in text
    assert "Which formula explains the network" in text
    assert "<th>rmse to white, held-out</th>" not in text  # theories have a section of their own


def test_measuring_afterwards_and_the_lens_have_them(run, tmp_path, capsys):
    assert measure([str(run), "data.source=mine:checks", *OWN, "probes.draws=64"]) == 0
    shown = capsys.readouterr().out
    assert "but for white" in shown
    assert "contrast" in shown
    (table,) = (run / "measured").glob("*.csv")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["theory/white/rmse"]) > 0
    out = tmp_path / "lens"
    line = [str(run / "denoiser.safetensors"), "--data", str(run), *OWN, "data.source=mine:checks", f"--out={out}"]
    assert (
        lens(
            [
                *line,
                "probes.draws=32",
                "probes.samples=4",
                "probes.sampler_steps=3",
                "probes.sigmas=[2,0.5]",
                f"--out={out}",
            ]
        )
        == 0
    )
    assert "<th>heldout: contrast</th>" in (out / "lens.html").read_text()
    assert "theory/white/mse/heldout" in (out / "lens.csv").read_text()


def test_a_ruler_takes_them_as_they_are(mine, digits):
    memoriser = EmpiricalDenoiser(digits[:100])
    how = {"draws": 32, "sigmas": [1.0], "samples": 0, "also": [mine.Contrast], "theories": {"white": mine.white}}
    ruler = Ruler(digits[:100], digits[100:150], **how)
    measured = ruler(memoriser)
    assert float(measured["contrast/ratio/train"]) == pytest.approx(1, abs=0.2)
    values = []
    for number in range(ruler.bank.blocks):
        x0, eps = ruler.bank.draw("train", number)
        x = x0 + eps
        values.append((memoriser(x, 1.0) - x / 2).double().square().flatten(1).mean(1).sqrt())
    assert float(measured["theory/white/rmse/train"]) == pytest.approx(float(torch.cat(values).mean()), rel=1e-6)
    assert to_unit(mine.checks(None)).abs().max() <= 1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "probes.also=[mine:nothing]",
            r"probes.also: expected mine:nothing\(\) to give a gaussbias.probes.Probe, got int",
        ),
        ("probes.also=[mine:broken]", r"probes.also: mine:broken could not be called \(RuntimeError: no such thing\)"),
        ("probes.also=[mine:absent]", "probes.also: mine:absent could not be called"),
        ("probes.also=[mine]", "probes.also: expected package.module:function, got 'mine'"),
        ("probes.theories=[mine:nothing]", "probes.theories: expected mine:nothing"),
        ("probes.theories=[gaussian=mine:white]", "beside gaussian and empirical, which are always compared with"),
        ("probes.theories=[wiener]", "probes.theories: expected package.module:function"),
        ("probes.theories=[windows:3]", "mixture:NUMBER, local:NUMBER, .* got windows:3"),
        ("probes.theories=[local:4]", "probes.theories: local:4: Expected an odd `window` of at least 1 but got 4"),
        ("probes.theories=[mixture:2.5]", "probes.theories: mixture:2.5: Expected a whole number but got 2.5"),
        ("probes.theories=[mixture:0]", "probes.theories: mixture:0: Expected from 1 to 300 clusters but got 0"),
        ("probes.theories=[local:1e400]", "probes.theories: local:1e400: Expected a whole number but got inf"),
        ("probes.theories=[smoothed:-1]", "probes.theories: smoothed:-1: Expected `c` of at least 0 but got -1"),
        ("probes.theories=[x=bootstrap]", "bootstrap is logged as between/..., and takes no name, got x=bootstrap"),
        ("probes.theories=[bootstrap:1.5]", "probes.theories: bootstrap:1.5: Expected `h` from 0 to 1 but got 1.5"),
        ("probes.theories=[mine:white,a.b:white]", "probes.theories: expected different names, got white, white"),
        ("data.source=mine:nothing", "data.source: expected mine:nothing"),
        (
            "data.source=nowhere",
            "data.source: expected one of digits, cifar10, .* or package.module:function, got 'nowhere'",
        ),
        ("data.source=nowhere:x", r"data.source: nowhere:x could not be called \(ModuleNotFoundError"),
    ],
)
def test_mistakes_are_one_line(key, said, mine, tmp_path, capsys):
    assert fit([*SMALL, key, "train.kimg=0.1", f"run.root={tmp_path}", "run.name=x"]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_run_folder_says_what_is_not_in_the_catalogue(run):
    kept = json.loads((run / "catalogue.json").read_text())
    names = {entry["name"] for entry in kept}
    assert names >= {key.removesuffix("/heldout") for key in KEYS}
    assert all(theory_parts(name) for name in names if not name.startswith(("contrast/", "samples/")))


def test_the_recipes_are_those_that_are_tried_here(root):
    text = (root / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    tried = {line.strip() for line in MINE.splitlines()}
    for block in blocks:
        for line in block.splitlines():
            plain = line.partition("  #")[0].strip()
            assert plain in tried or plain.startswith(("import ", "from ")), plain
