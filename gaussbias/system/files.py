"""How files are written, and where runs are."""

from __future__ import annotations

import csv
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder

UNREADABLE = "it may not be read"


def run_of(path: Path) -> Path | None:
    """The run folder that a path is, or that a file of a denoiser lies in; `None` if there is none."""
    places = (path, path.parent, path.parent.parent if path.parent.name == "checkpoints" else path)
    return next((place for place in places if RunFolder(place).config.is_file()), None)


def cache_folder() -> Path:
    """Where what can be made again is kept for this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(cache)) / "gaussbias"  # noqa: PTH111, pathlib raises where there is no home


@contextmanager
def complete(path: Path) -> Iterator[Path]:
    """A name to write to; what was written appears at `path` when it is whole, in place of what was there.

    It is on the disk by then, so that a power cut leaves the old file or the new one. Nothing is left of a file that
    could not be written. Who may read it is up to the umask, whatever writes it (safetensors lets its owner alone).
    """
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # it may be a link to somewhere else
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        if temporary.stat().st_mode != mode:
            temporary.chmod(stat.S_IMODE(mode))
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@runtime_checkable
class Rewrites(Protocol):
    """What keeps what it could not write."""

    def rewrite(self) -> str | None:
        """Try again; why there is still something that is not written, `None` if there is not."""
        ...


def write_rows(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a csv file, whole or not at all; names that are no characters appear with escapes."""
    with (
        complete(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def write(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with complete(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files can hold any bytes


def link(path: Path, name: Path) -> None:
    """Let `name` be the file at `path`, at once: as a hard link where the file system has them, else as a copy."""
    temporary = name.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
        sync(temporary)
    temporary.replace(name)
    _sync_folder(name.parent)


def check_limit(wanted: int, what: str) -> None:
    """Raise `UserError` for a file of more bytes than this process may write: a run would end without it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and wanted > limit:
        raise UserError(
            f"expected to write {what} of about {wanted / 1e6:.3g} MB, but the limit of this shell for a file is "
            f"{limit / 1e6:.3g} MB; raise it (ulimit -f unlimited)"
        )


def sync(path: Path) -> None:
    """Wait until a file is on the disk; Windows can do that only for what is open."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system has a call for that."""
    with suppress(OSError):
        sync(path)


def printable(text: str) -> str:
    """A text from elsewhere without what a terminal would obey, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text.encode("ascii", "replace").decode())[:200]


def reason(error: BaseException) -> str:
    """Why something went wrong, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError) and _is_there(str(error).partition(": ")[2]):
        return UNREADABLE  # of which safetensors says that it is not there
    words = " ".join(str(error).split())[:200] or type(error).__name__
    return f"it lacks {words}" if type(error) is KeyError else words


def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110, pathlib raises where a folder may not be entered
