"""The benchmarks run and their errors are what they claim; how long they take is not tested."""

import json
import math
import subprocess
import sys

import pytest

from benchmarks import startup
from benchmarks.scale import exponent

KERNELS = ["moments", "eigendecomposition", "gaussian", "empirical", "neighbours", "ladder", "sampler", "training"]


@pytest.mark.long
def test_benchmarks_run_and_every_kernel_is_right(root, tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--count", "600", "--resolution", "8", "--repeat", "1"]
    command += ["--json", str(tmp_path / "found.json"), *KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, timeout=300)
    lines = [line for line in done.stdout.splitlines() if " d=192" in line]
    assert len(lines) == 10
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["cases"]) == 12
    assert found["limits"]["float32"] > 1e9
    samples, training = found["cases"][-2:]
    assert max(samples["error"], samples["usual_error"]) < 1e-6
    assert training["error"] < 1e-6  # the loss of the plain loop, after the same images
    for line in lines:
        *_, usual, ours, _ = line.split()
        if line.startswith("affine part"):  # the noise of 8,192 draws, and the bias of a fit to three quarters of them
            assert float(ours) < 0.02 < float(usual), line
        else:
            assert float(ours) < 1e-6, line
    covariance = next(line for line in lines if line.startswith("covariance")).split()
    assert float(covariance[-2]) < 1e-15  # exact


@pytest.mark.long
def test_benchmarks_refuse_a_kernel_that_is_not_there(root):
    done = subprocess.run([sys.executable, "-m", "benchmarks", "fft"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 2
    assert "expected parts of moments" in done.stderr


@pytest.mark.long
def test_the_parts_of_a_start_add_up():
    parts = startup.seconds(["probes.samples=2", "probes.draws=32", "run.wandb=disabled", "run.pictures=none"])
    assert set(parts) == set(startup.PARTS)
    assert min(parts.values()) >= 0
    assert f"{sum(parts.values()):.2f} s" in startup.table(parts)


def test_exponents_of_growth():
    assert exponent([1, 10, 100], [2.0, 200.0, 20_000.0]) == pytest.approx(2)
    assert math.isnan(exponent([1, 2], [0.0, 1.0]))
