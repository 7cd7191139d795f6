"""Pictures are drawn beside what goes on, in a process of its own."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from runs import SMALL

from gaussbias.fit import main as fit
from gaussbias.system.drawer import Drawer, Picture

DRAWING = """
import time
from pathlib import Path

reads = []


def slow(sources, path):
    time.sleep(0.2)
    reads.append(1)
    path.write_text(" ".join(source.name for source in sources) + f" {len(reads)}")


def fail(sources, path):
    raise RuntimeError("no fonts")


def talk(sources, path):
    print("a line of its own")
    path.write_text("said")


def mumble(sources, path):
    import subprocess
    subprocess.run(["echo", "-n", "a child says"])
    path.write_text("said")


def hang(sources, path):
    time.sleep(60)


def die(sources, path):
    import os
    os._exit(3)
"""


@pytest.fixture
def drawer(tmp_path, monkeypatch):
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(tmp_path)
    made = Drawer()
    yield made
    made.close()


def picture(folder, name, function="slow"):
    return Picture(f"p/{name}", f"drawing:{function}", (folder / "a", folder / "b"), folder / f"{name}.png")


def test_it_goes_on_while_pictures_are_drawn_and_is_one_measurement_behind_at_most(drawer, tmp_path):
    drawer.submit([picture(tmp_path, "0"), picture(tmp_path, "1")], 1.0)
    assert drawer.drawn() == []  # nobody waits
    drawer.submit([picture(tmp_path, "2")], 2.0)  # which waits for those before
    drawn = drawer.drawn()
    assert [(one.picture.key, one.kimg) for one in drawn] == [("p/0", 1.0), ("p/1", 1.0)]
    assert [one.picture.key for one in drawer.drawn(wait=True)] == ["p/2"]
    # one process drew all of them, and keeps what it has read
    assert [(tmp_path / f"{n}.png").read_text() for n in range(3)] == ["a b 1", "a b 2", "a b 3"]
    assert drawer.drawn(wait=True) == []


def test_what_cannot_be_drawn_is_said_once_and_ends_nothing(drawer, tmp_path, caplog):
    drawer.submit([picture(tmp_path, "0", "fail"), picture(tmp_path, "1")], 1.0)
    assert [one.picture.key for one in drawer.drawn(wait=True)] == ["p/1"]
    drawer.submit([picture(tmp_path, "2", "fail"), picture(tmp_path, "3", "absent")], 2.0)
    assert drawer.drawn(wait=True) == []
    (message,) = caplog.messages
    assert (
        message == f"{tmp_path / '0.png'} could not be drawn (no fonts); "
        "the run goes on without further messages about pictures"
    )


def test_a_process_that_ends_is_begun_again(drawer, tmp_path, caplog):
    drawer.submit([picture(tmp_path, "0", "die"), picture(tmp_path, "1")], 1.0)
    assert drawer.drawn(wait=True) == []
    drawer.submit([picture(tmp_path, "2")], 2.0)
    assert [one.picture.key for one in drawer.drawn(wait=True)] == ["p/2"]
    assert "the process that draws them has ended" in caplog.messages[0]
    drawer._worker.process.kill()  # while it has nothing to do
    drawer._worker.process.wait()
    drawer.submit([picture(tmp_path, "3")], 3.0)
    assert [one.picture.key for one in drawer.drawn(wait=True)] == ["p/3"]
    assert len(caplog.messages) == 1


def test_what_functions_and_python_itself_print_is_no_answer(drawer, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('welcome', flush=True)\nprint(7, flush=True)\n")
    drawer.submit([picture(tmp_path, "0", "talk"), picture(tmp_path, "1", "mumble")], 1.0)
    assert [one.picture.key for one in drawer.drawn(wait=True)] == ["p/0", "p/1"]


def test_a_picture_that_hangs_is_given_up(drawer, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("gaussbias.system.drawer.PATIENCE", 0.5)
    drawer.submit([picture(tmp_path, "0", "hang")], 1.0)
    assert drawer.drawn(wait=True) == []
    assert "it took more than 0.5 seconds" in caplog.messages[0]


def test_it_ends_although_a_process_that_was_forked_meanwhile_holds_its_input_open(drawer, tmp_path):
    drawer.submit([picture(tmp_path, "0")], 1.0)
    child = os.fork()
    if child == 0:  # as the workers of a DataLoader
        time.sleep(60)
        os._exit(0)
    try:
        drawer.drawn(wait=True)
        begun = time.monotonic()
        drawer.close()
        assert time.monotonic() - begun < 30
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_names_of_files_may_be_any_bytes(drawer, tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff \xe4")
    folder.mkdir()
    drawer.submit([picture(folder, "0")], 1.0)
    assert len(drawer.drawn(wait=True)) == 1
    assert (folder / "0.png").exists()


def test_its_process_ends_with_the_one_that_asked(tmp_path, monkeypatch):
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(tmp_path)
    child = os.fork()
    if child == 0:
        made = Drawer()
        made.submit([picture(tmp_path, "0")], 1.0)
        made.drawn(wait=True)
        (tmp_path / "pid").write_text(str(made._worker.process.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    worker = int((tmp_path / "pid").read_text())
    for _ in range(200):
        if not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError("it is still there")


PICTURES = {f"figures/{name}.png" for name in ("curves", "samples", "ladder", "ladder_kimg")}
LIVE = {f"figures/samples/{kimg}.png" for kimg in ("0", "0.096", "0.224")}


@pytest.mark.parametrize(
    ("when", "expected"),
    [("live", PICTURES | LIVE), pytest.param("end", PICTURES, marks=pytest.mark.long), ("none", set())],
)
def test_pictures_live_at_the_end_or_not_at_all(when, expected, tmp_path):
    keys = [*SMALL, "train.kimg=0.2", "probes.first_kimg=0.1", f"run.root={tmp_path}", "run.name=x"]
    assert fit([*keys, f"run.pictures={when}"]) == 0
    run = tmp_path / "x"
    assert {str(file.relative_to(run)) for file in run.rglob("*.png")} == expected
    # what they show is kept
    assert {file.stem for file in (run / "samples").iterdir()} == {"0", "0.096", "0.224"}
    assert json.loads((run / "done.json").read_text())
