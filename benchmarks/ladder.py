"""The affine part of a denoiser's distance to D_G: from pairs of draws, and from a fit of W by least squares."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.harness import Case
from gaussbias.data.images import to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics import Ladder, Pairs
from gaussbias.moments import estimate

IMAGES = 2000
DRAWS = 8192
BLOCK = 256
SIGMAS = [4.066, 1.502, 0.47]


def cases(images: Tensor) -> Iterator[Case]:
    """For D_M on its own images, whose affine part is 0: all that is found is error, here as a share of the distance.

    The fit takes all draws but a quarter (twice as many as pixels, at 32 x 32), on which the distance of its D_L to D_G
    is measured.
    """
    pool = images[:IMAGES]
    d = pool[0].numel()
    moments = estimate(pool)
    gaussian, memoriser = GaussianDenoiser(moments).to(pool.device), EmpiricalDenoiser(pool).to(pool.device)
    random = torch.Generator().manual_seed(1)
    blocks = []
    for _ in range(DRAWS // BLOCK):
        x0 = to_unit(pool[torch.randint(len(pool), (BLOCK,), generator=random).to(pool.device)])
        eps = torch.randn(x0.shape, generator=random).to(x0)
        blocks.append((x0, eps, memoriser.forward_grid(x0, eps, SIGMAS), gaussian.forward_grid(x0, eps, SIGMAS)))
    total = torch.tensor(
        [
            float(sum((o[level] - g[level]).double().square().sum() for *_, o, g in blocks))
            for level in range(len(SIGMAS))
        ]
    )
    total = total.double() / (DRAWS * d)

    def usual() -> Tensor:
        found = []
        fitted = len(blocks) * 3 // 4
        for level, sigma in enumerate(SIGMAS):
            square = torch.zeros(d + 1, d + 1, dtype=torch.float64, device=pool.device)
            product = torch.zeros(d + 1, d, dtype=torch.float64, device=pool.device)
            errors = []
            for number, (x0, eps, output, reference) in enumerate(blocks):
                x = (x0 + sigma * eps).double().flatten(1)
                inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1)
                if number < fitted:
                    square += inputs.T @ inputs
                    product += inputs.T @ output[level].double().flatten(1)
                    continue
                if number == fitted:
                    square.diagonal().add_(1e-9 * square.diagonal().mean())  # there may be fewer draws than pixels
                    fit = torch.cholesky_solve(product, torch.linalg.cholesky(square))
                errors.append((inputs @ fit - reference[level].double().flatten(1)).square().mean())
            found.append(torch.stack(errors).mean())
        return torch.stack(found).cpu()

    def ours() -> Tensor:
        metric = Ladder(len(blocks), SIGMAS, moments, moments).to(pool.device)
        for number, (x0, eps, output, reference) in enumerate(blocks):
            metric.update(output, reference, number, Pairs(moments, x0, eps, SIGMAS))
        return metric.compute()["affine"]

    def error(affine: Tensor) -> float:
        return float((affine / total).abs().max())

    rank = len(moments.eigenvalues)
    levels = len(SIGMAS)
    # projections of x0, eps and g on the eigenvectors, and products of draws
    flops = 2 * DRAWS * (d * rank * (2 + levels) + BLOCK * (3 * d + 6 * rank) * levels)
    size = f"d={d}, {levels} levels, n={DRAWS}"
    yield Case("affine part of D - D_G", size, usual, ours, error, 1, flops, torch.float64)
