"""The benchmarks run and their errors are what they claim; how long they take is not tested."""

import subprocess
import sys


def test_benchmarks_run_and_every_kernel_is_right(root):
    command = [sys.executable, "-m", "benchmarks", "--count", "600", "--resolution", "8", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, timeout=300)
    lines = [line for line in done.stdout.splitlines() if " d=192" in line]
    assert len(lines) == 10
    for line in lines:
        *_, usual, ours, _ = line.split()
        if line.startswith("affine part"):  # the noise of 8,192 draws, and the bias of a fit to three quarters of them
            assert float(ours) < 0.02 < float(usual), line
        else:
            assert float(ours) < 1e-6, line
    covariance = next(line for line in lines if line.startswith("covariance")).split()
    assert float(covariance[-2]) < 1e-15  # exact


def test_benchmarks_refuse_a_kernel_that_is_not_there(root):
    done = subprocess.run([sys.executable, "-m", "benchmarks", "fft"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 2
    assert "expected kernels of moments" in done.stderr
