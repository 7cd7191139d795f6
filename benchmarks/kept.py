"""`python -m benchmarks.kept --data ZIP`: what it takes to read images that are kept decoded, and that are not.

Seconds of a first start, of a second one, and of one on another subset; and the memory of one and of several processes
that have all images, as ranks of a run have. Linux only: the memory is read from /proc.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gaussbias.config import load
from gaussbias.data import Images, read_labelled
from gaussbias.data.images import fingerprint

PROCESSES = 4
HELD: list[Images] = []
"""What a process that waits has read."""


def seconds(data: Path, cache: str, *keys: str) -> float:
    """Processor time of reading all images, in a process of its own."""
    return float(_process(data, cache, "--once", *keys).communicate()[0])


def memory(data: Path, cache: str, count: int) -> tuple[float, float]:
    """MB of so many processes that have read all images: their own, and with their shares of what they share."""
    processes = [_process(data, cache, "--wait") for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    own, shared = (sum(_of(process.pid, name) for process in processes) for name in ("Anonymous", "Pss"))
    for process in processes:
        process.communicate("\n")
    return own, shared


def _of(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _process(data: Path, cache: str, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "benchmarks.kept", "--data", str(data), "--cache", cache, *arguments]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _read(data: Path, cache: str, keys: list[str]) -> float:
    """Read all images, and look at each number of them; processor time of the first alone."""
    config = load(
        None, ["data.source=edm_zip", f"data.path={data}", f"data.cache={cache}", "data.n_heldout=2000", *keys]
    )
    begun = time.process_time()
    images = read_labelled(config.data)
    taken = time.process_time() - begun
    fingerprint(images.training, False)
    HELD.append(images)
    return taken


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="ZIP", help="images in EDM's layout")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("keys", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once or options.wait:
        taken = _read(options.data, options.cache, options.keys)
        sys.stdout.write(f"{taken:.3f}\n")
        sys.stdout.flush()
        if options.wait:
            sys.stdin.readline()
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "each start, without": seconds(options.data, "null"),
            "first start, kept": seconds(options.data, folder),
            "second start": seconds(options.data, folder),
            "another subset, copied": seconds(options.data, folder, "data.subset_seed=1"),
            "100 images of another subset": seconds(options.data, folder, "data.subset_seed=2", "data.n_train=100"),
        }
        for name, taken in parts.items():
            sys.stdout.write(f"{name:30}{taken:7.2f} s\n")
        for count in (1, PROCESSES):
            for name, cache in (("decoded", "null"), ("kept", folder)):
                own, shared = memory(options.data, cache, count)
                sys.stdout.write(f"{count} processes, images {name:8}{own:8.0f} MB own{shared:8.0f} MB with shares\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
