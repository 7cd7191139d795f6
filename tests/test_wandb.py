"""Weights & Biases live, away, and refusing; a double of its server stands on 127.0.0.1."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import SMALL, Run, command, rows
from wandb_server import KEY, WandbServer

KEYS = [*SMALL, "train.kimg=8", "train.checkpoint_every_kimg=2", "train.log_every_kimg=1", "probes.first_kimg=2"]
KEYS += ["probes.every_kimg=2", "run.wandb=online", "run.wandb_levels=true", "run.pictures=live"]
EVERY_SECOND = {"WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"}


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))  # wandb notes keys there
    double = WandbServer()
    yield double
    Run.end_all()
    double.close()


def identity(folder):
    return (folder / "wandb" / "run_id").read_text()


def local(folder):
    """Rows of history.csv as numbers."""
    return [{key: float(cell) for key, cell in row.items() if cell} for row in rows(folder)]


def missing(row, sent):
    """What of a row of history.csv is not in one that was sent."""
    return {key for key in row if sent.get(key) != row[key]}


def sync(said, environment):
    """Run the printed command."""
    line = re.findall(r"wandb sync .*", said)[-1]
    program = Path(sys.executable).parent / "wandb"
    return subprocess.run(
        ["bash", "-c", line.replace("wandb sync", f"{program} sync", 1)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={**os.environ, **environment},
    )


@pytest.mark.long
def test_curves_are_live_and_go_on_in_the_same_run(server, tmp_path):
    """At least three transmissions while the run goes on, with kimg as x; and after a stop, the same run."""
    keys = [*KEYS, "train.kimg=20", f"run.root={tmp_path}", "run.name=x"]
    folder, how = tmp_path / "x", {**server.environment, **EVERY_SECOND}
    run = Run(*keys, said=tmp_path / "said", **how)
    run.until(lambda: (folder / "wandb" / "run_id").exists())
    name = identity(folder)
    run.until(lambda: len(server.times(name)) >= 3)
    arrived = server.rows(name)
    assert run.process.exitcode is None  # it has not ended
    assert all("kimg" in row for row in arrived)
    assert not [missing(row, sent) for row, sent in zip(local(folder), arrived, strict=False) if missing(row, sent)]
    run.send(signal.SIGTERM)
    assert run.end()[0] == 75
    assert server.runs[name]["exitcode"] == 75
    before = len(server.rows(name))
    code, said = Run(*keys, "--resume", said=tmp_path / "said", **how).end()
    assert code == 0, said
    assert list(server.runs) == [name]
    assert "wandb sync" not in said
    found, expected = server.rows(name), local(folder)
    assert [row["kimg"] for row in found] == [row["kimg"] for row in expected]  # nothing twice, nothing left out
    assert not [missing(row, sent) for row, sent in zip(expected, found, strict=True) if missing(row, sent)]
    every = server.all_rows(name)
    assert [row["_step"] for row in every] == list(range(len(every)))
    pictures = {row["kimg"] for row in every if "samples/grid" in row}
    assert pictures == {row["kimg"] for row in expected if "probes/seconds" in row}
    assert [row["attempt"] for row in found] == [1] * before + [2] * (len(found) - before)
    assert any(file.startswith("media/images/samples/grid") for file in server.runs[name]["files"])


def shorten(seconds):
    from gaussbias.loggers import wandb_run

    wandb_run.CONNECT_SECONDS = wandb_run.FINISH_SECONDS = seconds


@pytest.mark.long
def test_a_network_that_is_lost_in_the_middle(server, tmp_path):
    """Training goes on, the local history is whole, and the printed command sends all of it, once."""
    keys = [*KEYS, "train.kimg=20", f"run.root={tmp_path}", "run.name=x"]
    folder, how = tmp_path / "x", {**server.environment, **EVERY_SECOND}
    run = Run(*keys, said=tmp_path / "said", fault=shorten, about=(5,), **how)
    run.until(lambda: (folder / "wandb" / "run_id").exists() and len(server.times(identity(folder))) >= 1)
    server.close()
    code, said = run.end()
    assert code == 0, said
    assert "W&B could not finish" in said
    assert "W&B did not get all of this run; to send it later: wandb sync " in said
    expected = local(folder)
    assert expected[-1]["kimg"] == 20
    name, part = identity(folder), len(server.rows(identity(folder)))
    assert part < len(expected)
    again = WandbServer(server.port, server.runs)
    try:
        sync(said, again.environment)
        copy = next(run for run in again.runs if run != name)
        assert copy.startswith(f"{name}-")
        assert [row["kimg"] for row in again.rows(copy)] == [row["kimg"] for row in expected]
        assert not [missing(a, b) for a, b in zip(expected, again.rows(copy), strict=True) if missing(a, b)]
        # a run that goes on after that is kept beside it, and sent in order
        code, said = Run(*keys, "--resume", "train.kimg=22", said=tmp_path / "said", **how).end()
        assert code == 0, said
        assert "W&B lacks an earlier part of this run; this part is kept beside it, to be sent in order" in said
        sync(said, again.environment)
        last = [run for run in again.runs if run not in (name, copy)]
        assert len(last) == 1
        found = again.rows(last[0])
        assert [row["kimg"] for row in found] == [row["kimg"] for row in local(folder)]
        every = again.all_rows(last[0])
        assert [row["_step"] for row in every] == list(range(len(every)))
    finally:
        again.close()


@pytest.mark.long
def test_no_network_at_the_start(server, tmp_path):
    """Offline, in two attempts; the printed command sends both, each row once."""
    server.close()
    keys = [*KEYS, f"run.root={tmp_path}", "run.name=x"]
    how = {"said": tmp_path / "said", "fault": shorten, "about": (2,), **server.environment}
    code, said = Run(*keys, "train.kimg=4", **how).end()
    assert code == 0, said
    assert "W&B cannot be used online (" in said
    assert "; the run goes on offline" in said
    code, said = Run(*keys, "--resume", **how).end()
    assert code == 0, said
    again = WandbServer(server.port)
    try:
        assert f"to send it to Weights & Biases: wandb sync {tmp_path}/x/wandb/offline-run-*" in said
        sync(said, again.environment)
        assert list(again.runs) == [identity(tmp_path / "x")]
        expected, found = local(tmp_path / "x"), again.rows(identity(tmp_path / "x"))
        assert [row["kimg"] for row in found] == [row["kimg"] for row in expected]
        assert {row["attempt"] for row in found} == {1, 2}
    finally:
        again.close()


@pytest.mark.long
@pytest.mark.parametrize("when", ["start", "middle"])
def test_a_wrong_key(when, server, tmp_path):
    """Refused at once, or from some row on: training goes on, and the rows are kept for later."""
    keys = [*KEYS, f"run.root={tmp_path}", "run.name=x"]
    how = {**server.environment, **EVERY_SECOND}
    server.refuses_rows = True
    if when == "start":
        how["WANDB_API_KEY"] = KEY[::-1]
    code, said = Run(*keys, said=tmp_path / "said", **how).end()
    assert code == 0, said
    assert local(tmp_path / "x")[-1]["kimg"] == 8
    if when == "start":
        assert "W&B cannot be used online (" in said
        assert "401" in said
    else:
        assert "W&B did not get all of this run; to send it later: wandb sync" in said
    server.refuses_rows = False
    sync(said, server.environment)
    sent = max((server.rows(run) for run in server.runs), key=len)
    assert [row["kimg"] for row in sent] == [row["kimg"] for row in local(tmp_path / "x")]


@pytest.mark.long
def test_an_identity_that_is_none_is_replaced(tmp_path):
    """It goes into requests and the names of folders."""
    keys = [*KEYS, "run.wandb=offline", f"run.root={tmp_path}", "run.name=x"]
    assert command(*keys, "train.kimg=1")[0] == 0
    (tmp_path / "x" / "wandb" / "run_id").write_text("../../../etc")
    assert command(*keys, "train.kimg=2", "--resume")[0] == 0
    assert re.fullmatch("[0-9a-f]{8}", identity(tmp_path / "x"))
    assert json.loads((tmp_path / "x" / "attempts.jsonl").read_text().splitlines()[1])["from_kimg"] == 1.024
