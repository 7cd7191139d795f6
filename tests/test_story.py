"""The purpose: with many images a network generalises and stays near the Gaussian, with few it memorises."""

import math
import os
import subprocess
import sys

import pytest

from gaussbias.history import load


def last(folder):
    history = load(folder)
    return {k: next(v for v in reversed(c) if not math.isnan(v)) for k, c in history.items() if k != "run"}


@pytest.mark.long
def test_many_images_generalise_and_few_are_memorised(tmp_path, root):
    """Digits, 1,400 and 100 of them, at equal length; both trainings at once, on one thread each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "gaussbias.fit", "--config", str(root / "configs" / "digits.yaml")]
    arguments += [f"run.root={tmp_path}", "run.wandb=disabled", "run.pictures=none", "probes.first_kimg=1000"]
    runs = [
        subprocess.Popen([*arguments, f"data.n_train={n}", f"run.name={n}"], env=environment, stdout=subprocess.DEVNULL)
        for n in (1400, 100)
    ]
    assert [run.wait(timeout=900) for run in runs] == [0, 0]
    many, few = last(tmp_path / "1400"), last(tmp_path / "100")

    # 1,400: as far from the training images as real images are; none memorised
    assert many["generalization/gl_score"] > many["generalization/gl_score_heldout"]
    assert many["generalization/memorized_fraction_high"] < 0.05
    # 100: far nearer than real images are; many memorised
    assert few["generalization/gl_score"] < 0.6 * few["generalization/gl_score_heldout"]
    assert few["generalization/memorized_fraction_low"] > 0.1
    # and the one with more images is nearer to its Gaussian in every respect
    assert many["samples/gaussian_cosine"] > few["samples/gaussian_cosine"] + 0.1
    assert many["gaussian/rmse/heldout"] < 0.85 * few["gaussian/rmse/heldout"]
    assert many["linearity/affine_cosine/heldout"] > few["linearity/affine_cosine/heldout"] + 0.01
    # few: better on its own images than the best affine map, worse than it on others; many: as good on both
    assert few["denoising/mse/train"] < 0.95 * few["denoising/gaussian_mse/train"]
    assert few["denoising/mse/heldout"] > 1.1 * few["denoising/mse/train"]
    assert many["denoising/mse/heldout"] < 1.05 * many["denoising/mse/train"]
    assert many["denoising/mse/heldout"] < many["denoising/gaussian_mse/heldout"]
    # on its own images the one with few is much nearer to the memoriser than to the Gaussian
    ratio = {
        name: row["empirical/rmse/train"] / row["gaussian/rmse/train"] for name, row in (("many", many), ("few", few))
    }
    assert ratio["few"] < 0.8 < 0.9 < ratio["many"]
