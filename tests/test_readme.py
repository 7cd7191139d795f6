import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gaussbias import callbacks, probes
from gaussbias import config as configuration
from gaussbias.config import Config, to_container
from gaussbias.history import load


def block(root, marker, language, page="README.md"):
    text = (root / page).read_text()
    found = re.search(rf"<!-- {marker} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found, marker
    return found.group(1)


OWN_LOOP = "docs/own-loop.md"


class MyModule(pl.LightningModule):
    """A module that knows nothing of gaussbias; its denoiser is a function of images and noise levels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def denoiser(self, x, sigma):
        return self.layer(x.flatten(1)).view_as(x)

    def training_step(self, batch, batch_idx):
        x0 = batch[0] / 127.5 - 1
        return (self.denoiser(x0, 1.0) - x0).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_the_guide_measures_a_users_own_module(root, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = block(root, "own module", "python", OWN_LOOP)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    code = code.replace(
        "max_steps=100", "max_steps=3, logger=rows, log_every_n_steps=1, enable_progress_bar=False, accelerator='cpu'"
    )
    code = code.replace("{0, 50, 100}", "{0, 3}").replace("draws=512", "draws=64")
    seen = []
    rows = DummyLogger()
    rows.log_metrics = lambda metrics, step=None: seen.append((step, metrics))
    loader = DataLoader(TensorDataset(digits[:300]), batch_size=32, shuffle=True)
    space = {
        "MyModule": MyModule,
        "images": digits[:300],
        "heldout": digits[300:400],
        "rows": rows,
        "my_loader": loader,
    }
    exec(code, space)
    assert [step for step, _ in seen] == [0, 3]
    assert seen[1][1]["linearity/affine_cosine/heldout"] == pytest.approx(1)  # a layer is affine
    assert seen[1][1]["linearity/cosine/heldout"] < 1
    nonlinear = seen[1][1]["ladder/nonlinear/heldout"], seen[1][1]["ladder/nonlinear/heldout_se"]
    assert abs(nonlinear[0]) < 4 * nonlinear[1]
    assert seen[1][1]["ladder/affine/heldout"] > 4 * seen[1][1]["ladder/affine/heldout_se"]
    assert seen[1][1]["samples/frechet_pca"] > seen[1][1]["samples/frechet_pca_train"]
    assert [file.name for file in (tmp_path / "figures" / "samples").iterdir()]


class Network(nn.Module):
    """A small network, preconditioned by hand."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(65, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64))

    def forward(self, x, sigma):
        level = sigma.reshape(-1, 1, 1, 1).expand(len(x), 1, 1, 1)
        scaled = torch.cat([(x / (0.25 + level**2).sqrt()).flatten(1), level.flatten(1).log() / 4], 1)
        skip = 0.25 / (0.25 + level**2)
        return skip * x + (1 - skip).sqrt() * 0.5 * self.layers(scaled).view_as(x)


def test_the_guides_plain_loop_trains_and_is_measured(root, digits, tmp_path, monkeypatch, capsys):
    """And its values are those that the callback measures of the same weights, bit for bit."""
    monkeypatch.chdir(tmp_path)
    code = block(root, "plain loop", "python", OWN_LOOP)
    assert len([line for line in code.splitlines() if line.strip()]) <= 26
    torch.manual_seed(0)
    space = {"images": digits[:300], "heldout": digits[300:400], "network": Network()}
    exec(code, space)
    shown = capsys.readouterr().out
    assert re.search(r" 300  error 0\.\d+\(\d+\)  to D_G 0\.\d+\(\d+\)\n", shown)
    assert "change -0." in shown
    assert space["network"].training
    values = load(tmp_path)
    assert values["kimg"] == [0.0, 12.8, 25.6, 38.4]
    errors = values["denoising/mse/heldout"]
    assert errors[-1] < 0.6 * errors[0]

    class Own(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.denoiser = space["network"]

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return probes.evaluate(self.denoiser, batch)

        def training_step(self, batch, batch_idx):
            return 0 * sum(part.sum() for part in self.parameters())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    bank = space["ruler"].bank
    measure = callbacks.measurements(bank, space["images"], space["heldout"])[0]
    trainer = pl.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        callbacks=[measure, callbacks.MeasurementSchedule({0})],
        val_check_interval=1,
        check_val_every_n_epoch=None,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path / "own",
        num_sanity_val_steps=0,
    )
    loader = DataLoader(TensorDataset(digits[:100]), batch_size=100)
    trainer.fit(Own(), train_dataloaders=loader, val_dataloaders=bank.loaders())
    row = space["measured"].row
    assert {name: values[name][-1] for name in row} == row
    assert measure.values == space["ruler"](space["network"]).row
    assert len(row) > 800


def test_the_readme_is_short_and_its_ruler_measures(root, digits, capsys):
    assert len((root / "README.md").read_text().splitlines()) <= 120
    code = block(root, "ruler", "python").replace("heldout)  #", "heldout, draws=32, samples=4)  #")
    exec(code, {"images": digits[:300], "heldout": digits[300:400], "network": Network()})
    assert re.fullmatch(r"0\.\d+\(\d+\) [\d.]+(\(\d+\))?\n", capsys.readouterr().out)


def test_a_ruler_imports_no_lightning():
    code = "import sys; from gaussbias import Ruler; assert 'lightning' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LEAN = "enable_checkpointing=False, enable_model_summary=False"
SCRIPT = """
import json
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from gaussbias.data.sources import digits
from test_readme import MyModule

torch.manual_seed(0)
digits = digits().images
images, heldout = digits[:300], digits[300:400]
# an epoch is a step, so that two ranks together have the batch of one, however Lightning shuffles
my_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images[:32]), batch_size=BATCH)


rows = DummyLogger()
rows.log_metrics = lambda metrics, step=None: seen.append(metrics)
seen = []
if __name__ == "__main__":
    CODE
    if trainer.is_global_zero:
        with open(f"{trainer.world_size}.json", "w") as file:
            json.dump(seen, file)
"""


@pytest.mark.long
def test_on_two_devices_a_users_own_module_is_measured_on_the_same_draws(root, tmp_path):
    """Its Trainer is Lightning's as it comes, which shares out loaders itself where it can."""
    code = block(root, "own module", "python", OWN_LOOP)
    code = code.replace("{0, 50, 100}", "{0, 3}").replace("draws=512", "draws=64").replace("samples=64", "samples=20")
    for devices in (1, 2):
        arguments = f"max_steps=3, logger=rows, log_every_n_steps=1, accelerator='cpu', devices={devices}"
        mine = code.replace("max_steps=100", f"{arguments}, enable_progress_bar=False, {LEAN}")
        script = tmp_path / f"{devices}.py"
        script.write_text(
            SCRIPT.replace("BATCH", str(32 // devices)).replace("    CODE", textwrap.indent(mine, "    "))
        )
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parent}"},
        )
        assert done.returncode == 0, done.stdout
    one, two = (json.loads((tmp_path / f"{devices}.json").read_text()) for devices in (1, 2))
    assert len(one) == len(two) == 2
    for alone, shared in zip(one, two, strict=True):
        assert alone.keys() == shared.keys()
        assert "ladder/affine/heldout_se" in alone
        for key in alone:
            if not key.startswith("probes/s"):
                assert shared[key] == pytest.approx(alone[key], rel=1e-4, abs=1e-6, nan_ok=True), key


def test_the_test_command_is_the_one_that_ci_runs(root):
    assert "-m pytest" in block(root, "tests", "bash")
    assert "<!-- tests -->" in (root / ".ci" / "run").read_text()


def test_each_promise_has_a_test_that_exists(root):
    text = (root / "docs" / "reliability.md").read_text()
    there = {
        file.name: set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
        for file in root.glob("tests/*.py")
    }
    every = set().union(*there.values())
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", text)
    assert len(named) > 30
    for file, name in named:
        assert name in (there[file] if file else every), name


def test_the_interface_lists_every_key_with_its_default(root):
    text = (root / "docs" / "interface.md").read_text()
    for section, keys in to_container(Config()).items():
        for key, value in keys.items():
            shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            assert f"| `{section}.{key}` | `{shown}` |" in text, f"{section}.{key} = {shown}"


def test_the_page_of_metrics_is_what_the_catalogue_says(root):
    made = runpy.run_path(str(root / "docs" / "generate.py"))["page"]()
    assert (root / "docs" / "metrics.md").read_text() == made, "run python docs/generate.py"


def test_the_default_configuration_is_what_the_documentation_says(root):
    assert configuration.load().data.source == "digits"
