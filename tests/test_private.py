"""What is used of Lightning beside its documented interface is there, in the versions that are allowed."""

import inspect
import re
from importlib.metadata import version

import lightning.pytorch as pl
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from gaussbias.callbacks import private


def test_it_holds_for_the_versions_that_are_allowed(root):
    assert version("lightning").startswith(f"{private.VERSIONS}.")
    allowed = re.search(r'"lightning>=([\d.]+),<([\d.]+)"', (root / "pyproject.toml").read_text())
    least, below = allowed.groups()
    major, minor = (int(part) for part in private.VERSIONS.split("."))
    assert least == private.VERSIONS
    assert below == f"{major}.{minor + 1}"


def test_what_is_used_is_there():
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    assert private.datamodule_of(trainer) is None
    assert private.callbacks_in(trainer)
    assert not private.is_trial(trainer)
    private.set_steps(trainer, 5)
    assert trainer.max_steps == 5
    private.begin_although_done(trainer)
    assert trainer.max_steps == 6
    assert private.average_of(WeightAveraging()) is None
    for owner, name in (
        (_SignalConnector, "register_signal_handlers"),
        (_TrainingEpochLoop, "_broadcast_sigterm_tensor"),
        (_TrainingEpochLoop, "total_batch_idx"),
    ):
        assert hasattr(owner, name)
    assert "val_check_batch" in inspect.getsource(_TrainingEpochLoop)


def test_nothing_else_of_the_package_reaches_into_lightning(root):
    pattern = re.compile(r"trainer\.(_\w+|fit_loop|val_check_batch|fast_dev_run)|epoch_loop|val_loop")
    for file in (root / "gaussbias").rglob("*.py"):
        if file.name != "private.py":
            found = pattern.findall(file.read_text())
            assert not found, f"{file}: {found}"
