"""Exact products of 8-bit integers, at the speed that processors and tensor cores have for them.

A pixel less 128 is an integer of 8 bits with a sign. Products of such matrices add up in 32 bits without any rounding,
4 times as fast as those of float32 on CPUs with VNNI, and 10 times and more on tensor cores. Numbers in float32 become
three such integers each, 21 bits in all, so that products of them with pixels take the same way.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

ROWS = 131_064
"""So many products of two such integers, of 2^14 at most, stay below 2^31; a multiple of 8."""
DIGITS = 3
"""Integers for a number."""
BASE = 128
"""Bits of a digit; all but the first lie in [-64, 64]."""
TOP = 127
"""The largest first digit."""
TINY = 1e-30
"""A row whose unit is not above this counts as 0."""


@cache
def are_fast(device: torch.device) -> bool:
    """Whether a device multiplies 8-bit integers exactly and faster than float32; tried on the largest once."""
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and not _has_vnni()):
        return False
    pairs = torch.tensor([[-128, -128], [127, 127], [127, -128], [-128, 127], [1, -127]], dtype=torch.int8)
    left = pairs.repeat(8, 500)
    right, refused = left.T, len(_refused)
    try:
        result = product(left.to(device), right.to(device)).cpu()
    except (RuntimeError, NotImplementedError):
        return False
    if len(_refused) > refused:
        return False
    return torch.equal(result.double(), left.double() @ right.double())


@cache
def _has_vnni() -> bool:
    """Whether this CPU multiplies integers so; oneDNN on older ones is slower, and need not be exact."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()


def signed(pixels: Tensor) -> Tensor:
    """Pixels (uint8) less 128, as int8."""
    return pixels.bitwise_xor(128).view(torch.int8)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of int8 matrices (m, k) and (k, n), int32; exact for k up to `ROWS`."""
    (m, k), n = a.shape, b.shape[1]
    if a.device.type == "cpu":
        # with a side of 1 the strides do not tell rows from columns, and oneDNN's product is wrong (torch 2.13)
        return a.int() @ b.int() if 1 in (m, k, n) or not _has_vnni() else torch._int_mm(a, b)
    return _aligned_product(a, b)


def _aligned_product(a: Tensor, b: Tensor) -> Tensor:
    """As tensor cores want it: rows of one matrix with columns of the other, all sides multiples of 32.

    cuBLAS has no way for some shapes on some cards. Those are multiplied in float64, which is as exact.
    """
    left, right = _filled_up(a), _filled_up(b.T)
    shape = (left.device, *left.shape, len(right))
    if shape not in _refused:
        try:
            return torch._int_mm(left, right.T)[: len(a), : b.shape[1]]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            _refused.add(shape)
    return (a.double() @ b.double()).int()


_refused: set[tuple[torch.device, int, int, int]] = set()
"""Shapes that a device does not multiply."""


def _filled_up(a: Tensor) -> Tensor:
    rows, columns = (-(-size // 32) * 32 for size in a.shape)
    return torch.nn.functional.pad(a, (0, columns - a.shape[1], 0, rows - a.shape[0])).contiguous()


def column_sums(values: Tensor) -> Tensor:
    """The sum of each column of an int8 matrix (k, n), int32; exact for k up to `ROWS`."""
    return product(values.new_ones(2, len(values)), values)[0]


class Digits:
    """The rows of a float32 matrix as integers: `x = unit (q_0 + q_1 / 128 + q_2 / 128^2)`, with a unit of each row.

    The largest number of a row, in size, becomes 127 units; every other one has an error of at most `unit / 2^15`.

    Args:
        x: (m, k), float32.
    """

    def __init__(self, x: Tensor) -> None:
        self.unit = x.abs().amax(1) / TOP
        self.rows = len(x)
        rest = x * torch.where(self.unit > TINY, self.unit.reciprocal(), 0)[:, None]
        self.digits = x.new_empty(DIGITS, *x.shape, dtype=torch.int8)
        for place in range(DIGITS):
            digit = rest.round()
            self.digits[place] = digit  # fits: at most 127 in the first place, 64 in the others
            rest = rest.sub_(digit).mul_(BASE)  # without rounding: both are short

    def sum(self) -> Tensor:
        """The sum of each row, (m,), float64, of the numbers as the digits have them."""
        return self._combine(self.digits.sum(-1, dtype=torch.int32).double())

    def times(self, integers: Tensor) -> Tensor:
        """The product with an int8 matrix (k, n), (m, n), float32: exact but for the rounding of three sums."""
        return self._combine(product(self.digits.flatten(0, 1), integers).unflatten(0, (DIGITS, self.rows)))

    def _combine(self, sums: Tensor) -> Tensor:
        dtype = torch.float64 if sums.dtype == torch.float64 else torch.float32
        total = sums[0].to(dtype)
        for place in range(1, DIGITS):
            total = total.add_(sums[place], alpha=BASE**-place)
        unit = self.unit.to(dtype)
        return total.mul_(unit if total.ndim == 1 else unit[:, None])
