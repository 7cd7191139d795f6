"""What a run survives: real processes, real signals, real files. docs/reliability.md says what is promised.

`long` tests are left out by default: `-m "not soak"` runs them too, `-m soak` kills a run 100 times.
"""

import contextlib
import io
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from runs import SMALL, Run, checkpoint, differences, rows

KEYS = [*SMALL, "train.kimg=8", "train.checkpoint_every_kimg=2", "train.log_every_kimg=1", "probes.first_kimg=2"]
KEYS += ["probes.every_kimg=2", "model.dropout=0.1", "data.flip=true", "train.grad_clip=1"]
STEPS = {round(1000 * kimg / 32) for kimg in (2, 4, 6, 8)}
"""Those of the checkpoints."""


def later(value):
    """A case that is left out by default."""
    return pytest.param(value, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 8 kimg that nothing happened to."""
    root = tmp_path_factory.mktemp("whole")
    code, said = Run(*KEYS, f"run.root={root}", "run.name=whole", said=root / "said").end()
    assert code == 0, said
    return root / "whole"


class Folder:
    """A run folder, and runs in it."""

    def __init__(self, root):
        self.root, self.path = root, root / "x"

    def start(self, *keys, **how):
        return Run(*KEYS, f"run.root={self.root}", "run.name=x", *keys, said=self.root / "said", **how)

    def resume(self, *keys, **how):
        code, said = self.start("--resume", *keys, **how).end()
        assert code == 0, said
        return said

    def steps(self):
        return checkpoint(self.path)["global_step"]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def no_run_is_left():
    yield
    Run.end_all()


# stopped and killed


@pytest.mark.parametrize("number", [signal.SIGTERM, later(signal.SIGUSR1), later(signal.SIGINT)], ids=lambda n: n.name)
def test_a_run_that_is_asked_to_stop_leaves_a_checkpoint_and_goes_on_as_if_nothing_had_happened(number, whole, folder):
    run = folder.start()
    run.until(lambda: len(rows(folder.path)) > 5)
    run.send(number)
    code, said = run.end()
    assert code == (130 if number == signal.SIGINT else 75)
    assert f"{number.name}: stopping at the next good moment, with a checkpoint" in said
    assert said.endswith(f"gaussbias.fit: stopped by {number.name}; with --resume it goes on\n")
    assert "Traceback" not in said
    reached = folder.steps() * 0.032
    assert f"continued at {reached:g} kimg" in folder.resume()
    assert differences(whole, folder.path) == []


def test_a_run_that_is_killed_goes_on_as_if_nothing_had_happened(whole, folder):
    run = folder.start()
    run.until(lambda: len(rows(folder.path)) > 5)
    run.send(signal.SIGKILL)
    code, _ = run.end()
    assert code == -signal.SIGKILL
    (folder.path / "samples" / "7.777.safetensors").write_bytes(b"measured after the checkpoint")
    folder.resume()
    assert differences(whole, folder.path) == []


def stop_while_it_starts():
    """SIGTERM to this process when Lightning has restored some of a run, but not all."""
    from gaussbias.modules import EDMModule

    original = EDMModule.configure_optimizers

    def hook(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    EDMModule.configure_optimizers = hook


@pytest.mark.long
def test_a_run_that_is_stopped_while_it_starts_changes_nothing(whole, folder):
    """What was restored by then is no checkpoint."""
    code, said = folder.start(fault=stop_in_a_measurement, about=(125,)).end()
    assert code == 75, said
    before = {path.name: path.read_bytes() for path in (folder.path / "checkpoints").iterdir()}
    code, said = folder.start("--resume", fault=stop_while_it_starts).end()
    assert code == 75, said
    assert {path.name: path.read_bytes() for path in (folder.path / "checkpoints").iterdir()} == before
    folder.resume()
    assert differences(whole, folder.path) == []


@pytest.mark.long
def test_signals_on_the_way_out_do_not_change_the_exit_code(folder):
    """As clusters send them: SIGUSR1, then SIGTERM until it has ended. A second Ctrl-C does not wait."""
    line = [sys.executable, "-m", "gaussbias.fit", *KEYS, "train.kimg=400", f"run.root={folder.root}"]
    for name, first, second, code in (
        ("x", signal.SIGUSR1, signal.SIGTERM, 75),
        ("y", signal.SIGINT, signal.SIGTERM, 130),
    ):
        process = subprocess.Popen([*line, f"run.name={name}"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while len(rows(folder.root / name)) < 3:
            assert process.poll() is None
        process.send_signal(first)
        while process.poll() is None:
            process.send_signal(second)
            time.sleep(0.1)
        assert process.returncode == code, process.stderr.read()
        process.stderr.close()


@pytest.mark.long
@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed(nohup, folder):
    # one that stops has to be far from its end when the terminal is closed, however busy the machine is
    kimg = 4 if nohup else 400
    keys = [*KEYS, f"train.kimg={kimg}", "probes.every_kimg=4", f"run.root={folder.root}", "run.name=x"]
    line = ["nohup"] * nohup + [sys.executable, "-m", "gaussbias.fit", *keys]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        os.chdir(folder.root)  # where nohup writes
        os.execvp(line[0], line)
    until = time.monotonic() + 100
    while len(rows(folder.path)) < 2:
        assert time.monotonic() < until
        with contextlib.suppress(OSError):  # nohup has let go of it
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if nohup else 75)
    assert (folder.path / "denoiser.safetensors").exists() == nohup
    assert folder.steps() == 125 if nohup else 0 < folder.steps() < 12_500


def stop_in_a_measurement(step):
    """SIGTERM to this process while the network is measured after a step, with the average in its place."""
    from gaussbias.callbacks import ProbeCallback

    original = ProbeCallback.on_validation_batch_end

    def hook(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        if trainer.global_step == step and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

    ProbeCallback.on_validation_batch_end = hook


@pytest.mark.parametrize("step", [later(0), 125, later(250)])
def test_a_measurement_that_was_broken_off_is_made_again(step, whole, folder):
    """The first one, one in the middle and the last one; what is saved is what is trained, not its average."""
    code, said = folder.start(fault=stop_in_a_measurement, about=(step,)).end()
    assert code == 75, said
    if step:
        saved = checkpoint(folder.path)
        assert saved["global_step"] == step
        assert not saved["measured"]
        raw, average = saved["current_model_state"], saved["state_dict"]
        assert any(not torch.equal(raw[name], average[name]) for name in raw)
        kimg = [row["kimg"] for row in rows(folder.path) if row.get("probes/seconds")]
        assert f"{step * 32 / 1000}" not in kimg
    folder.resume()
    assert differences(whole, folder.path) == []


def stop_in_an_evaluation(number, log):
    """SIGTERM to this process within an evaluation of the network for samples; those that follow go to a file."""
    from gaussbias.denoisers import EDMDenoiser

    original, seen = EDMDenoiser.forward, []

    def evaluate(self, x, sigma):
        if not torch.is_grad_enabled() and len(seen) >= number:
            Path(log).write_text("evaluated after the request")
        if not torch.is_grad_enabled() and len(x) == 8:  # the samples
            seen.append(x)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGTERM)
        return original(self, x, sigma)

    EDMDenoiser.forward = evaluate


def test_a_request_is_honoured_between_two_evaluations_of_the_network(whole, folder, tmp_path):
    """A block of samples takes many, which may be minutes."""
    log = tmp_path / "evaluations"
    code, said = folder.start(
        fault=stop_in_an_evaluation, about=(11, str(log))
    ).end()  # the third of the second measurement
    assert code == 75, said
    assert not log.exists()
    assert "continued at " in folder.resume()
    assert differences(whole, folder.path) == []


def limit_files(size):
    """No file may be larger, as with a quota: what the run reckons with at its start is not seen."""
    import resource

    from gaussbias.training import run

    run.check_limit = lambda *_: None
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_run_whose_checkpoints_cannot_be_written_says_what_is_left(folder):
    """Its rows are; there is nothing to go on from, and nothing else is promised."""
    keys = ["train.kimg=2", "probes.every_kimg=1", "train.checkpoint_every_kimg=1", "model.channels=128"]
    code, said = folder.start(*keys, fault=limit_files, about=(300_000,)).end()
    assert code == 1, said
    last = said.splitlines()[-1]
    assert "gaussbias.fit: no checkpoint could be written (File too large" in last
    assert f"the run has nothing to go on from, though its rows stay in {folder.path}: begin another run.name" in last
    assert len(rows(folder.path)) > 2
    code, said = folder.start(*keys, "--resume").end()
    assert code == 2, said
    assert "has rows up to 2.016 kimg, but no checkpoint" in said


def test_a_limit_below_a_checkpoint_is_noticed_before_anything_begins(folder):
    import resource

    code, said = folder.start(
        fault=resource.setrlimit, about=(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    ).end()
    assert code == 2, said
    assert "gaussbias.fit: expected to write checkpoints of about" in said
    assert not folder.path.exists()


def cut_power(moment, count):
    """SIGKILL while a checkpoint is written for the `count`-th time: within it, before it has its name, and after."""
    from gaussbias.callbacks import checkpoints

    save, replace, seen = torch.save, Path.replace, []

    def half(what, file):
        save(what, file)
        seen.append(file)
        if moment == "within" and len(seen) == count:
            file.truncate(file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, target):
        if moment == "before" and len(seen) == count and Path(target).suffix == ".ckpt":
            os.kill(os.getpid(), signal.SIGKILL)
        result = replace(self, target)
        if moment == "after" and len(seen) == count and Path(target).suffix == ".ckpt":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    checkpoints.torch.save, Path.replace = half, rename


@pytest.mark.parametrize("moment", [later("within"), later("before"), later("after")])
def test_a_power_cut_while_a_checkpoint_is_written(moment, whole, folder):
    code, _ = folder.start(fault=cut_power, about=(moment, 3)).end()
    assert code == -signal.SIGKILL
    said = folder.resume()
    assert f"continued at {6.016 if moment == 'after' else 4:g} kimg" in said
    assert differences(whole, folder.path) == []
    assert not list((folder.path / "checkpoints").glob("*.tmp"))


def cut(content):
    return content[: len(content) // 2]


def zero(content):
    """What a file system may leave of a file that was not on the disk."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def flip(content):
    """One bit of the largest tensor."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    place = content.index(largest.filename.encode()) + len(largest.filename) + 100 + largest.file_size // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def empty(content):
    return b""


@pytest.mark.parametrize("damage", [later(cut), zero, later(flip), later(empty)], ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_put_aside_for_the_one_before(damage, whole, folder):
    shutil.copytree(whole, folder.path)
    places = folder.path / "checkpoints"
    newest, before = places / "00000250.ckpt", places / "00000188.ckpt"
    newest.write_bytes(damage(newest.read_bytes()))  # last.ckpt is the same file
    said = folder.resume()
    assert f"{newest} is damaged (" in said
    assert f"the run goes on from {before.name}" in said
    assert "continued at 6.016 kimg" in said
    assert differences(whole, folder.path) == []
    (places / "last.ckpt").unlink()
    for path in places.glob("*.ckpt"):
        path.write_bytes(damage(path.read_bytes()))
    code, said = folder.start("--resume").end()
    assert code == 2
    assert f"--resume: no checkpoint in {places} is whole (00000250.ckpt: " in said
    assert said.count("\n") == 1


@pytest.mark.long
def test_a_finished_run_that_is_extended_equals_a_longer_one(whole, folder):
    code, said = folder.start("train.kimg=4").end()
    assert code == 0, said
    said = folder.resume()
    assert "it goes on with train.kimg (4.0 -> 8.0)" in said
    assert differences(whole, folder.path) == []


# disks


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own, of a size to be chosen."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes, options="rw"):
        how = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,{options}", "none", str(place)]
        if subprocess.run(how, capture_output=True).returncode:
            pytest.skip("mounting a small disk takes root")
        return place

    yield mount
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


def fill(place):
    """Fill a disk."""
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("errors", ["continue", later("stop")])
def test_a_full_disk(errors, whole, folder, small_disk, tmp_path):
    """The disk is full from the middle of the run on, and has room again once it is resumed."""
    place = small_disk(8000)
    folder.root, folder.path = place, place / "x"
    folder.start = lambda *keys, **how: Run(
        *KEYS, f"run.root={place}", "run.name=x", f"run.write_errors={errors}", *keys, said=tmp_path / "said", **how
    )
    run = folder.start()
    run.until(lambda: (folder.path / "checkpoints" / "last.ckpt").exists())  # which its rows are older than
    fill(place)
    code, said = run.end()
    assert code == 1, said
    assert "could not be written (No space left on device)" in said
    assert "Traceback" not in said
    good = folder.steps()
    assert good < 250
    last = said.splitlines()[-1]
    if errors == "stop":
        assert "the run stopped, and goes on from the last good one with --resume" in last
        assert good < max(step for step in STEPS if step > good) <= 250
    else:
        assert "; the last good one stays" in said
        assert "gaussbias.fit: the last checkpoint could not be written (No space left on device)" in last
    (place / "ballast").unlink()
    folder.resume()
    assert differences(whole, folder.path) == []


@pytest.mark.long
def test_a_disk_that_has_room_again_loses_nothing(whole, folder, small_disk, tmp_path):
    """A run that goes on writes what it could not, rows first."""
    place = small_disk(8000)
    run = Run(*KEYS, f"run.root={place}", "run.name=x", said=tmp_path / "said")
    run.until(lambda: len(rows(place / "x")) > 3)
    fill(place)
    run.until(lambda: "history.csv could not be written" in run.said)
    (place / "ballast").unlink()
    code, said = run.end()
    assert code == 0, said
    assert "history.csv has all rows again" in said
    pictures = ("samples/", "figures/")  # which a run can do without, and draws at the end
    assert [line for line in differences(whole, place / "x") if not line.startswith(pictures)] == []


def test_a_folder_that_may_not_be_written(whole, small_disk, tmp_path):
    place = small_disk(8000)
    shutil.copytree(whole, place / "x")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    for name in ("x", "y"):
        code, said = Run(*KEYS, f"run.root={place}", f"run.name={name}", "--resume", said=tmp_path / "said").end()
        assert code == 2
        assert "run.root: " in said
        assert said.count("\n") == 1


# the folder


def test_two_processes_do_not_work_in_one_folder(folder):
    first = folder.start()
    first.until(lambda: len(rows(folder.path)) > 1)
    second = Run(*KEYS, f"run.root={folder.root}", "run.name=x", "--resume", said=folder.root / "second")
    code, said = second.end()
    assert code == 2
    assert f"run.name: another process is at work in {folder.path}; wait until it has ended" in said
    assert said.count("\n") == 1
    first.send(signal.SIGKILL)
    first.end()
    folder.resume("train.kimg=4")  # whoever was killed holds nothing


def test_what_may_change_when_a_run_goes_on(whole, folder):
    shutil.copytree(whole, folder.path)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    cases = {
        ("train.batch_size=16", "model.channels=8", "run.seed=3"): "with other values of model.channels (16 -> 8), "
        "run.seed (0 -> 3), train.batch_size (32 -> 16), which would make it another run",
        (
            "train.lr=0.01",
            "noise.P_mean=-1",
        ): "with other values of noise.P_mean (-1.2 -> -1.0), train.lr (0.002 -> 0.01); "
        "leave them as they were, or go on with --force",
    }
    for keys, text in cases.items():
        code, said = folder.start("--resume", *keys).end()
        assert code == 2
        assert text in said
        assert said.count("\n") == 1
    code, said = folder.start("--resume", "--force", "data.n_train=200").end()
    assert code == 2
    assert "data.n_train (300 -> 200), which would make it another run" in said
    after = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert after == before
    said = folder.resume("--force", "train.lr=0.01", "train.kimg=9")
    assert "it goes on with run.name (whole -> x), run.root (" in said
    assert "train.kimg (8.0 -> 9.0), train.lr (0.002 -> 0.01)\n" in said
    rates = {float(row["kimg"]): float(row["train/lr"]) for row in rows(folder.path) if row["train/lr"]}
    assert {rate for kimg, rate in rates.items() if 2 < kimg <= 8} == {0.002}
    assert {rate for kimg, rate in rates.items() if kimg > 8} == {0.01}
    attempts = (folder.path / "attempts.jsonl").read_text().splitlines()
    assert len(attempts) == 2
    assert '"train.kimg": [8.0, 9.0], "train.lr": [0.002, 0.01]}' in attempts[1]


def test_the_last_line_of_history_was_cut_short(whole, folder):
    shutil.copytree(whole, folder.path)
    history = folder.path / "history.csv"
    history.write_bytes(history.read_bytes()[:-40])
    said = folder.resume()
    assert f"history.csv lacks rows before {folder.path}/checkpoints/00000250.ckpt" in said
    assert "continued at 6.016 kimg" in said
    assert differences(whole, folder.path) == []


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(whole, folder):
    """Its rows would be lost."""
    shutil.copytree(whole, folder.path)
    shutil.rmtree(folder.path / "checkpoints")
    before = (folder.path / "history.csv").read_bytes()
    code, said = folder.start("--resume").end()
    assert code == 2
    assert f"the run in {folder.path} has rows up to 8 kimg, but no checkpoint; put one back" in said
    assert said.count("\n") == 1
    assert (folder.path / "history.csv").read_bytes() == before
    (folder.path / "config.yaml").unlink()
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "last.ckpt").touch()
    code, said = folder.start("--resume").end()
    assert code == 2
    assert "holds checkpoints, but its config.yaml is not there; put it back" in said


@pytest.mark.long
def test_a_run_that_was_killed_when_it_began_begins(folder):
    folder.path.mkdir()
    for name in (".lock", "config.tmp", "attempts.jsonl"):
        (folder.path / name).touch()
    assert "yet: it begins" in folder.resume("train.kimg=1")


def test_nothing_outside_a_folder_is_written_or_removed(whole, folder):
    """Links in a run folder from elsewhere lead nowhere."""
    outside = folder.root / "outside"
    outside.mkdir()
    for name in ("precious.txt", "2024.png"):
        (outside / name).write_text(name)
    shutil.copytree(whole, folder.path)
    for name in ("config.tmp", "attempts.tmp", "history.tmp"):
        (folder.path / name).symlink_to(outside / "precious.txt")
    folder.resume("train.kimg=9")
    shutil.rmtree(folder.path / "samples")
    (folder.path / "samples").symlink_to(outside)
    code, said = folder.start("--resume", "train.kimg=10").end()
    assert code == 2
    assert f"--resume: expected a folder at {folder.path}/samples, found a link" in said
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "precious.txt": "precious.txt",
        "2024.png": "2024.png",
    }


def test_a_history_that_is_not_one_is_refused(whole, folder):
    shutil.copytree(whole, folder.path)
    (folder.path / "history.csv").write_text("kimg,epoch\none,two\n")
    code, said = folder.start("--resume").end()
    assert code == 2
    assert "expected a table of logged numbers at" in said
    assert said.count("\n") == 1


def turn_back_clocks():
    """A clock that goes backwards, a day a second, and files whose times say nothing."""
    begun, clock = time.time(), time.time

    def back():
        return begun - 86400 * (clock() - begun)

    time.time = back


@pytest.mark.long
def test_a_clock_that_goes_backwards(whole, folder):
    run = folder.start(fault=turn_back_clocks)
    run.until(lambda: len(rows(folder.path)) > 5)
    run.send(signal.SIGTERM)
    assert run.end()[0] == 75
    for i, path in enumerate(sorted(folder.path.rglob("*"))):
        os.utime(path, (i * 1000.0, 1e9 - i * 1000.0))
    folder.resume(fault=turn_back_clocks)
    assert differences(whole, folder.path) == []


# several processes


RANKS = ["train.accelerator=cpu", "train.devices=2"]


def left(text, patience=10):
    """Processes whose command line has a text in it, but for those that end within some seconds."""
    stop = time.monotonic() + patience
    while (there := named(text)) and time.monotonic() < stop:
        time.sleep(0.1)
    return there


def named(text):
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if text in Path(f"/proc/{entry.name}/cmdline").read_text():
                    found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize(("kind", "rank"), [("raise", 0), ("raise", 1), ("kill", 0), ("kill", 1)])
def test_a_rank_that_dies_ends_the_job(kind, rank, folder):
    """Within a minute, with its own traceback, and with no process left."""
    driver = folder.root / "driver.py"
    act = "raise ValueError('the fault')" if kind == "raise" else "os.kill(os.getpid(), signal.SIGKILL)"
    driver.write_text(f"""
import os, signal, sys
from gaussbias.fit import main
from gaussbias.modules import EDMModule
original = EDMModule.training_step
def step(self, batch, i):
    if batch["step"] == 70 and self.global_rank == {rank}:
        (folder / "died").write_text(str(time.time()))
        {act}
    return original(self, batch, i)
import pathlib, time
folder = pathlib.Path({str(folder.root)!r})
EDMModule.training_step = step
sys.exit(main())
""")
    arguments = [sys.executable, str(driver), *KEYS, *RANKS, f"run.root={folder.root}", "run.name=x"]
    with (folder.root / "said").open("w") as file:
        code = subprocess.run(arguments, stdout=file, stderr=file, timeout=200).returncode
    said = (folder.root / "said").read_text()
    assert code != 0
    assert time.time() - float((folder.root / "died").read_text()) < 60
    if kind == "raise":
        assert f"[rank{rank}]: ValueError: the fault" in said
        assert said.count("Traceback") == 1
    if rank == 1:
        assert "another process of this job ended" in said.splitlines()[-1]
    assert left(str(driver)) == []
    said = folder.resume()
    assert "before on 2 cpu, now on 1 cpu: the batches, their order and the noise stay as they were" in said


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_stop_together_and_go_on_as_one(rank, whole, folder):
    """Asked by way of either rank; then on another number of devices, with the same batches and noise."""
    keys = [*KEYS, "model.dropout=0", f"run.root={folder.root}"]
    assert Run(*keys, "run.name=one", said=folder.root / "one.txt").end()[0] == 0
    arguments = [sys.executable, "-m", "gaussbias.fit", *keys, *RANKS, "run.name=x"]
    with (folder.root / "said").open("w") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=file)
        until = time.monotonic() + 100
        while len(rows(folder.path)) < 6:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        ranks = named(f"run.root={folder.root}")
        assert len(ranks) == 2
        os.kill(process.pid if rank == 0 else next(pid for pid in ranks if pid != process.pid), signal.SIGTERM)
        assert process.wait(60) == 75
    assert (folder.root / "said").read_text().count("with --resume it goes on") == 1
    assert left(f"run.root={folder.root}") == []
    said = Run(*keys, "run.name=x", "--resume", said=folder.root / "said").end()[1]
    assert "before on 2 cpu, now on 1 cpu: the batches, their order and the noise stay as they were; sums" in said
    one, other = ([row for row in rows(folder.root / name) if row["train/loss"]] for name in ("one", "x"))
    assert [row["kimg"] for row in one] == [row["kimg"] for row in other]
    for a, b in zip(one, other, strict=True):
        # gradients are summed in another order, which 250 steps of Adam carry on; losses differ by 30 % between batches
        assert float(a["train/loss"]) == pytest.approx(float(b["train/loss"]), rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_are_stopped_while_they_start_do_not_hang(rank, folder):
    driver = folder.root / "driver.py"
    driver.write_text(f"""
import os, signal, sys
from gaussbias.fit import main
from gaussbias.modules import EDMModule
original = EDMModule.configure_optimizers
def hook(self):
    if self.global_rank == {rank}:
        os.kill(os.getpid(), signal.SIGTERM)
    return original(self)
EDMModule.configure_optimizers = hook
sys.exit(main())
""")
    arguments = [sys.executable, str(driver), *KEYS, *RANKS, f"run.root={folder.root}", "run.name=x"]
    with (folder.root / "said").open("w") as file:
        code = subprocess.run(arguments, stdout=file, stderr=file, timeout=100).returncode
    assert code == 75, (folder.root / "said").read_text()
    assert left(str(driver)) == []


# other modules


def stop_in_the_last_measurement(kind):
    """SIGTERM while what has come out is measured."""
    from gaussbias.callbacks import ProbeCallback

    original = ProbeCallback.on_validation_batch_end

    def hook(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        whole = (
            len(getattr(pl_module, "fits", ())) == 2 if kind == "linear" else trainer.global_step == trainer.max_steps
        )
        if whole and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

    ProbeCallback.on_validation_batch_end = hook


def stop_at_a_step(kind, step):
    """SIGTERM in a step of training."""
    from gaussbias import modules

    module = modules.LinearModule if kind == "linear" else modules.GaussianModule
    original = module.training_step

    def hook(self, batch, batch_idx):
        if batch["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch, batch_idx)

    module.training_step = hook


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linear", "gaussian"])
def test_surrogates_and_gaussians_go_on_too(kind, whole, tmp_path):
    """Stopped while they run, and twice in their last measurement; a surrogate that ends before its time as well."""
    keys = [key for key in KEYS if not key.startswith("model.")] + [f"module.kind={kind}", f"run.root={tmp_path}"]
    if kind == "linear":
        keys += [f"linear.teacher={whole}", "linear.draws=4000", "linear.target_error=0.05", "probes.sigmas=[2,0.5]"]
        keys += ["train.batch_size=8"]
    else:
        keys += ["train.batch_size=2"]
    assert Run(*keys, "run.name=whole", said=tmp_path / "whole.txt").end()[0] == 0
    how = {"said": tmp_path / "said"}
    code, said = Run(*keys, "run.name=x", fault=stop_at_a_step, about=(kind, 5), **how).end()
    assert code == 75, said
    assert checkpoint(tmp_path / "x")["global_step"] == 6
    for _ in range(2):
        code, said = Run(
            *keys, "run.name=x", "--resume", fault=stop_in_the_last_measurement, about=(kind,), **how
        ).end()
        assert code == 75, said
    code, said = Run(*keys, "run.name=x", "--resume", **how).end()
    assert code == 0, said
    assert differences(tmp_path / "whole", tmp_path / "x") == []
    ended = float(rows(tmp_path / "x")[-1]["kimg"])
    assert ended < 8 if kind == "linear" else ended == 0.3


# many times


@pytest.mark.soak
def test_a_run_that_is_killed_100_times(tmp_path):
    """By any signal at any moment, from its start on: it ends as one that nothing happened to."""
    kills, chance = 100, random.Random(0)
    keys = [*KEYS, "train.kimg=600", "probes.every_kimg=8", f"run.root={tmp_path}"]
    assert Run(*keys, "run.name=whole", said=tmp_path / "whole.txt").end(900)[0] == 0
    folder, codes = tmp_path / "x", []
    history = folder / "history.csv"
    while len(codes) < kills:
        before = history.stat().st_mtime_ns if history.exists() else 0
        run = Run(*keys, "run.name=x", "--resume", said=tmp_path / "said")
        run.until(run.said_to.exists)  # until then it is the server's fork
        run.process.join(0.05)
        if chance.random() < 0.8:  # in training, measuring or saving; else while it starts
            run.until(lambda before=before: history.exists() and history.stat().st_mtime_ns != before)
        run.process.join(chance.uniform(0, 1.5))
        number = chance.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
        run.send(number)
        code, said = run.end()
        assert code in (-number, 75, 130), said
        codes.append(code)
    code, said = Run(*keys, "run.name=x", "--resume", said=tmp_path / "said").end(900)
    assert code == 0, said
    assert float(said.split("continued at ")[1].split()[0]) < 600
    found = differences(tmp_path / "whole", folder)
    whole, killed, hard = len(rows(tmp_path / "whole")), len(rows(folder)), codes.count(-signal.SIGKILL)
    print(f"\n{kills} kills survived, {hard} of them SIGKILL; rows lost {whole - killed} of {whole}")
    print(f"differences {len(found)}: {found[:10]}")
    assert found == []
