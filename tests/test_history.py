"""Differences between measurements on the same draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gaussbias.history import compare, measurement_files, plain, quantile, read_measurement
from gaussbias.metrics.blocks import jackknife
from gaussbias.probes import Measured, ProbeBank
from gaussbias.probes.base import by_level
from gaussbias.system.errors import UserError

KEY = "ladder/affine/heldout"


def measured(run, kimg, rows, digits, seed=0, n=100):
    """A measurement in a run folder: one value, whose blocks are `rows` (B,)."""
    bank = ProbeBank({"train": digits[:n], "heldout": digits[1000:1100]}, 32, [1.0], seed=seed)
    found = jackknife(rows[:, None, None].double(), lambda means: {"a": means[..., 0]})["a"].at(0)
    same = replace(found, pseudo=found.pseudo.clone())
    estimates = {KEY: replace(found, pool="heldout"), "ladder/affine/train": replace(same, pool="train")}
    Measured(kimg, 32, estimates, bank).write(run / "probes" / f"{kimg:g}.safetensors")


def test_a_paired_difference_is_that_of_the_blocks(tmp_path, digits, random):
    shared = torch.randn(16, generator=random, dtype=torch.float64)
    a, b = (shared + 0.01 * torch.randn(16, generator=random, dtype=torch.float64) for _ in range(2))
    measured(tmp_path / "a", 10, a + 1, digits)
    measured(tmp_path / "b", 10, b, digits, n=50)  # other training images share the held-out pool
    found = compare(tmp_path / "a", tmp_path / "b", KEY)
    pairs = (a + 1 - b).numpy()
    assert found.difference == pytest.approx(pairs.mean(), rel=1e-12)
    assert found.se == pytest.approx(pairs.std(ddof=1) / 4, rel=1e-9)
    assert found.se < 0.1 * float(a.std()) / 4
    assert (found.low, found.high) == pytest.approx(
        (found.difference - quantile(16) * found.se, found.difference + quantile(16) * found.se)
    )
    assert compare(tmp_path / "b", tmp_path / "a", KEY).difference == -found.difference


def test_two_times_of_one_run(tmp_path, digits, random):
    for kimg in (0.0, 2.5, 10.0):
        measured(tmp_path, kimg, kimg + torch.randn(16, generator=random), digits)
    assert [file.stem for file in measurement_files(tmp_path)] == ["0", "2.5", "10"]
    last, middle = (read_measurement(tmp_path / "probes" / f"{name}.safetensors") for name in ("10", "2.5"))
    found = compare(tmp_path, tmp_path, KEY, kimg_b=2.5)
    assert found.difference == last.values[KEY] - middle.values[KEY]
    assert found.se == pytest.approx(np.std(last.blocks[KEY] - middle.blocks[KEY], ddof=1) / 4)
    assert compare(tmp_path, tmp_path, KEY, 2.5, 2.5).difference == 0
    assert compare(tmp_path / "probes" / "0.safetensors", tmp_path, KEY, kimg_b=10).difference < 0
    with pytest.raises(UserError, match=r"expected a measurement at 3 kimg, found those at 0, 2.5, 10"):
        compare(tmp_path, tmp_path, KEY, kimg_a=3)


def test_other_draws_are_never_mixed(tmp_path, digits):
    rows = torch.arange(16.0)
    measured(tmp_path / "a", 1, rows, digits)
    measured(tmp_path / "seed", 1, rows, digits, seed=1)
    measured(tmp_path / "n", 1, rows, digits, n=50)
    measured(tmp_path / "few", 1, rows[:8], digits)
    for run, key in (("seed", KEY), ("n", "ladder/affine/train")):
        with pytest.raises(UserError, match=f"{key}: .* measured it on other draws of the pool") as caught:
            compare(tmp_path / "a", tmp_path / run, key)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="same number of blocks in both measurements, found 16 and 8"):
        compare(tmp_path / "a", tmp_path / "few", KEY)
    with pytest.raises(UserError, match="expected the logged name of a measured value"):
        compare(tmp_path / "a", tmp_path / "n", "ladder/afine/heldout")
    with pytest.raises(UserError, match="found none in"):
        compare(tmp_path / "a", tmp_path / "nowhere", KEY)
    (tmp_path / "x.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match="expected a measurement at"):
        compare(tmp_path / "x.safetensors", tmp_path / "a", KEY)


def test_means_over_other_levels_are_not_compared(tmp_path, digits):
    bank = ProbeBank({"train": digits[:100]}, 32, [2.0, 1.0])
    rows = torch.rand(16, 2, 1, dtype=torch.float64)
    for run, defined in (("a", [True, True]), ("b", [True, False])):
        found = jackknife(rows, lambda means: {"a": means[..., 0]})["a"]
        named = by_level("ladder/r2", "train", replace(found, defined=torch.tensor(defined)), bank.sigmas)
        estimates = {key: replace(estimate, pool="train") for key, estimate in named.items()}
        Measured(1.0, 32, estimates, bank).write(tmp_path / run / "probes" / "1.safetensors")
    with pytest.raises(UserError, match=r"means over other noise levels.*compare ladder/r2/train/sigma_2 and the like"):
        compare(tmp_path / "a", tmp_path / "b", "ladder/r2/train")
    assert compare(tmp_path / "a", tmp_path / "b", "ladder/r2/train/sigma_2").difference == 0


def test_values_of_raw_weights_stand_in_where_there_are_no_others():
    assert plain({"raw/a": 1, "a": 2, "raw/b": 3}) == {"a": 2, "b": 3}
