import math

import pytest
import torch
from scipy import stats

from gaussbias.history import quantile
from gaussbias.metrics.blocks import jackknife, regressed
from gaussbias.numerics.blocks import block_size, next_draws

DOUBLE = torch.float64


def test_the_jackknife_of_a_mean_is_its_usual_error(random):
    rows = torch.randn(20, 3, 2, generator=random, dtype=DOUBLE)
    found = jackknife(rows, lambda means: {"a": means[..., 0], "b": means[..., 1]})
    for i, name in enumerate("ab"):
        assert torch.allclose(found[name].value, rows[..., i].mean(0))
        assert torch.allclose(found[name].se, rows[..., i].std(0) / 20**0.5)
        assert torch.allclose(found[name].pseudo, rows[..., i])


def test_the_jackknife_of_a_ratio_is_that_of_the_delta_method(random):
    x = 5 + torch.randn(4000, 1, generator=random, dtype=DOUBLE)
    y = x + 0.3 * torch.randn(4000, 1, generator=random, dtype=DOUBLE)
    found = jackknife(torch.stack([y, x], -1), lambda means: {"r": means[..., 0] / means[..., 1]})["r"]
    ratio = y.mean() / x.mean()
    expected = float((y - ratio * x).std() / x.mean() / 4000**0.5)
    assert float(found.se) == pytest.approx(expected, rel=1e-3)


def test_the_error_of_a_mean_over_levels_counts_what_they_share(random):
    shared = torch.randn(50, 1, generator=random, dtype=DOUBLE)
    rows = (shared + 0.1 * torch.randn(50, 4, generator=random, dtype=DOUBLE))[..., None]
    found = jackknife(rows, lambda means: {"a": means[..., 0]})["a"]
    assert float(found.mean([0, 1, 3]).se) == pytest.approx(float(rows[:, [0, 1, 3], 0].mean(1).std() / 50**0.5))
    assert float(found.at(2).se) == pytest.approx(float(found.se[2]))


def test_one_block_has_no_error():
    found = jackknife(torch.ones(1, 2, 1, dtype=DOUBLE), lambda means: {"a": means[..., 0]})["a"]
    assert found.se.isnan().all()
    assert math.isnan(quantile(1))


def test_intervals_are_students():
    for blocks in (2, 16, 200):
        assert quantile(blocks) == pytest.approx(stats.t.ppf(0.975, blocks - 1), rel=1e-10)


def test_a_control_takes_noise_away_and_no_block_decides_on_itself(random):
    draws = torch.randn(400, 16, 32, 2, generator=random, dtype=DOUBLE)
    other = draws[..., 0] ** 2  # of expectation 1
    value = 3 + 2 * other + 0.5 * draws[..., 1]
    means = [
        regressed(*(p.mean(1, keepdim=True) for p in (v, o, v * o, o * o)), torch.ones(1, dtype=DOUBLE)).mean()
        for v, o in zip(value, other, strict=True)
    ]
    means = torch.stack(means)
    plain = value.mean((1, 2))
    assert float(means.std()) < 0.25 * float(plain.std())
    assert abs(float(means.mean()) - 5) < 4 * float(means.std()) / 20
    one = value[0, :1].mean(1, keepdim=True)
    assert regressed(one, one, one, one, torch.ones(1)) is one
    parts = [p.mean(1, keepdim=True) for p in (value[0], other[0], value[0] * other[0], other[0] ** 2)]
    before = regressed(*parts, torch.ones(1, dtype=DOUBLE))
    parts[2][5] += 1.0
    assert ((regressed(*parts, torch.ones(1, dtype=DOUBLE)) == before).squeeze().nonzero().flatten().tolist()) == [5]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_control_that_hardly_varies_is_none(odd, random):
    """Images that are equal but for one in a thousand: draws that lack it, or have it once, foretell nothing."""
    value = 1 + 0.1 * torch.randn(16, 8, 1, generator=random, dtype=DOUBLE)
    other = 1e-3 + 1e-9 * torch.randn(16, 8, 1, generator=random, dtype=DOUBLE)
    other.flatten()[torch.arange(odd) * 50] = 1.0  # its expectation is 0.002
    parts = [part.mean(1) for part in (value, other, value * other, other**2)]
    found = regressed(*parts, torch.tensor([2e-3], dtype=DOUBLE))
    assert (found - value.mean(1)).abs().max() < (1e-12 if odd == 0 else 0.2)
    assert float(found.mean()) == pytest.approx(float(value.mean()), abs=0.04)  # four standard errors


def test_blocks_are_even_and_at_least_sixteen():
    for draws in range(32, 3000, 7):
        size = block_size(draws)
        if size is not None:
            assert draws % size == 0
            assert size % 2 == 0
            assert draws // size >= 16
            assert size >= draws // 16 // 2
        assert block_size(next_draws(draws)) is not None
    assert [block_size(n) for n in (31, 37, 514, 100_000)] == [None, None, None, 250]
