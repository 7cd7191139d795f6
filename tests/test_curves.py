"""Which values become curves, and where they are shown."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from runs import SMALL, rows

from gaussbias import dashboard
from gaussbias.config import load
from gaussbias.fit import main as fit
from gaussbias.loggers.series import MAIN, SECTION, curves, is_shown, level_page, level_tables
from gaussbias.system.errors import UserError

KEYS = [*SMALL, "train.kimg=0.4", "train.log_every_kimg=0.2", "probes.first_kimg=0.2", "probes.samples=16"]


def test_main_values_have_short_names_and_levels_are_rows_of_a_table():
    row = {"kimg": 2.0, "gaussian/rmse/heldout": 0.3, "gaussian/rmse/heldout_se": 0.1}
    row |= {"gaussian/rmse/heldout/sigma_0p47": 0.4, "gaussian/rmse/train/sigma_80": 0.5, "gap/z/sigma_0p47": 3.0}
    row |= {"raw/gaussian/rmse/train/sigma_80_se": 0.6}
    short = {"Main/to_D_G": 0.3}
    assert curves(row) == short | {key: value for key, value in row.items() if "sigma" not in key}
    assert next(iter(curves(row))) == "Main/to_D_G"
    assert curves(row, levels=True) == short | row
    row["gaussian/rmse/heldout/sigma_0p47_se"] = 0.03
    row["gaussian/rmse/heldout/sigma_80"] = 0.25
    assert level_tables(row) == [
        ("heldout", ["80", "0.47"], [["gaussian/rmse", "0.25", "0.40(3)"]]),
        ("train", ["80"], [["gaussian/rmse", "0.5"]]),
        ("", ["0.47"], [["gap/z", "3"]]),
    ]
    page = level_page(row | {"a<b/rmse/train/sigma_80": 1.0})
    assert "<td>0.40(3)</td>" in page
    assert "a&lt;b/rmse" in page
    assert level_page({"kimg": 2.0, "train/loss": 1.0}) == ""


def test_main_values_are_few_and_those_of_the_dashboard():
    assert len(MAIN) <= 40
    assert len(set(MAIN.values())) == len(MAIN)
    shown = {key for panel in (*dashboard.HEADLINE, *dashboard.LADDER) for key in panel.keys}
    assert shown - set(MAIN.values()) <= {"linearity/cosine/heldout", "linear/weight_nmse/heldout"}


def test_weights_and_biases_shows_the_main_values_alone(tmp_path):
    """At most 40 curves have a chart; other values are there, and so are those of levels where they are asked for."""
    for levels in ("false", "true"):
        keys = [*KEYS, f"run.root={tmp_path}", f"run.name={levels}", f"run.wandb_levels={levels}", "run.wandb=offline"]
        assert fit(keys) == 0
    for levels in ("false", "true"):
        (binary,) = (tmp_path / levels).glob("wandb/offline-run-*/*.wandb")
        program = Path(sys.executable).parent / "wandb"
        said = subprocess.run(
            [program, "leet", "inspect", "--json", binary], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        records = [json.loads(line) for line in said.splitlines()]
        sent = {key for record in records for key in record.get("history", {"item": {}})["item"]}
        hidden = {
            record["metric"]["name"]
            for record in records
            if record["type"] == "metric" and record["metric"]["options"].get("hidden")
        }
        charts = {key for key in sent - hidden if "/" in key and "." not in key}
        assert {f"{SECTION}{name}" for name in ("gl_score", "to_D_G", "loss", "memorized")} <= charts
        assert len(charts) <= 40
        assert {key for key in charts if not key.startswith(SECTION)} == set()
        assert {"gaussian/rmse/heldout", "gaussian/rmse/heldout_se"} <= sent & hidden
        assert any("sigma_" in key for key in sent) == (levels == "true")


def test_what_is_measured_beside_the_catalogue_has_a_chart():
    assert is_shown("mine/contrast/heldout")
    for key in (
        "theory/white/rmse/heldout",
        "class_3/gaussian/rmse/heldout",
        "guided_2/generalization/gl_score",
        "kimg",
    ):
        assert not is_shown(key)


def test_tensorboard_has_the_curves_and_pictures_and_csv_has_nothing_beside_history(tmp_path, capsys):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    keys = [*KEYS, f"run.root={tmp_path}", "run.pictures=live", "run.wandb=offline"]
    assert fit([*keys, "run.name=t", "run.logger=tensorboard"]) == 0
    said = capsys.readouterr().out
    assert f"its curves, live, in another terminal: tensorboard --logdir {tmp_path}/t/tensorboard" in said
    read = events.EventAccumulator(str(tmp_path / "t" / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    read.Reload()
    tags = read.Tags()
    for row in rows(tmp_path / "t"):
        for key, cell in row.items():
            if key in ("kimg", "epoch") or not cell or "sigma_" in key:
                continue
            found = [e.value for e in read.Scalars(key) if e.step == round(1000 * float(row["kimg"]))]
            assert len(found) == 1
            assert found[0] == pytest.approx(float(cell), rel=1e-6) or math.isnan(found[0])
    assert read.Scalars("Main/gl_score")
    assert "samples/grid" in tags["images"]
    assert not any("sigma_" in key for key in tags["scalars"])
    assert not (tmp_path / "t" / "wandb").exists()
    # it goes on in the same curves
    assert fit([*keys, "run.name=t", "run.logger=tensorboard", "--resume", "train.kimg=0.6"]) == 0
    read.Reload()
    steps = [event.step for event in read.Scalars("train/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 600

    assert fit([*keys, "run.name=c", "run.logger=csv"]) == 0
    assert "its curves" not in capsys.readouterr().out.partition(f"{tmp_path}/c:")[2]
    assert (tmp_path / "c" / "history.csv").exists()
    assert not {"wandb", "tensorboard"} & {path.name for path in (tmp_path / "c").iterdir()}


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (["run.logger=mlflow"], ["run.logger", "expected one of wandb, tensorboard, csv", "mlflow"]),
        (["run.logger=csv", "run.wandb=online"], ["run.wandb", "run.logger=csv", "got online"]),
    ],
)
def test_a_mistake_is_one_line(keys, parts):
    with pytest.raises(UserError) as caught:
        load(None, keys)
    assert all(part in str(caught.value) for part in parts)


def test_without_the_package_tensorboard_says_so(monkeypatch):
    monkeypatch.setattr("gaussbias.config.checks.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"run.logger: .* pip install 'gaussbias\[tensorboard\]'"):
        load(None, ["run.logger=tensorboard"])
