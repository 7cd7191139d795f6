"""The bar, as a terminal shows it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest


@pytest.mark.long
def test_the_bar_shows_kimg_speed_time_left_and_headlines(tmp_path):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))  # rows and columns
    keys = ["model.backbone=mlp", "model.channels=32", "train.kimg=20", "train.batch_size=16", "probes.draws=32"]
    keys += ["probes.samples=4", "probes.sampler_steps=2", "probes.first_kimg=10"]
    keys += ["run.wandb=disabled", "run.pictures=none", f"run.root={tmp_path}"]
    run = subprocess.Popen([sys.executable, "-m", "gaussbias.fit", *keys], stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    until = time.monotonic() + 200
    while time.monotonic() < until:
        if select.select([leader], [], [], 1)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
        elif run.poll() is not None:
            break
    os.close(leader)
    assert run.wait(timeout=60) == 0
    text = shown.decode(errors="replace")
    bar = r"\d+\.\d/20\.0 kimg \|.*\| \d\d:\d\d left, [\d,]+ img/s, GL \d\.\d\d, mem\. \d\.\d\d, cos\. -?\d\.\d\d"
    assert re.search(bar, text)
    assert "left, measuring ..." in text
    # lines above it are whole: each begins where the bar was wiped out
    lines = [line.rpartition("\r")[2].split() for line in text.replace("\r\n", "\n").split("\n")]
    rows = [line[0] for line in lines if len(line) == 9 and re.fullmatch(r"\d+\.\d\d", line[0])]
    assert rows == ["0.00", "10.00", "20.00"]
    assert "kimg |" not in text[text.index("samples at 20 kimg") :]
