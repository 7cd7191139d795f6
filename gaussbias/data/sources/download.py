"""Fetching a file once, and whole."""

from __future__ import annotations

import hashlib
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock
from tqdm import tqdm

CHUNK = 2**20
TIMEOUT = 30
"""Seconds without an answer after which to give up."""


def download(url: str, path: Path, sha256: str) -> Path:
    """Fetch `url` to `path`, unless it is there; a download that broke off goes on where it stopped.

    Several processes may ask at once: one fetches, the others wait.

    Raises:
        OSError: If the server cannot be reached, or the file cannot be written.
        ValueError: If what arrives has another checksum; it is removed.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        if not path.exists():
            partial = path.with_name(path.name + ".part")
            _fetch(url, partial, path.name)
            with partial.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sha256:
                partial.unlink()
                raise ValueError(f"expected SHA-256 {sha256}, got {digest} from {url}")
            partial.replace(path)
    return path


def _fetch(url: str, partial: Path, name: str) -> None:
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            _receive(answer, partial, name, done)
    except HTTPError as error:
        if error.code != 416 or not done:  # nothing is left to fetch
            raise
    except HTTPException as error:
        raise OSError(f"the server's answer makes no sense: {type(error).__name__} {error}") from None


def _receive(answer: HTTPResponse, partial: Path, name: str, done: int) -> None:
    if answer.status == 206 and not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
        raise OSError(f"the server sent another part than was asked for ({answer.headers.get('Content-Range')})")
    if answer.status != 206:
        done = 0  # the server sends all of it again
    left = answer.headers.get("Content-Length")
    total = done + int(left) if left else None
    with (
        partial.open("ab" if done else "wb") as file,
        # disable=None: no bar where there is no terminal
        tqdm(desc=name, initial=done, total=total, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while chunk := answer.read1(CHUNK):  # what has come, so that nothing is lost if the rest does not
            file.write(chunk)
            bar.update(len(chunk))
    if total is not None and partial.stat().st_size < total:
        raise OSError(f"the connection broke off after {partial.stat().st_size} of {total} bytes; run it again")
