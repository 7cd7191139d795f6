import os
from pathlib import Path

import pytest

from gaussbias.files import complete, link, reason


def test_a_file_has_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    """Its contents are synced, then it is renamed, then the folder is synced: what a power cut leaves is whole."""
    done = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor):
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        sync(descriptor)

    def renamed(self, target):
        done.append(("rename", str(self), str(target)))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    path = tmp_path / "x.txt"
    with complete(path) as temporary:
        temporary.write_text("new")
    assert done == [("sync", str(temporary)), ("rename", str(temporary), str(path)), ("sync", str(tmp_path))]
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_leaves_what_was_there(error, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")

    def write():
        with complete(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_a_link_is_there_at_once_and_is_a_copy_where_there_are_none(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    link(tmp_path / "a", tmp_path / "last")
    assert (tmp_path / "last").samefile(tmp_path / "a")

    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    link(tmp_path / "b", tmp_path / "last")
    assert (tmp_path / "last").read_text() == "b"
    assert (tmp_path / "a").read_text() == "a"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "last"]


def test_reasons_are_one_line():
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(ValueError("a\n  b")) == "a b"
    assert reason(ValueError()) == "ValueError"
