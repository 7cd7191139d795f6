"""The tutorials run as they are, and show what they say."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def said(root, tmp_path):
    """What a tutorial prints."""

    def run(name):
        done = subprocess.run(
            [sys.executable, str(root / "docs" / "tutorials" / f"{name}.py")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_is_my_model_memorising(said):
    """The gap is beyond doubt before there are copies, and there are copies at the end."""
    lines = [line.split() for line in said("memorising").splitlines() if line.strip()[:1].isdigit()]
    gap, memorised = [float(line[3]) for line in lines], [float(line[5].partition("(")[0]) for line in lines]
    first_gap = next(i for i, value in enumerate(gap) if value > 4)
    first_copy = next(i for i, value in enumerate(memorised) if value > 0)
    assert 0 < first_gap < first_copy


def test_what_does_this_checkpoint_do(said):
    """The network knows its training images better than others, and better than mean and covariance tell."""
    text = said("checkpoint")
    values = {line[:45].strip(): float(line[45:]) for line in text.splitlines() if line[:8] in ("error on", "error of")}
    assert values["error on training images"] < values["error on held-out images"]
    assert "lens.html" in text


def test_from_gaussian_to_memoriser(said):
    text = said("story")
    end = [line for line in text.splitlines() if line.startswith("few: the least held-out error")]
    assert len(end) == 1
    assert int(end[0].rpartition("end ")[2].partition("%")[0]) > 20
    assert "with 0% of the samples memorised" in end[0]
