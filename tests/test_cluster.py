"""What docker/ and docs/cluster.md have: the batch script with doubles of srun and scontrol, torchrun, the image."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs import SMALL, command, differences, rows
from safetensors.torch import load_file

from gaussbias.callbacks import Stopping
from gaussbias.system.errors import UserError
from gaussbias.system.signals import StopRequest

KEYS = [*SMALL, "train.kimg=8", "train.checkpoint_every_kimg=2", "probes.first_kimg=2", "probes.every_kimg=2"]
SRUN = """#!{python}
# starts two tasks as SLURM does, passes SIGUSR1 on to them, and ends with the largest code of theirs
import os, signal, subprocess, sys, time
assert sys.argv[1] == "--kill-on-bad-exit=1"
command = sys.argv[2:]
tasks = []
for rank in (0, 1):
    names = {{"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_ID": 0}}
    tasks.append(subprocess.Popen(command, env={{**os.environ, **{{name: str(v) for name, v in names.items()}}}}))
signal.signal(signal.SIGUSR1, lambda *_: [task.send_signal(signal.SIGUSR1) for task in tasks])
codes = [None, None]
while None in codes:
    time.sleep(0.05)
    for rank, task in enumerate(tasks):
        if codes[rank] is None and task.poll() is not None:
            codes[rank] = task.returncode if task.returncode >= 0 else 128 - task.returncode
            if codes[rank]:  # then what is left is killed
                [other.kill() for other in tasks if other.poll() is None]
sys.exit(max(codes))
"""


def programme(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.long
def test_a_requeued_job_goes_on_in_the_same_folder(root, tmp_path):
    """The script is stopped by the signal that it asks for, requeues itself, and ends as one that was not stopped."""
    programs = tmp_path / "programs"
    programs.mkdir()
    programme(programs / "srun", SRUN.format(python=sys.executable))
    programme(programs / "scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    programme(programs / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    # `import gaussbias` is that of the tests
    place = {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NAME": "x", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1"}
    environment = {**os.environ, **place, **job, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    script = (root / "docker" / "slurm.sbatch").read_text()
    (wanted,) = re.findall(r"#SBATCH --signal=(\w+)@", script)

    def submit(name):
        line = ["bash", str(root / "docker" / "slurm.sbatch"), *KEYS, f"run.root={tmp_path}", f"run.name={name}"]
        with (tmp_path / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [*line, "train.accelerator=cpu"], cwd=tmp_path, env=environment, stdout=log, stderr=log
            )

    assert submit("whole").wait(200) == 0
    assert not (tmp_path / "requeued").exists()
    first = submit("x")
    while len(rows(tmp_path / "x")) < 6:
        assert first.poll() is None
    (task,) = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(task), getattr(signal, f"SIG{wanted}"))
    assert first.wait(60) == 75
    assert (tmp_path / "requeued").read_text() == "requeue 12345\n"
    environment |= {"SLURM_ARRAY_JOB_ID": "777", "SLURM_ARRAY_TASK_ID": "4"}
    first = submit("x")
    while (tmp_path / "x.log").read_text().count("continued at") < 1:
        assert first.poll() is None
    (task,) = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(task), getattr(signal, f"SIG{wanted}"))
    assert first.wait(60) == 75
    assert (tmp_path / "requeued").read_text() == "requeue 12345\nrequeue 777_4\n"
    assert submit("x").wait(200) == 0
    said = (tmp_path / "x.log").read_text()
    assert said.count("continued at") == 2
    assert "Traceback" not in said
    assert differences(tmp_path / "whole", tmp_path / "x") == []


def test_a_launcher_that_disagrees_with_the_devices_is_refused(monkeypatch):
    """Each of its processes would be a run of its own, in one folder."""
    from gaussbias.system.errors import UserError
    from gaussbias.training.devices import check_launcher

    check_launcher(1, 1)
    with monkeypatch.context() as torchrun:
        torchrun.setenv("TORCHELASTIC_RUN_ID", "x")
        torchrun.setenv("WORLD_SIZE", "4")
        check_launcher(4, 1)
        check_launcher(2, 2)
        with pytest.raises(
            UserError, match=r"train\.devices: expected as many processes as devices, 1 on each of 1 nodes"
        ):
            check_launcher(1, 1)
    for tasks, each, devices, nodes, right in (
        ("4", "4", 4, 1, True),
        ("4", "2", 2, 2, True),
        ("1", None, 1, 1, True),
        ("1", None, 4, 1, False),
        ("4", None, 4, 1, False),
        ("4", "2", 4, 1, False),
    ):
        with monkeypatch.context() as slurm:
            slurm.setenv("SLURM_NTASKS", tasks)
            slurm.setenv("SLURM_JOB_NAME", "x")
            slurm.setenv("SLURM_STEP_ID", "0")  # which srun sets
            if each is not None:
                slurm.setenv("SLURM_NTASKS_PER_NODE", each)
            if right:
                check_launcher(devices, nodes)
            else:
                with pytest.raises(UserError, match=r"train\.devices: expected as many tasks as devices"):
                    check_launcher(devices, nodes)


def test_ranks_that_do_not_reach_each_other_are_told_what_to_set(monkeypatch):
    def unreachable(backend):
        raise RuntimeError("Gloo connectFullMesh failed with [pair.cc:144] no error\nand a trace")

    monkeypatch.setattr(torch.distributed, "new_group", unreachable)
    with pytest.raises(UserError, match=r"got 'Gloo connectFullMesh .*'; set GLOO_SOCKET_IFNAME"):
        Stopping(StopRequest()).on_train_start(SimpleNamespace(world_size=2), None)


@pytest.mark.long
def test_torchrun_starts_ranks_too(tmp_path):
    """One folder, and the numbers of one process."""
    keys = [*KEYS, "train.accelerator=cpu", f"run.root={tmp_path}"]
    assert command(*keys, "run.name=one")[0] == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    done = subprocess.run(
        [*launcher, "-m", "gaussbias.fit", *keys, "train.devices=2", "run.name=two"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert [row["kimg"] for row in one] == [row["kimg"] for row in two]
    for a, b in zip(one, two, strict=True):
        if a["train/loss"]:  # gradients are summed in another order
            assert float(a["train/loss"]) == pytest.approx(float(b["train/loss"]), rel=1e-3)


@pytest.mark.long
def test_parts_of_a_batch_on_ranks_give_the_same_run(tmp_path):
    """Gradients of the parts stay on their rank but for the last, which sends the sum of all."""
    keys = [*KEYS, "train.kimg=2", "train.log_every_kimg=0.2", "train.grad_clip=1", "train.accelerator=cpu"]
    for name, more in {"whole": ["train.devices=1"], "parts": ["train.devices=2", "train.microbatch=5"]}.items():
        code, said = command(*keys, *more, f"run.root={tmp_path}", f"run.name={name}")
        assert code == 0, said
    losses = [
        [float(row["train/loss"]) for row in rows(tmp_path / name) if row["train/loss"]] for name in ("whole", "parts")
    ]
    assert len(losses[0]) >= 10
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.long
def test_a_labelled_run_on_two_ranks_is_that_on_one(tmp_path):
    """Before training to the round-off of other batches, and after it to that of sums of gradients; guidance too."""
    keys = [*SMALL, "data.labels=true", "model.label_dropout=0.2", "probes.guidance=[2]", "probes.per_class=true"]
    keys += ["data.classes=[2,7]", "data.n_train=100", "data.n_heldout=60"]
    keys += ["train.kimg=1", "probes.first_kimg=1", "train.accelerator=cpu", "probes.samples=40", "run.pictures=end"]
    for devices in (1, 2):
        code, said = command(*keys, f"train.devices={devices}", f"run.root={tmp_path}", f"run.name={devices}")
        assert code == 0, said
    one, two = (rows(tmp_path / str(devices)) for devices in (1, 2))
    measured = [place for place, row in enumerate(one) if row["probes/seconds"]]
    assert len(measured) == 2
    left_out = ("gap", "freedom", "novelty", "probes", "train")  # round-off over errors, counts, seconds and speed

    def group(key):
        return re.sub(r"^(class_\d+/|guided_2/)*", "", key).split("/")[0]

    for place, close in zip(measured, (1e-4, 2e-2), strict=True):
        values = {key: value for key, value in one[place].items() if value and not key.endswith("_se")}
        compared = [key for key in values if key != "run" and group(key) not in left_out]
        assert len(compared) > 700
        for key in compared:
            assert float(two[place][key]) == pytest.approx(float(values[key]), rel=close, abs=close / 20), key
    for file in sorted((tmp_path / "1" / "samples").glob("*.safetensors")):
        a, b = (load_file(tmp_path / str(devices) / "samples" / file.name) for devices in (1, 2))
        assert a.keys() == b.keys()
        assert all(int((a[name].int() - b[name].int()).abs().max()) <= 12 for name in a if "network" in name)


def test_the_image_is_made_of_what_is_here(root):
    """Its layers: torch, what pyproject.toml asks for, then the code; and who runs in it."""
    text = (root / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((root / name).exists() for name in line.split())
    ignored = (root / "docker" / "Dockerfile.dockerignore").read_text()
    assert {line[1:] for line in ignored.splitlines() if line.startswith("!")} == set(
        " ".join(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)).split()
    )
    (code,) = re.findall(r'RUN python -c "(.*)" >', text)
    code = code.replace("/src/", f"{root}/")
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    with (root / "pyproject.toml").open("rb") as file:
        assert listed.split("\n")[:-1] == tomllib.load(file)["project"]["dependencies"]
    (torch,) = re.findall(r"ARG TORCH=(.*)", text)
    assert torch in (root / "constraints.txt").read_text().splitlines()
    places = [
        text.index(words) for words in ('pip install "$TORCH"', "pip install -r", "--no-deps /src", "USER researcher")
    ]
    assert places == sorted(places)
    assert "WANDB_MODE=offline" in text


def test_the_commands_of_the_cluster_page_are_real(root):
    """Every key in it exists, and every file."""
    text = (root / "docs" / "cluster.md").read_text()
    listed = (root / "docs" / "interface.md").read_text()
    for key in re.findall(r"\b((?:train|run|data|probes|model)\.[a-z_]+)(?==|`)", text):
        assert f"| `{key}` |" in listed, key
    for name in re.findall(r"\b(?:docker|configs|docs)/[\w./-]+\w", text):
        assert (root / name).exists(), name
    for link in re.findall(r"\]\(([\w.-]+\.md)", text):
        assert (Path(root) / "docs" / link).exists(), link
