"""Every panel of the dashboard shows what runs log."""

import csv
import json

import pytest
import yaml
from runs import SMALL

from gaussbias.config.sections import STOP_RULES
from gaussbias.dashboard import PICTURES, layout, main
from gaussbias.fit import main as fit
from gaussbias.noise import karras_sigmas


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Columns of a run's history, its configuration and the pictures of its offline W&B run."""
    root = tmp_path_factory.mktemp("runs")
    rules = [f"stop.{rule}=mark" for rule in STOP_RULES]
    keys = ["train.kimg=2", "probes.first_kimg=1", "probes.samples=16", *rules, "run.wandb=offline", f"run.root={root}"]
    keys += ["run.pictures=live"]
    assert fit([*SMALL, *keys, "probes.draws=1024", "run.name=x"]) == 0  # R2 at high noise needs many
    with (root / "x" / "history.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    pictures = [file.relative_to(root) for file in (root / "x" / "wandb").rglob("*.png")]
    return columns, yaml.safe_load((root / "x" / "config.yaml").read_text()), pictures


def test_every_key_of_the_layout_is_logged(logged):
    columns, config, pictures = logged
    panels = [panel for shown in layout(karras_sigmas(10)).values() for panel in shown]
    assert len(panels) > 50
    for panel in panels:
        for key in panel.keys:
            assert key in columns, f"{panel.title}: {key}"
        for key in (panel.by, panel.against):
            if key is not None:
                section, _, name = key.partition(".")
                assert name in config[section], f"{panel.title}: {key}"
    folder, _, name = PICTURES.partition("/")
    assert any(picture.parent.name == folder and picture.name.startswith(name) for picture in pictures)


def test_the_specification_has_the_panels_and_no_other_keys(logged, tmp_path, capsys):
    """What W&B would store, made without network: each key in it is logged, each section is there."""
    pytest.importorskip("wandb_workspaces", reason="the extra `dashboard` is not installed")
    columns = {*logged[0], "kimg"}
    out = tmp_path / "dashboard.json"
    assert main(["--project", "P", "--entity", "E", "--dry-run", "--out", str(out)]) == 0
    assert "nothing was sent" in capsys.readouterr().out
    specification = json.loads(out.read_text())
    assert (specification["project"], specification["entity"]) == ("P", "E")
    sections = specification["spec"]["section"]["panelBankConfig"]["sections"]
    there = {section["name"]: section["panels"] for section in sections}
    expected = layout(karras_sigmas(10))
    assert set(expected) | {"Samples"} <= set(there)
    seen = set()
    for name, panels in expected.items():
        assert len(there[name]) == len(panels)
        for panel, made in zip(panels, there[name], strict=True):
            config = made["config"]
            keys = set(config.get("metrics", []))
            if panel.against is not None:
                assert (
                    config["xAxis"].endswith(panel.against.replace(".", ".value.", 1))
                    or panel.against in config["xAxis"]
                )
                keys = {config["yAxis"].removeprefix("summary:")}
            assert keys == set(panel.keys)
            if panel.by is not None:
                assert config["groupBy"] == panel.by.replace(".", ".value.", 1)
            seen |= keys
    assert seen <= columns
    assert [panel["config"]["mediaKeys"] for panel in there["Samples"]] == [[PICTURES]]


def test_other_noise_levels_have_panels_of_their_own():
    keys = [panel.keys[0] for panel in layout([50.0, 2.5, 0.2])["Noise levels"]]
    assert keys[:2] == ["gaussian/rmse/heldout/sigma_2p5", "gaussian/rmse/heldout/sigma_0p2"]
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "the following arguments are required: --project"),
        (["--project", "P", "--sigmas", "-1", "--dry-run"], "--sigmas"),
        (["--project", "P", "--dry-run", "--out", "/dev/null/x"], "--out: cannot write /dev/null/x"),
        (["--project", "P"], "W&B could not take the workspace"),
    ],
)
def test_a_mistake_is_one_line(given, said, capfd, monkeypatch, tmp_path):
    """The last one: no key, and no server where W&B should be."""
    pytest.importorskip("wandb_workspaces", reason="the extra `dashboard` is not installed")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(given) == 2
    error = capfd.readouterr().err
    assert said in error
    assert error.strip().count("\n") == 0
