"""Float32 as it is, whatever torch was told."""

import os
from contextlib import suppress

import torch
from runs import apart

from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import estimate
from gaussbias.numerics.precision import _FLOAT32, full_precision
from gaussbias.sampling import sample_gaussian

CPU = torch.device("cpu")
WAYS = (
    "pass",
    "torch.set_float32_matmul_precision('medium')",
    "torch.set_float32_matmul_precision('high')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.cudnn.benchmark = True",
)


def settings():
    """What torch's settings say, and which of the older ones cannot be read."""
    found = [part.fp32_precision for part in _FLOAT32]
    found += [torch.backends.fp32_precision, torch.backends.cudnn.benchmark]
    older = (
        torch.get_float32_matmul_precision,
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cudnn.allow_tf32,
    )
    for read in older:
        try:
            found.append(read())
        except RuntimeError:
            found.append("not to be read")
    return found


def check(way):
    exec(way, {"torch": torch})
    before = settings()
    with suppress(KeyError), full_precision(CPU):
        assert settings()[: len(_FLOAT32)] == ["ieee"] * len(_FLOAT32)
        assert not torch.backends.cudnn.benchmark
        with full_precision(CPU):
            pass
        raise KeyError
    assert settings() == before
    if "backends.fp32_precision" in way:  # what follows the setting of all still does
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"


@apart
def test_all_is_as_it_was_afterwards_whichever_way_it_was_set():
    for way in WAYS:
        child = os.fork()
        if child == 0:
            try:
                check(way)
            except BaseException as error:
                print(way, repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, way


@apart
def test_searches_and_denoisers_that_are_called_directly_are_exact():
    """In mixed precision, which would change them in the third digit."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 3, 8, 8), generator=random, dtype=torch.uint8)
    x0, eps = (torch.randn(40, 3, 8, 8, generator=random) for _ in range(2))
    moments = estimate(images)

    def values():
        gaussian, empirical, nearest = GaussianDenoiser(moments), EmpiricalDenoiser(images), NearestImages(images)
        yield from (
            gaussian(x0, 0.5),
            gaussian.forward_grid(x0, eps, [2.0, 0.5]),
            sample_gaussian(gaussian, eps, [8, 1.0]),
        )
        yield from (empirical(x0, 0.5), empirical.forward_grid(x0, eps, [2.0, 0.5]), nearest.embedded)
        found = nearest(x0)
        yield from (found.first, found.second)

    before, product = list(values()), x0.flatten(1) @ eps.flatten(1).T
    torch.set_float32_matmul_precision("medium")
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal((x0.flatten(1) @ eps.flatten(1).T).float(), product)
        for one, other in zip(before, values(), strict=True):
            assert torch.equal(one, other)
