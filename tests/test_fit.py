"""The real command on real images, end to end."""

import io
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gaussbias
from gaussbias.catalogue import known_entry, take_apart, theory_parts
from gaussbias.fit import main
from gaussbias.history import load, read_measurement, series
from gaussbias.modules import EDMModule
from gaussbias.moments import Eigenmoments
from gaussbias.system.terminal import with_error

SMALL = ["probes.draws=32", "probes.samples=8", "probes.sampler_steps=4", "model.channels=8"]
MLP = [
    *SMALL,
    "model.backbone=mlp",
    "model.channels=16",
    "data.n_train=300",
    "run.wandb=disabled",
    "run.pictures=none",
    "train.batch_size=32",
]
TIMES = ("probes/seconds", "probes/share", "train/images_per_second")


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "gaussbias.fit", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


def values(history):
    """Columns without those that are times; NaN as None, which equals itself."""
    return {
        key: [None if isinstance(v, float) and math.isnan(v) else v for v in column]
        for key, column in history.items()
        if key not in TIMES and key != "run"
    }


def test_the_command_trains_measures_logs_and_exports(tmp_path, root):
    keys = [*SMALL, "train.kimg=1.5", "probes.first_kimg=0.5", "train.checkpoint_every_kimg=1", f"run.root={tmp_path}"]
    done = command("--config", root / "configs" / "digits.yaml", *keys, "run.name=first")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "first"
    assert "1400 training and 397 held-out images of 1 x 8 x 8" in done.stdout
    shown = [line.split() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [line[0] for line in shown][:5] == ["kimg", "0.00", "0.51", "1.02", "1.54"]
    assert "Traceback" not in done.stderr
    assert "kimg |" not in done.stderr  # a progress bar is for terminals

    history = load(folder)
    measured = [i for i, v in enumerate(history["generalization/gl_score"]) if not math.isnan(v)]
    assert [history["kimg"][i] for i in measured] == [0.0, 0.512, 1.024, 1.536]
    for key in (
        "linearity/cosine/train",
        "linearity/affine_cosine/heldout/sigma_0p47",
        "linearity/gaussian_nmse/heldout",
        "gaussian/rmse/heldout/sigma_80",
        "gaussian/nmse/train",
        "empirical/rmse/heldout",
        "denoising/mse/train",
        "denoising/gaussian_mse/heldout",
        "denoising/empirical_mse/train",
        "generalization/gl_score_heldout",
        "generalization/memorized_fraction_high",
        "samples/gaussian_cosine",
        "samples/frechet_pca",
        "samples/frechet_pca_gaussian",
        "samples/frechet_pca_train",
        "ladder/total/train",
        "ladder/affine/heldout/sigma_0p47_se",
        "ladder/nonlinear/train",
        "ladder/r2/heldout",
        "ladder/position/train",
        "linear/weight_nmse/heldout",
        "linearity/affine_cosine/heldout_se",
        "denoising/empirical_mse/train_se",
        "probes/share",
    ):
        assert all(math.isfinite(history[key][i]) for i in measured), key
    page = (root / "docs" / "metrics.md").read_text()
    for key in history.keys() - {"run"}:
        name = take_apart(key).entry
        entry = known_entry(name)
        name = name if entry is None else entry.name
        parts = theory_parts(name)
        name = name if parts is None else f"theory/<name>/{parts[1]}"
        assert f"`{name}`" in page or f"`{name}/sigma_<s>`" in page, key
    errors = [history["denoising/mse/heldout"][i] for i in measured]
    assert errors[-1] < 0.8 * errors[0]  # it learns
    losses = [v for v in history["train/loss"] if not math.isnan(v)]
    assert losses[-1] < losses[0]

    # W&B has every value, those of single noise levels in tables, with kimg as x
    (binary,) = folder.glob("wandb/offline-run-*/*.wandb")
    wandb = Path(sys.executable).parent / "wandb"
    shown = subprocess.run(
        [wandb, "leet", "inspect", "--json", binary], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    rows = []
    for line in shown.splitlines():
        record = json.loads(line)
        if record["type"] == "history":
            rows.append(record["history"]["item"])
    # pictures have rows of their own
    drawn = {"samples/grid.path", "ladder/parts.path", "theory/map.path", "levels.path"}
    values = [row for row in rows if not drawn & row.keys()]
    assert [row["kimg"] for row in values] == history["kimg"]
    tables = {
        row["kimg"]: (binary.parent / "files" / row["levels.path"]).read_text() for row in rows if "levels.path" in row
    }
    assert list(tables) == [history["kimg"][i] for i in measured]
    for i, row in enumerate(values):
        for key, column in history.items():
            if key == "run" or math.isnan(column[i]):
                continue
            if not take_apart(key).level:
                assert row[key] == column[i], key
                continue
            assert key not in row
            error = history.get(f"{key}_se")
            if not key.endswith("_se"):
                cell = f"{column[i]:.3g}" if error is None or math.isnan(error[i]) else with_error(column[i], error[i])
                assert f"<td>{cell}</td>" in tables[row["kimg"]], key
    for name in sorted(drawn):
        pictures = [row for row in rows if name in row]
        assert [row["kimg"] for row in pictures] == [history["kimg"][i] for i in measured]
        assert all((binary.parent / "files" / row[name]).exists() for row in pictures)
    hashes = read_measurement(folder / "probes" / "0.safetensors").hashes
    assert set(hashes) == {"train", "heldout", "samples"}
    assert all(digest in shown for digest in hashes.values())  # they are in W&B's configuration
    axes = [json.loads(line)["metric"] for line in shown.splitlines() if '"type":"metric"' in line]
    assert [(axis["glob_name"], axis["step_metric"]) for axis in axes if "glob_name" in axis] == [("*", "kimg")]

    # what is exported is the average that was measured
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        [
            ".lock",
            "attempts.jsonl",
            "catalogue.json",
            "checkpoints",
            "config.yaml",
            "denoiser.json",
            "denoiser.safetensors",
            "done.json",
            "figures",
            "history.csv",
            "moments.safetensors",
            "probes",
            "samples",
            "wandb",
        ]
    )
    times = ["0", "0.512", "1.024", "1.536"]
    assert sorted(f.stem for f in (folder / "samples").iterdir()) == times
    assert sorted(f.stem for f in (folder / "figures" / "samples").iterdir()) == times

    # the table at the end has the last values, and names files that are there
    table = done.stdout[done.stdout.index("samples at 1.536 kimg") :].splitlines()
    last = measured[-1]
    names = [f"generalization/gl_score{of}" for of in ("", "_gaussian", "_heldout")]
    gl = [
        with_error(history[n][last], history[f"{n}_se"][last]) if f"{n}_se" in history else f"{history[n][last]:.4g}"
        for n in names
    ]
    assert table[1].split() == ["GL", "score", *gl]
    *files, how = table[table.index(f"in {folder}:") + 1 :]
    assert how == f"to send it to Weights & Biases: wandb sync {folder}/wandb/offline-run-*"
    assert len(files) == 11
    assert all((folder / line.split()[0]).exists() for line in files)

    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    exported = gaussbias.load_denoiser(folder)(x, 0.5)
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert torch.equal(exported, gaussbias.load_denoiser(folder / "checkpoints" / "last.ckpt")(x, 0.5))
    assert checkpoint["global_step"] == 12
    raw, average = checkpoint["current_model_state"], checkpoint["state_dict"]
    assert any(not torch.equal(raw[name], average[name]) for name in raw)

    # nothing is written over
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.is_file()}
    again = command("--config", root / "configs" / "digits.yaml", *keys, "run.name=first")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "holds a run already; continue it with --resume, or choose another run.name" in again.stderr
    assert before == {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.is_file()}


def test_a_finished_run_that_goes_on_stays_as_it_is(tmp_path, capsys):
    keys = [*MLP, "probes.first_kimg=0.2", f"run.root={tmp_path}", "run.name=x"]
    assert main([*keys, "train.kimg=0.8"]) == 0
    files = ("history.csv", "denoiser.safetensors", "denoiser.json", "config.yaml", "checkpoints/last.ckpt")
    before = [(tmp_path / "x" / file).read_bytes() for file in files]
    assert main([*keys, "train.kimg=0.8", "--resume"]) == 0
    assert main([*keys, "train.kimg=0.4", "--resume"]) == 2
    assert [(tmp_path / "x" / file).read_bytes() for file in files] == before
    assert "train.kimg: expected at least 0.8" in capsys.readouterr().err


def test_a_run_that_broke_off_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch):
    keys = [*MLP, "train.kimg=0.4", f"run.root={tmp_path}", "run.name=x", "train.log_every_kimg=0.1"]
    original = EDMModule.training_step

    def interrupt(self, batch, batch_idx):
        if batch["step"] == 7:
            raise KeyboardInterrupt
        return original(self, batch, batch_idx)

    monkeypatch.setattr(EDMModule, "training_step", interrupt)
    assert main(keys) == 130
    monkeypatch.setattr(EDMModule, "training_step", original)
    assert main([*keys, "--resume"]) == 0
    kimg = load(tmp_path / "x")["kimg"]
    assert kimg[0] == 0
    assert kimg == sorted(kimg)
    assert kimg.count(0.0) == 1


def test_flips_reach_the_moments(tmp_path):
    keys = [*MLP, "train.kimg=0.05", f"run.root={tmp_path}", "run.name=x", "data.flip=true"]
    assert main(keys) == 0
    assert Eigenmoments.load(tmp_path / "x" / "moments.safetensors").count == 600


def test_online_without_a_key_goes_on_offline(tmp_path, monkeypatch, caplog):
    """Without asking for one, and waiting."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_API_KEY", "")
    assert main([*MLP, "train.kimg=0.05", f"run.root={tmp_path}", "run.wandb=online", "run.name=x"]) == 0
    assert len(list((tmp_path / "x" / "wandb").glob("offline-run-*"))) == 1
    (said,) = [record.getMessage() for record in caplog.records if "goes on offline" in record.getMessage()]
    assert "no API key" in said
    assert "\n" not in said


MEASURED = ("linearity", "gaussian", "denoising", "empirical", "ladder", "novelty", "gap", "freedom", "spectrum")
"""Groups of what is measured on the bank's draws and latents."""


@pytest.mark.long
def test_two_devices_equal_one(tmp_path):
    keys = [*MLP, "train.kimg=0.6", "probes.first_kimg=0.3", "train.accelerator=cpu", f"run.root={tmp_path}"]
    # unequal numbers of blocks: 17 of draws, 2 of latents
    keys += ["train.log_every_kimg=0.1", "run.wandb=offline", "probes.samples=136", "probes.draws=34", "probes.block=2"]
    for devices in (1, 2):
        # as in a SLURM job whose script starts one process, from which Lightning starts the other
        done = command(*keys, f"train.devices={devices}", f"run.name={devices}", SLURM_PROCID="0")
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "2" / "wandb").glob("offline-run-*"))) == 1
    one, two = (load(tmp_path / name) for name in ("1", "2"))
    assert one["kimg"] == two["kimg"]
    assert one.keys() == two.keys()
    for key in one:
        if key in TIMES or key == "run":
            continue
        # counts of nearest images, ranks, what is over its error and what is over sigma carry differences further
        if key.split("/")[0] in ("novelty", "gap", "freedom", "spectrum"):
            continue
        for a, b in zip(one[key], two[key], strict=True):
            # gradients are summed in another order, which 18 steps of Adam carry on
            assert a == pytest.approx(b, rel=2e-3, abs=2e-4, nan_ok=True), key
    # before training, what is measured is bit for bit the same
    for key in one:
        if key.split("/")[0] in MEASURED:
            assert one[key][0] == two[key][0], key


def written_zip(path, images):
    with zipfile.ZipFile(path, "w") as archive:
        for i, image in enumerate(images):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            archive.writestr(f"{i}.png", file.getvalue())
    return path


@pytest.fixture
def zips(tmp_path):
    """Zips of 12 images that are whole, cut short, damaged inside, not a zip, and of two sizes."""
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    whole = written_zip(tmp_path / "whole.zip", images).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-100])
    place = whole.rindex(b"IDAT")
    (tmp_path / "damaged.zip").write_bytes(whole[: place + 4] + bytes(20) + whole[place + 24 :])
    (tmp_path / "letter.zip").write_text("dear user")
    written_zip(tmp_path / "mixed.zip", [*images, images[0, :4]])
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ("data.batchsize=3", "data.batchsize: no such key"),
        ("train.lr=fast", "train.lr: expected number, got 'fast'"),
        ("data.n_train=2000", "data.n_train: expected at most 1400 (1797 images less 397 held out), got 2000"),
        ("data.n_train=1", "data.n_train: expected at least 2 images (a covariance), got 1"),
        ("data.n_heldout=1796", "data.n_heldout: expected at most 1795 of 1797 images, got 1796"),
        ("data.n_heldout=1", "data.n_heldout: expected at least 2, got 1"),
        ("data.source=edm_zip data.path=nowhere.zip", "data.path: expected a file, found none at nowhere.zip"),
        ("data.source=idx data.path={0}/whole.zip", "data.path: expected an idx file"),
        ("data.source=folder data.path={0}/whole.zip", "data.path: expected a folder of images, found a file"),
        ("data.source=edm_zip data.path={0}/cut.zip", "cut.zip is not one or was cut short"),
        ("data.source=edm_zip data.path={0}/letter.zip", "letter.zip is not one or was cut short"),
        (
            "data.source=edm_zip data.path={0}/damaged.zip data.n_heldout=2 data.n_train=null",
            "11.png in {0}/damaged.zip does not decode",
        ),
        ("data.source=edm_zip data.path={0}/mixed.zip data.n_heldout=2 data.n_train=null", "expected images of shape"),
        (
            "data.source=edm_zip data.path={0}/whole.zip data.n_heldout=2 data.n_train=11",
            "at most 10 (12 images less 2",
        ),
        ("data.resolution=16", "data.resolution: expected at most 8, the size of the images (8 x 8), got 16"),
        ("train.accelerator=tpu", "train.accelerator: expected one of auto, cpu, gpu, got 'tpu'"),
        ("train.devices=0", "train.devices: expected a number above 0, got 0"),
        ("train.batch_size=33 train.devices=2 train.accelerator=cpu", "train.batch_size: expected a multiple of the 2"),
        ("train.precision=bf16-mixed train.accelerator=cpu", "train.precision: expected 32-true on a CPU"),
        ("probes.sigmas=[1,1.0001]", "probes.sigmas: 1.0 and 1.0001 are both named 1 in logs"),
        ("probes.sigmas=[1,0]", "probes.sigmas: expected noise levels above 0, got 0"),
        ("probes.sigmas=[1,-2]", "probes.sigmas: expected noise levels above 0, got -2"),
        ("probes.sampler_steps=1", "probes.sampler_steps: expected at least 2, got 1"),
        ("probes.features=nowhere:make", "probes.features: nowhere:make could not be called (ModuleNotFoundError"),
        ("probes.features=math:pi", "probes.features: math:pi could not be called (TypeError"),
        (
            "probes.features=builtins:dict",
            "probes.features: expected builtins:dict() to give features (B, F) of images",
        ),
        ("probes.features=nonsense", "probes.features: expected package.module:function, got 'nonsense'"),
        ("model.channel_mult=[1,1,1,1,1] model.backbone=unet", "model.channel_mult: 5 levels"),
        ("--frobnicate", "--frobnicate"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2_and_leave_nothing(overrides, text, zips, capsys, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    root = zips / "runs"
    assert main([*MLP, f"run.root={root}", "run.name=x", *overrides.format(zips).split()]) == 2
    error = capsys.readouterr().err
    assert text.format(zips) in error
    assert error.count("\n") == 1
    assert not root.exists()


def test_a_run_goes_on_only_with_the_images_it_began_with(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    file = written_zip(tmp_path / "a.zip", images)
    keys = [*MLP, "data.source=edm_zip", f"data.path={file}", "data.n_heldout=9", "data.n_train=null"]
    keys += ["train.kimg=0.1", f"run.root={tmp_path}", "run.name=x"]
    assert main(keys) == 0
    before = contents(tmp_path / "x")
    moved = file.rename(tmp_path / "b.zip")
    assert main([*keys, "--resume", f"data.path={moved}", "train.kimg=0.1"]) == 0
    before = contents(tmp_path / "x")
    written_zip(file, images[:-1])
    capsys.readouterr()
    assert main([*keys, "--resume", "train.kimg=0.2"]) == 2
    error = capsys.readouterr().err
    assert "data.path: the run in" in error
    assert "was trained on other images than are there now" in error
    assert contents(tmp_path / "x") == before
    assert main([*keys, f"data.heldout_path={file}", "run.name=y"]) == 2
    assert "data.heldout_path: expected other images than those of data.path" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("end", [pytest.param(">&- 2>&-", marks=pytest.mark.long), "| head -n 1"])
def test_a_reader_that_goes_away_ends_nothing(end, tmp_path):
    """Standard output and error closed from the start, and output closed after the first line."""
    keys = " ".join([*MLP, "train.kimg=0.1", f"run.root={tmp_path}", "run.name=x"])
    line = f"set -o pipefail; {sys.executable} -m gaussbias.fit {keys} {end}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "x" / "denoiser.safetensors").exists()


def test_a_figure_that_cannot_be_drawn_ends_nothing(tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert main([*MLP, "run.pictures=live", "train.kimg=0.1", f"run.root={tmp_path}", "run.name=x"]) == 0
    assert "the figures could not be written (no fonts); the run goes on" in caplog.messages
    assert series(tmp_path / "x")["samples/frechet_pca"][0] == [0.0, 0.128]  # no row is lost
    assert (tmp_path / "x" / "denoiser.safetensors").exists()


def contents(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_checkpoint_of_another_network_is_refused_and_nothing_is_written_over(tmp_path, capsys):
    keys = [*MLP, "train.kimg=0.1", f"run.root={tmp_path}"]
    assert main([*keys, "run.name=mine"]) == 0
    assert main([*keys, "run.name=other", "model.channels=12"]) == 0
    for last in (tmp_path / "mine" / "checkpoints").iterdir():
        last.write_bytes((tmp_path / "other" / "checkpoints" / "last.ckpt").read_bytes())
    before = contents(tmp_path / "mine")
    capsys.readouterr()
    assert main([*keys, "run.name=mine", "--resume", "train.kimg=0.2"]) == 2
    error = capsys.readouterr().err
    assert ".ckpt is of another network than this configuration's" in error
    assert "begin another run.name" in error
    assert error.count("\n") == 1
    assert contents(tmp_path / "mine") == before


def test_a_run_goes_on_only_as_it_was_configured(tmp_path, capsys):
    keys = [*MLP, "train.kimg=0.1", f"run.root={tmp_path}", "run.name=x"]
    assert main([*keys, "--resume"]) == 0  # begins where there is nothing to continue
    capsys.readouterr()
    assert main([*keys, "--resume", "train.lr=0.5"]) == 2
    assert "was begun with other values of train.lr (0.002 -> 0.5)" in capsys.readouterr().err
    assert main([*keys, "--resume", "run.seed=5"]) == 2
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "thesis.txt").write_text("precious")
    assert main([*keys, "run.name=y"]) == 2
    assert "holds files that are not a run" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_1(tmp_path, capsys, monkeypatch):
    original = EDMModule.losses
    monkeypatch.setattr(
        EDMModule, "losses", lambda s, b: (x * (float("nan") if b["step"] == 20 else 1) for x in original(s, b))
    )
    keys = [*MLP, "train.kimg=1", "train.log_every_kimg=0.1", "train.checkpoint_every_kimg=0.4"]
    assert main([*keys, f"run.root={tmp_path}", "run.name=x"]) == 1
    error = capsys.readouterr().err
    assert "the loss is not finite from step 21 (0.672 kimg)" in error
    assert error.count("\n") == 1
    assert torch.load(tmp_path / "x" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 12
    assert gaussbias.load_denoiser(tmp_path / "x") is not None
