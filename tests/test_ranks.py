"""Which process is the first: what works together decides it, not what an environment has left over."""

import os
import stat

import pytest
from runs import SMALL, command, rows

from gaussbias.system import ranks
from gaussbias.system.errors import UserError
from gaussbias.training.devices import check_launcher

NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NAME", "SLURM_STEP_ID"),
)
SRUN = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "x", "SLURM_STEP_ID": "0"}


@pytest.fixture
def environment(monkeypatch):
    def are(**variables):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return are


@pytest.mark.parametrize(
    "stray",
    [
        {"RANK": "1"},
        {"NODE_RANK": "1"},
        {"LOCAL_RANK": "1"},
        {"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "1"},
        {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
        {"SLURM_PROCID": "3", **SRUN},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "interactive"},
        {"RANK": ""},
        {},
    ],
)
def test_a_process_alone_is_first_whatever_its_environment_says(stray, environment):
    environment(**stray)
    ranks.settle(world_size=1)
    assert ranks.is_first()
    assert not any(name in os.environ for name in (*ranks.NUMBERS, "WORLD_SIZE"))


@pytest.mark.parametrize(
    ("variables", "nodes", "first", "several"),
    [
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}, 1, True, True),
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, 2, False, True),
        # torchrun started by srun: its ranks count
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "4", "SLURM_PROCID": "1", **SRUN}, 1, True, True),
        ({"SLURM_PROCID": "0", **SRUN}, 1, True, True),
        ({"SLURM_PROCID": "2", "RANK": "0", **SRUN}, 1, False, True),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "x"}, 1, True, False),  # an allocation's shell
        # the shell of an allocation, whatever its name: a step that srun did not start
        ({"SLURM_PROCID": "1", **SRUN, "SLURM_STEP_ID": "4294967290"}, 1, True, False),
        ({"LOCAL_RANK": "1", "MASTER_PORT": "1234", "WORLD_SIZE": "4"}, 1, False, True),  # Lightning's own
        ({"LOCAL_RANK": "1"}, 1, True, False),  # it could meet nobody
        ({"NODE_RANK": "1"}, 1, True, False),
        ({"NODE_RANK": "1"}, 2, False, False),
        ({"RANK": "2"}, 1, True, False),
    ],
)
def test_of_several_the_launchers_numbers_count(variables, nodes, first, several, environment):
    environment(**variables)
    ranks.settle(world_size=4, nodes=nodes)
    assert ranks.is_first() == first
    assert ranks.several() == several


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "²"])
def test_a_number_that_is_none_is_one_line(value, environment):
    environment(NODE_RANK=value)
    with pytest.raises(UserError, match=r"NODE_RANK: expected a whole number, as launchers set it, got '.*'; unset"):
        ranks.check_numbers()
    environment(SLURM_NTASKS=value)
    with pytest.raises(UserError, match="SLURM_NTASKS: expected a whole number"):
        ranks.check_numbers()
    environment(RANK="12")
    ranks.check_numbers()


def test_ranks_of_a_launcher_that_is_not_known_are_refused(environment):
    """Kubeflow's, say, which has no numbers of nodes: each process would be the first of a run in one folder."""
    for rank in ("0", "1"):
        environment(RANK=rank, WORLD_SIZE="2", MASTER_PORT="1234")
        with pytest.raises(
            UserError, match=rf"train\.num_nodes: expected .* torchrun or srun, .*, got RANK={rank} alone"
        ):
            check_launcher(1, 2)
    for known in ({"NODE_RANK": "1"}, {"RANK": "1", "NODE_RANK": "1"}, {}):
        environment(**known)
        check_launcher(1, 2)
    environment(RANK="1", WORLD_SIZE="2")
    check_launcher(1, 1)


def contents(folder):
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.long
def test_a_stray_environment_neither_empties_a_run_nor_overwrites_one(tmp_path):
    """Real processes: libraries read these variables when they are imported. Its name is no ASCII, its terminal is."""
    keys = [*SMALL, "train.kimg=0.5", f"run.root={tmp_path}", "run.name=übung"]
    run = tmp_path / "übung"
    code, said = command(*keys, RANK="1", NODE_RANK="1", SLURM_PROCID="3", SLURM_NTASKS="4", PYTHONIOENCODING="ascii")
    assert code == 0, said
    assert r"\xfcbung: 300 training and 397 held-out images" in said
    assert "denoisers on held-out images" in said
    assert len(rows(run)) >= 2
    for name in ("config.yaml", "moments.safetensors", "denoiser.safetensors", "checkpoints/last.ckpt", "done.json"):
        assert (run / name).exists(), name
    umask = os.umask(0)
    os.umask(umask)
    modes = {str(file): stat.S_IMODE(file.stat().st_mode) for file in contents(run)}
    assert {name: mode for name, mode in modes.items() if mode != 0o666 & ~umask} == {}

    before = contents(run)
    for stray in ({"LOCAL_RANK": "1"}, {"SLURM_PROCID": "1", **SRUN}, {"RANK": "1", "WORLD_SIZE": "2"}):
        code, said = command(*keys, **stray)
        assert (code, said.count("\n")) == (2, 1), said
        assert "SLURM has started 4" in said if "SLURM_PROCID" in stray else "holds a run already" in said
    code, said = command(*keys, "--resume", "model.channels=8", NODE_RANK="1")
    assert code == 2
    assert "begun with other values of model.channels (16 -> 8)" in said
    code, said = command(*keys, "--resume", RANK="")
    assert (code, said.count("\n")) == (2, 1)
    assert "RANK: expected a whole number" in said
    assert contents(run) == before
