"""What a run survives: real processes, real signals, real files. docs/reliability.md says what is promised."""

import os
import signal

import pytest
from runs import SMALL, checkpoint, differences, finish, rows, run, start, wait

LONG = [*SMALL, "train.kimg=12", "train.checkpoint_every_kimg=2", "train.log_every_kimg=1", "probes.first_kimg=2"]
LONG += ["probes.every_kimg=2", "model.dropout=0.1", "data.flip=true"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    root = tmp_path_factory.mktemp("whole")
    code, said = run(*LONG, f"run.root={root}", "run.name=whole")
    assert code == 0, said
    return root / "whole"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_run_that_is_stopped_and_goes_on_ends_as_if_nothing_had_happened(number, whole, tmp_path):
    keys = [*LONG, f"run.root={tmp_path}", "run.name=x"]
    folder = tmp_path / "x"
    process = start(*keys)
    wait(process, lambda: len(rows(folder)) > 6)
    process.send_signal(number)
    code, said = finish(process)
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == (130 if number == signal.SIGINT else 75)
        assert f"gaussbias.fit: stopped by {number.name}; with --resume it goes on" in said
        assert "Traceback" not in said
        steps = checkpoint(folder)["global_step"]
        assert steps % 62 or steps % 63  # of its last step, whatever the schedule says
    code, said = run(*keys, "--resume")
    assert code == 0, said
    assert differences(whole, folder) == []
