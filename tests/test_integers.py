import pytest
import torch

from gaussbias.data.rows import ImageRows
from gaussbias.denoisers import EmpiricalDenoiser
from gaussbias.denoisers.theories.chunks import Numbers, Pixels
from gaussbias.moments import Moments
from gaussbias.numerics import integers
from gaussbias.numerics.integers import Digits

SIDES = [1, 2, 3, 8, 17, 33, 100, 385]


def whole(*shape, random):
    return torch.randint(-128, 128, shape, generator=random, dtype=torch.int8)


@pytest.mark.parametrize("m", SIDES)
@pytest.mark.parametrize("n", SIDES)
def test_products_are_exact_however_matrices_lie_in_memory(m, n, random):
    for k in (1, 2, 9, 64, 1000):
        rows, columns = whole(m, k, random=random), whole(k, n, random=random)
        long = whole(k, 400, random=random)[:, :m]  # columns of a wider matrix
        for a in (rows, rows.T.contiguous().T, long.T):
            for b in (columns, columns.T.contiguous().T):
                assert torch.equal(integers.product(a, b).long(), a.long() @ b.long()), (
                    m,
                    k,
                    n,
                    a.stride(),
                    b.stride(),
                )


def test_the_largest_sums_fit_into_32_bits():
    most = torch.full((2, integers.ROWS), -128, dtype=torch.int8)
    assert (integers.product(most, most.T).long() == integers.ROWS * 2**14).all()
    assert (integers.ROWS + 8) * 2**14 >= 2**31


def test_signed_pixels_are_pixels_less_128():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(integers.signed(every).long(), every.long() - 128)
    assert integers.column_sums(integers.signed(every)[:, None].expand(256, 2).contiguous()).tolist() == [-128, -128]


def test_digits_hold_21_bits(random):
    x = torch.randn(50, 300, generator=random) * torch.logspace(-20, 20, 50)[:, None]
    x[7], x[8, 0], x[9] = 0, 1e6, x[9].abs()
    digits = Digits(x)
    back = sum(digits.digits[i].double() / 128**i for i in range(3)) * digits.unit.double()[:, None]
    # half a unit in the last place, and the rounding of x / unit in float32
    bound = digits.unit.double() / 2 / 128**2 + 1.2e-7 * x.abs().amax(1).double()
    assert ((back - x.double()).abs().amax(1) <= bound).all()
    assert digits.digits[0].abs().amax() == 127
    assert digits.digits[1:].abs().amax() <= 64
    assert torch.allclose(digits.sum(), back.sum(1), rtol=1e-12, atol=0)
    integer = whole(300, 20, random=random)
    exact = back @ integer.double()
    size = back.abs() @ integer.double().abs()
    assert ((digits.times(integer).double() - exact).abs() <= 4 * 6e-8 * size).all()  # roundings of float32


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("kind", ["equal", "few", "one", "none"])
def test_sums_by_pixels_are_those_by_numbers(kind, flip, random):
    images = torch.randint(0, 256, (5000, 3, 5, 5), generator=random, dtype=torch.uint8)
    rows, centre = ImageRows(images, flip), torch.rand(75, generator=random, dtype=torch.float64) - 0.5
    vectors = torch.randn(9, 75, generator=random)
    exact = (torch.cat([images, images.flip(-1)]) if flip else images).flatten(1).double() / 127.5 - 1 - centre
    n = len(exact)
    # float32 adds 2,048 products up at random, with a rounding of the sum so far each; integers do without
    for kind_of, accuracy in ((Numbers, 3e-6), (Pixels, 6e-7)):
        chunks = kind_of(rows, centre, vectors, 2048)
        summed, total = torch.zeros(9, 75, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
        weights = torch.rand(9, n, generator=torch.Generator().manual_seed(1))
        if kind == "few":
            weights = weights.pow(400)
        if kind == "one":  # far above all others, which are many
            weights[:, 17] = 1e4
        if kind == "none":
            weights[3:] = 0
        for start, products in chunks:
            here = slice(start, start + products.shape[1])
            expected = vectors.double() @ exact[here].T
            assert (products - expected).abs().max() < 2e-5  # of numbers of 5 to 20, in float32
            part, weight = chunks.sum(weights[:, here])
            summed, total = summed + part, total + weight
        found, expected = summed / total[:, None], (weights.double() @ exact) / weights.double().sum(1, keepdim=True)
        some = weights.sum(1) > 0
        assert (found - expected)[some].abs().max() < accuracy
        assert (total - weights.double().sum(1)).abs().max() <= 2e-6 * float(weights.sum(1).max())
        assert (summed[~some] == 0).all()


def test_without_fast_integers_results_are_the_same(monkeypatch, random):
    images = torch.randint(0, 256, (5000, 1, 6, 6), generator=random, dtype=torch.uint8)
    x0, eps = torch.rand(20, 1, 6, 6, generator=random) * 2 - 1, torch.randn(20, 1, 6, 6, generator=random)
    sigmas = (80.0, 3.0, 0.5, 0.05)

    def results():
        moments = Moments((1, 6, 6), pixels=True)
        moments.update(images)
        return moments.outer.triu(), EmpiricalDenoiser(images).forward_grid(x0, eps, sigmas)

    monkeypatch.setattr(integers, "are_fast", lambda device: True)
    outer, denoised = results()
    monkeypatch.setattr(integers, "are_fast", lambda device: False)
    other_outer, other_denoised = results()
    assert torch.equal(outer, other_outer)
    x0[3, 0, 0, 0] = torch.nan
    monkeypatch.setattr(integers, "are_fast", lambda device: True)
    _, spoilt = results()
    assert spoilt[:, 3].isnan().flatten(1).any(1).all()
    others = [i for i in range(20) if i != 3]
    assert torch.equal(spoilt[:, others], denoised[:, others])
    assert (denoised - other_denoised).abs().max() < 2e-6  # 1e-6 each


def test_a_device_that_multiplies_wrongly_is_not_used(monkeypatch):
    monkeypatch.setattr(integers, "_has_vnni", lambda: True)
    monkeypatch.setattr(integers, "product", lambda a, b: (a.int() @ b.int()).clamp(max=2**15))
    integers.are_fast.cache_clear()
    assert not integers.are_fast(torch.device("cpu"))
    integers.are_fast.cache_clear()
    assert not integers.are_fast(torch.device("meta"))
