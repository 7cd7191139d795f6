import os
import resource
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gaussbias.moments import stored_fingerprint
from gaussbias.system.errors import UserError
from gaussbias.system.files import check_limit, complete, link, reason, write


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


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o007])
def test_who_may_read_a_file_is_up_to_the_umask(umask, tmp_path):
    """Whoever writes it: safetensors and temporary files are for their owner alone."""
    before = os.umask(umask)
    try:
        with complete(tmp_path / "a.safetensors") as temporary:
            save_file({"a": torch.zeros(2)}, temporary)
        with complete(tmp_path / "b.bin") as temporary:
            descriptor, name = tempfile.mkstemp(dir=tmp_path)
            os.close(descriptor)
            Path(name).replace(temporary)
        write(tmp_path / "c.txt", "text")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("a.safetensors", "b.bin", "c.txt"), 0o666 & ~umask)


@contextmanager
def nobody():
    """As a user who owns nothing; root may read everything."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)


def test_a_file_that_may_not_be_read_says_so():
    """safetensors says that there is none."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        file = Path(place) / "moments.safetensors"
        save_file({"a": torch.zeros(2)}, file, {"fingerprint": "x"})
        assert stored_fingerprint(file) == "x"
        file.chmod(0)
        with nobody(), pytest.raises(FileNotFoundError) as caught:
            load_file(file)
        assert reason(caught.value) == "it may not be read"
        with nobody(), pytest.raises(UserError, match=f"may be read at {file}: it may not be read"):
            stored_fingerprint(file)
        file.unlink()
        with pytest.raises(FileNotFoundError) as caught:
            load_file(file)
        assert "No such file" in reason(caught.value)
        assert stored_fingerprint(file) is None


def test_a_text_may_name_files_of_any_bytes(tmp_path):
    write(tmp_path / "a.txt", f"ü {os.fsdecode(bytes([0xE4]))}")
    assert (tmp_path / "a.txt").read_bytes() == "ü \\udce4".encode()


def test_a_limit_of_files_is_noticed_before_anything_is_written(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10**6, resource.RLIM_INFINITY))
    check_limit(10**6, "checkpoints")
    with pytest.raises(UserError, match="checkpoints of about 2 MB, but the limit of this shell for a file is 1 MB"):
        check_limit(2 * 10**6, "checkpoints")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check_limit(10**15, "checkpoints")
