"""The atlas: its plan, a real tiny grid that is stopped, goes on and has a cell that fails, and what it exports."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gaussbias import config as configuration
from gaussbias.analysis import read_table
from gaussbias.atlas import State, read_plan, state_of, workers
from gaussbias.atlas.__main__ import main
from gaussbias.atlas.plan import Cell
from gaussbias.atlas.progress import reached
from gaussbias.atlas.timing import evaluations_of_a_measurement
from gaussbias.atlas.workers import environment
from gaussbias.fit import main as fit
from gaussbias.history.claiming import is_busy
from gaussbias.report.__main__ import main as report
from gaussbias.system.files import write

PLAN = """\
shared:
  train: {kimg: 2, batch_size: 32, accelerator: cpu}
  probes: {draws: 32, samples: 16, sampler_steps: 4, first_kimg: 1, every_kimg: 1}
  run: {wandb: disabled}
grids:
  digits:
    data: {source: digits, n_heldout: 300}
    model: {backbone: mlp, channels: 16}
    over:
      data.n_train: [20, 40]
      run.seed, data.subset_seed: [0, 1]
"""


def plan_file(tmp_path, text=PLAN, name="tiny.yaml"):
    file = tmp_path / name
    file.write_text(text)
    return file


def run(*arguments, **more):
    """The command as a user types it; the tests' own package, whatever the folder."""
    package = str(Path(__file__).parent.parent)
    place = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "gaussbias.atlas", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": place, "OMP_NUM_THREADS": "1"},
        **more,
    )


def test_a_finished_cell_that_stores_a_default_stays_finished(tmp_path, monkeypatch):
    """What data.n_heldout=null means has changed: a run has what it began with."""
    keys = {"data.source": "digits", "run.root": str(tmp_path)}
    now = Cell("x", "grid", configuration.from_keys({**keys, "data.n_heldout": None}, "", "x"))
    then = configuration.from_keys({**keys, "data.n_heldout": 1000}, "", "x")
    now.folder.mkdir()
    write(now.folder / "config.yaml", configuration.to_yaml(then))
    monkeypatch.setattr(workers, "is_finished", lambda folder: True)
    assert state_of(now) == State.FINISHED
    other = Cell("x", "grid", configuration.from_keys({**keys, "data.n_heldout": 999}, "", "x"))
    assert state_of(other) == State.BEGUN


def test_a_grid_has_a_cell_for_each_point(tmp_path):
    plan = read_plan(plan_file(tmp_path), [f"root={tmp_path}/runs"])
    names = [cell.name for cell in plan.cells]
    assert names == [f"digits-n_train{n}-seed{s}" for n in (20, 40) for s in (0, 1)]
    last = plan.cells[-1].config
    assert (last.data.n_train, last.run.seed, last.data.subset_seed) == (40, 1, 1)  # keys of one axis go together
    assert (last.run.name, last.run.group, last.run.root) == (names[-1], "tiny", f"{tmp_path}/runs")
    assert plan.cells[0].folder == tmp_path / "runs" / names[0]


def test_keys_of_one_axis_can_have_values_of_their_own(tmp_path):
    text = PLAN.replace("data.n_train: [20, 40]", "data.n_train, train.kimg: [[20, 1], [40, 3]]")
    cells = read_plan(plan_file(tmp_path, text)).cells
    assert [(cell.config.data.n_train, cell.config.train.kimg) for cell in cells[::2]] == [(20, 1), (40, 3)]
    assert cells[0].name == "digits-n_train20-kimg1-seed0"


def test_overrides_reach_all_cells_and_paths_those_that_read_files(tmp_path):
    text = PLAN + "  array:\n    data: {source: array, path: a.npy}\n    over: {data.half: [S1, S2]}\n"
    cells = read_plan(plan_file(tmp_path, text), ["train.kimg=3", "--data.path=b.npy"]).cells
    assert {cell.config.train.kimg for cell in cells} == {3}
    assert {cell.config.data.path for cell in cells} == {None, "b.npy"}
    assert [cell.name for cell in cells[-2:]] == ["array-halfS1", "array-halfS2"]


def test_a_surrogate_has_the_images_and_draws_of_its_network(tmp_path):
    plan = read_plan(plan_file(tmp_path, PLAN + "surrogates:\n  of: digits-*-seed1\n  linear: {draws: 200}\n"))
    added = plan.cells[4:]
    assert [cell.name for cell in added] == ["digits-n_train20-seed1-linear", "digits-n_train40-seed1-linear"]
    one = added[0]
    teacher = next(cell for cell in plan.cells if cell.name == one.needs)
    assert one.config.linear.teacher == str(teacher.folder)
    assert one.config.linear.draws == 200
    assert one.config.data == teacher.config.data
    assert one.config.probes.draws == teacher.config.probes.draws
    given = read_plan(plan_file(tmp_path, PLAN + "surrogates: {of: '*'}\n"), ["linear.draws=300", "train.devices=1"])
    assert {(cell.config.linear.draws, cell.config.train.devices) for cell in given.cells[4:]} == {(300, 1)}


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (PLAN.replace("n_train:", "n_trian:"), [], "digits: data.n_trian: no such key; expected one of"),
        (PLAN.replace("[20, 40]", "[20, 1]"), [], "digits: data.n_train: expected at least 2 images"),
        (PLAN.replace("[20, 40]", "20"), [], "digits: over: data.n_train: expected a list of values, got 20"),
        (
            PLAN.replace("[20, 40]", "[20, 20]"),
            [],
            "expected cells with different names, got digits-n_train20",
        ),
        (PLAN.replace("[0, 1]", "[[0, 1, 2]]"), [], "run.seed, data.subset_seed: expected 2 values for a point"),
        (
            PLAN.replace("grids:", "grid:"),
            [],
            "grid: no such key of an atlas; expected root, shared, grids",
        ),
        ("shared: {}\n", [], "grids: expected at least one grid of runs, got none"),
        (PLAN + "surrogates: {of: other*}\n", [], "surrogates: of: expected names of cells such as digits-n_train20"),
        (PLAN + "surrogates: {of: 5}\n", [], "surrogates: of: expected names of cells, with * for anything, got 5"),
        (PLAN + "root: [a]\n", [], "root: expected the name of a folder, got ['a']"),
        (PLAN.replace("  digits:", "  logs:").split("    over")[0], [], "logs: expected another name for this grid"),
        (PLAN, ["run.name=x"], "run.name: expected root=FOLDER for an atlas"),
        (PLAN, ["data.n_train=3"], "data.n_train: expected it on the command line or in `over`, got both"),
        (PLAN, ["train.kimg=x"], "train.kimg: expected number, got 'x'"),
        (PLAN, ["--jobs", "0"], "--jobs: expected at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_begun(text, given, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--config", str(plan_file(tmp_path, text)), *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_plan_is_said_with_its_time_and_nothing_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--config", str(plan_file(tmp_path)), "--print-plan", "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"runs/tiny: 4 cells, 0 finished; 4 to do, 3 at a time on .*: about \d+ (s|min)", out)
    assert re.search(r"digits-n_train40-seed1 +new +about \d+ s", out)
    assert not (tmp_path / "runs").exists()


def test_an_atlas_on_cpus_takes_no_gpus(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gaussbias.atlas.__main__._gpus", lambda: ["0", "1", "2"])
    monkeypatch.setattr("gaussbias.atlas.__main__.cores", lambda: 7)
    monkeypatch.setattr("gaussbias.atlas.__main__.estimate", lambda *_: {})
    for accelerator, where in (("auto", "3 at a time on 3 GPUs"), ("cpu", "7 at a time on 7 CPU cores")):
        assert main(["--config", str(plan_file(tmp_path)), "--print-plan", f"train.accelerator={accelerator}"]) == 0
        assert where in capsys.readouterr().out


def test_images_that_are_not_there_are_noticed_before_anything_runs(tmp_path, capsys):
    text = PLAN.replace("source: digits", "source: array, path: no/such.npy")
    assert main(["--config", str(plan_file(tmp_path, text)), f"root={tmp_path}/runs"]) == 2
    assert "data.path: expected" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_evaluations_are_those_that_a_run_makes(tmp_path, monkeypatch):
    """Counted in a real run: images that the network was evaluated on beyond those of its training steps."""
    from gaussbias.denoisers import EDMDenoiser

    (cell, *_) = read_plan(plan_file(tmp_path), [f"root={tmp_path}/runs", "train.kimg=1"]).cells
    (tmp_path / "cell.yaml").write_text(configuration.to_yaml(cell.config))
    seen = []
    original = EDMDenoiser.forward
    monkeypatch.setattr(EDMDenoiser, "forward", lambda self, x, sigma: seen.append(len(x)) or original(self, x, sigma))
    assert fit(["--config", str(tmp_path / "cell.yaml")]) == 0
    trained, measurements = 32 * 32, 2
    each = (sum(seen) - trained) / measurements
    assert each == pytest.approx(evaluations_of_a_measurement(cell.config), rel=0.25)  # pictures, means


def test_jobs_share_out_cores_and_gpus(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert environment(0, 1, [])["OMP_NUM_THREADS"] == str(cores)
    assert environment(0, 2 * cores, [])["OMP_NUM_THREADS"] == "1"
    assert [environment(slot, 2, list("0123"))["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)] == ["0,1", "2,3"]
    assert [environment(slot, 3, list("0123"))["CUDA_VISIBLE_DEVICES"] for slot in (0, 1, 2)] == ["0", "1", "2"]
    assert [environment(slot, 3, list("01"))["CUDA_VISIBLE_DEVICES"] for slot in (0, 1, 2)] == ["0", "1", "0"]


@pytest.mark.long
def test_a_grid_is_stopped_goes_on_and_its_failing_cell_stops_nothing(tmp_path, capsys):
    """One cell asks for more images than there are, another is finished before; the atlas is stopped in the middle."""
    text = (
        PLAN.replace("[20, 40]", "[5000, 20, 40]")
        .replace("[0, 1]", "[0]")
        .replace("kimg: 2,", "kimg: 16,")
        .replace("every_kimg: 1}", "every_kimg: 8}")
    )
    text += "surrogates:\n  of: ['*n_train20-*', '*n_train5000-*']\n  linear: {draws: 200}\n"
    file, root = plan_file(tmp_path, text), tmp_path / "runs"
    plan = read_plan(file, [f"root={root}"])
    big, few, more, big_linear, few_linear = plan.cells
    assert fit(["--config", str(file_of(tmp_path, more)), "train.kimg=16"]) == 0
    written = (more.folder / "history.csv").read_bytes()
    assert state_of(more) is State.FINISHED
    process = run("--config", file, f"root={root}", "--jobs", "1")
    deadline = time.monotonic() + 180
    while reached(few.folder) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert "stopped; run the same command again to continue" in said
    assert state_of(few) is State.BEGUN
    assert (few.folder / "checkpoints" / "last.ckpt").exists()
    process = run("--config", file, f"root={root}", "--jobs", "2")
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 1, said
    assert re.search(rf"{big.name}: exit code 2: .*data.n_train: expected at most", said)
    assert f"{big_linear.name}: it needs {big.name}, which failed" in said
    assert "3 of 5 cells are finished" in said
    assert [state_of(cell) for cell in (few, more, few_linear)] == [State.FINISHED] * 3
    assert (more.folder / "history.csv").read_bytes() == written  # it was skipped
    assert (few.folder / "attempts.jsonl").read_text().count("\n") >= 2
    assert len(list((root / "logs").iterdir())) == 3
    capsys.readouterr()
    assert report([str(root)]) == 0  # of what is there
    said = capsys.readouterr().out
    assert "With N = 20 a network is nearer to the Gaussian denoiser" in said
    records = {record.name: record for record in read_table(root / "report" / "runs.csv")}
    assert set(records) == {cell.name for cell in (few, more, few_linear)}
    assert len(records[few.name].rows) == 6
    html = (root / "report" / "report.html").read_text()
    assert "http" not in html
    assert html.count("data:image/png") == len(list((root / "report" / "figures").glob("*.png"))) >= 8


@pytest.mark.long
def test_an_atlas_that_is_killed_leaves_no_process(tmp_path):
    text = PLAN.replace("[20, 40]", "[20]").replace("[0, 1]", "[0]").replace("kimg: 2,", "kimg: 500,")
    file, root = plan_file(tmp_path, text), tmp_path / "runs"
    (cell,) = read_plan(file, [f"root={root}"]).cells
    process = run("--config", file, f"root={root}")
    deadline = time.monotonic() + 120
    while reached(cell.folder) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_busy(cell.folder)
    process.kill()
    process.communicate(timeout=60)
    while is_busy(cell.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_busy(cell.folder)


def file_of(tmp_path, cell):
    """The configuration of a cell in a file of its own."""
    file = tmp_path / f"{cell.name}.yaml"
    file.write_text(configuration.to_yaml(cell.config))
    return file


@pytest.mark.long
def test_a_cell_whose_configuration_has_changed_is_not_finished(tmp_path):
    text = PLAN.replace("[20, 40]", "[20]").replace("[0, 1]", "[0]")
    (cell,) = read_plan(plan_file(tmp_path, text), [f"root={tmp_path}/runs"]).cells
    assert state_of(cell) is State.NEW
    assert fit(["--config", str(file_of(tmp_path, cell))]) == 0
    assert state_of(cell) is State.FINISHED
    for given, state in (
        ("train.kimg=3", State.BEGUN),
        ("run.tags=[a]", State.FINISHED),
        ("model.channels=8", State.BEGUN),
    ):
        (other,) = read_plan(plan_file(tmp_path, text), [f"root={tmp_path}/runs", given]).cells
        assert state_of(other) is state, given
    from gaussbias.history.claiming import hold

    (other,) = read_plan(plan_file(tmp_path, text), [f"root={tmp_path}/runs", "train.kimg=3"]).cells
    with hold(cell.folder):
        assert state_of(other) is State.BUSY


def test_a_sweep_runs_the_same_cells_in_the_same_folders(tmp_path, capsys, monkeypatch):
    """What an agent of W&B would call: ${args} is --config=FILE."""
    monkeypatch.chdir(tmp_path)
    file = plan_file(tmp_path, PLAN + "surrogates: {of: '*n_train20-seed0'}\n")
    assert main(["--config", str(file), "--export", "sweep"]) == 0
    sweeps = [
        yaml.safe_load((tmp_path / "runs" / "tiny" / f"{name}.yaml").read_text())
        for name in ("sweep", "sweep_surrogates")
    ]
    plan = read_plan(file)
    cells = iter(plan.cells)
    for sweep in sweeps:
        assert sweep["method"] == "grid"
        assert sweep["command"][:4] == ["${env}", "${interpreter}", "-m", "gaussbias.fit"]
        for value in sweep["parameters"]["config"]["values"]:
            arguments = [f"--config={value}" if part == "${args}" else part for part in sweep["command"][4:]]
            capsys.readouterr()
            assert fit([*arguments, "--print-config"]) == 0
            there = yaml.safe_load(capsys.readouterr().out)
            assert (there["run"]["root"], there["run"]["name"]) == ("runs/tiny", next(cells).name)
            assert there["run"]["wandb"] == "online"
    assert next(cells, None) is None


SBATCH = """#!/bin/sh
# a double: remembers how it was called, and runs each task of the array
echo "$@" >> {place}/submitted
while [ "${{1#--}}" != "$1" ]; do case $1 in --array=*) array=${{1#--array=}};; esac; shift; done
for task in $(seq ${{array%-*}} ${{array#*-}}); do
  SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_JOB_ID=7 SLURM_JOB_ID=8 bash "$@" >> {place}/tasks
done
echo 7
"""


def test_an_array_runs_the_same_cells_and_requeues_a_task_that_was_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = plan_file(tmp_path, PLAN + "surrogates: {of: '*n_train20-seed0'}\n")
    assert main(["--config", str(file), "--export", "slurm"]) == 0
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("sbatch", SBATCH.format(place=tmp_path)),
        ("srun", '#!/bin/sh\nshift\necho "$@"\ncase "$@" in *train40-seed1*) exit 75;; esac\n'),
        ("scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n'),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(["bash", "runs/tiny/submit.sh"], check=True, env={**os.environ, "PATH": path}, capture_output=True)
    called = [line for line in (tmp_path / "tasks").read_text().splitlines() if line.startswith("python")]
    names = [cell.name for cell in read_plan(file).cells]
    assert called == [f"python -m gaussbias.fit --config runs/tiny/cells/{name}.yaml --resume" for name in names]
    assert (tmp_path / "requeued").read_text() == "requeue 7_4\n"
    first, second = (tmp_path / "submitted").read_text().splitlines()
    assert "--array=1-4" in first
    assert "--array=1-1" in second
    assert "--dependency=afterany:7" in second
    for line in called:
        assert fit([*line.split()[3:], "--print-config"]) == 0
