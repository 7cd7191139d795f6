"""What is said reaches whoever listens, whatever their terminal can show."""

import io
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from gaussbias.system.errors import UserError
from gaussbias.system.terminal import command, complain, say


@contextmanager
def ascii_terminal():
    """Standard output and error of a terminal that knows ASCII alone; gives what they got at the end."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    said = []
    with redirect_stdout(out), redirect_stderr(err):
        yield said
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode("ascii"))


def test_a_character_that_the_terminal_lacks_ends_nothing():
    with ascii_terminal() as said:
        say("grün")
        say("and on")
    assert said == ["gr\\xfcn\nand on\n", ""]


def test_commands_speak_to_any_terminal():
    """What libraries print as well."""

    def run():
        print("grün")
        complain("größer")
        raise UserError("übung: expected this, got 日")

    with ascii_terminal() as said:
        assert command("x", run) == 2
    assert said == ["gr\\xfcn\n", "gr\\xf6\\xdfer\nx: \\xfcbung: expected this, got \\u65e5\n"]


def test_a_listener_that_went_away_ends_nothing():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with redirect_stdout(Closed()):
        say("grün")
        say("and on")
        sys.stdout.close()


def test_a_folder_that_may_not_be_entered_is_one_line(capsys):
    """Wherever it is looked into; pathlib raises there."""

    def run():
        raise PermissionError(13, "Permission denied", "/runs/x/config.yaml")

    assert command("x", run) == 2
    assert capsys.readouterr().err == (
        "x: expected permission to use /runs/x/config.yaml; check who may read and write it\n"
    )


@pytest.mark.parametrize("module", ["fit", "measure", "lens", "theories", "figures"])
def test_a_working_directory_that_was_removed_is_one_line(module, tmp_path):
    place = tmp_path / "x"
    place.mkdir()
    line = f"cd {place} && rmdir {place} && {sys.executable} -m gaussbias.{module} some"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"gaussbias.{module}: expected a working directory, but this one cannot be used" in done.stderr
