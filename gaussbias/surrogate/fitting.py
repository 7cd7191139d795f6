"""The affine map closest to a denoiser on noisy images, from few draws, with its error.

With c = x - mu_P along the eigenbasis of a pool P and y = D(x) - mu_P, the linear surrogate `A c + b` minimises
`E||y - A c - b||^2` (Li, Dai and Qu 2024, Section 3.2, arXiv 2410.24060). Least squares needs many more draws
than there are pixels. Trained networks are near the Gaussian denoiser W_G, and much of the rest is along its own basis,
so the fit is

    A = W_G + diag(t) + R,

first t, the slopes along single directions, then a ridge regression R of what is left, one row (output direction) at a
time. How much t and the rows of R are shrunk to 0 is chosen on held-out draws: by the errors of fits to both halves of
the draws, each on the other half, for a row together with its neighbours in the order of variance. Then all draws are
fitted.

Its error is measured, not modelled. For a fit A' to one half, the residual moments of the two quarters of the other,
`E_q = mean (y - A' c) c^T`, are independent estimates of `(A - A') S`, with S = E[c c^T], which is known exactly. So

    <E_1 S^-1, E_2>        is unbiased for   E||(A - A') c||^2,        <E_1 S^-1, E_2 S^-1>   for   ||A - A'||_F^2.

The fit to all draws errs less. By how much is taken from its posterior covariance `nl_k (C + lambda_k)^-1` over that of
the fits to halves (nl_k: what a row leaves unexplained): for least squares the ratio of `d / (n - d - 1)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from gaussbias.moments import eigh
from gaussbias.surrogate.pool import Pool
from gaussbias.surrogate.sums import Moments, Sums, some_rows

HALVES = ((0, 1), (2, 3))
NEIGHBOURS = 31
"""Rows whose held-out errors are taken together to choose one's shrinkage: alone they choose badly from few draws."""
LAMBDAS = torch.cat([torch.tensor([1e-9]), torch.logspace(-4, 4, 17), torch.tensor([torch.inf])]).double()
"""Ridge parameters, in units of a half's mean squared input along one direction, summed over its draws."""
DIAGONAL = torch.cat([torch.zeros(1), torch.logspace(-2, 4, 13), torch.tensor([torch.inf])]).double()
"""The same for slopes along single directions, in units of one draw's."""
SMALLEST = 1e-3
"""The smallest of LAMBDAS with fewer than 3 d draws: weaker shrinkage interpolates where there are about d draws."""
SCATTER = (1.5, 2.5)
"""Simulated scatter of predicted errors over that of second moments: 1.0 to 2.1 for 1 to 16 d draws, d 48 and 128; and
where the halves have about d draws."""


@dataclass(frozen=True)
class AffineFit:
    """An affine map `weights c + bias` along the basis of a pool, and how good it is.

    Attributes:
        weights: (d, d).
        bias: (d,).
        draws: To which it was fitted.
        error: Expected `E||D_fit - D_L||^2 / d`, from the draws: unbiased up to the step from half the draws to all.
        error_se: Its standard error.
        weight_error: Expected `||W_fit - W_L||_F^2 / ||W_fit||_F^2`.
        weight_error_se: Its standard error.
        heldout_error: `E||D - D_fit||^2 / d` of fits to half the draws, on the other half.
        nonlinear_share: `E||D - D_L||^2` as a share of the variance of D.
        weight_nmse: `||W_L - W_G||_F^2 / ||W_G||_F^2`, unbiased, whatever the fit is shrunk to.
        weight_nmse_se: Its standard error.
        weight_nmse_floor: `weight_error` in the same units: what noise adds to the distance of `weights` to W_G, if
            they are not shrunk.
    """

    weights: Tensor
    bias: Tensor
    draws: int
    error: float
    error_se: float
    weight_error: float
    weight_error_se: float
    heldout_error: float
    nonlinear_share: float
    weight_nmse: float
    weight_nmse_se: float
    weight_nmse_floor: float


def fewest_draws(d: int, shrink: bool) -> int:
    """Draws that a fit needs at least: without shrinkage fits to fewer than 3 d interpolate and mean nothing."""
    return 8 if shrink else 3 * d


def fit_affine(sums: Sums, pool: Pool, sigma: float, shrink: bool = True) -> AffineFit:
    """Fit an affine map to draws at one noise level.

    Args:
        sums: Of the draws, those of all ranks.
        pool: Of their clean images.
        sigma: The noise level.
        shrink: Shrink to the Gaussian denoiser; else plain least squares.

    Raises:
        ValueError: For fewer draws than it needs (`fewest_draws`), or a quarter of fewer than 2.
    """
    n, d = int(sums.count.sum()), len(pool.mean)
    if n < fewest_draws(d, shrink) or sums.count.min() < 2:
        raise ValueError(
            f"Expected at least {fewest_draws(d, shrink)} independent draws to fit, 2 in each quarter, but got "
            f"{n} and {sums.count.tolist()}."
        )
    variances = pool.variances + sigma**2
    gaussian, _ = pool.gaussian(sigma)
    if pool.own:
        gaussian = gaussian.diagonal().clone()
    known = _try_halves(sums, gaussian, variances, shrink, n)
    spread = _spread(known.measured, known.heldout, variances, n)
    nl = known.heldout / (1 + known.posterior[0] + 2 / n)

    full = Moments.of(sums, *HALVES[0], *HALVES[1])
    variance, c, y = float(full.yy.sum()) / n, full.c, full.y
    full = full.less(gaussian)
    away = full.yy / n
    final = _Ridge(full, known.slope)
    weights = final.weights(gaussian, known.lambdas)
    smaller = (nl * final.posterior(known.lambdas, variances)).sum(1) / (nl * known.posterior).sum(1)
    smaller = smaller.nan_to_num(1.0)
    del final
    error, weight_error = (smaller * known.measured).tolist()
    error += float(nl.sum()) / n  # of the bias
    distance = _measure(gaussian, sums, HALVES, variances)
    distance_se = _noise(distance, away, variances, n / 2).sqrt()
    norm, gaussian_norm = float(weights.square().sum()), float(gaussian.square().sum())
    return AffineFit(
        weights=weights,
        bias=y - weights @ c,
        draws=n,
        error=error / d,
        error_se=float(smaller[0] * spread[0]) / d,
        weight_error=weight_error / norm,
        weight_error_se=float(smaller[1] * spread[1]) / norm,
        heldout_error=float(known.heldout.sum()) / d,
        nonlinear_share=float(known.heldout.sum() - known.measured[0]) / variance if variance > 0 else 0.0,
        weight_nmse=float(distance[1]) / gaussian_norm,
        weight_nmse_se=float(distance_se[1]) / gaussian_norm,
        weight_nmse_floor=weight_error / gaussian_norm,
    )


class _Ridge:
    """The ridge fits of some draws, for any lambda, from one eigendecomposition of their inputs."""

    def __init__(self, left: Moments, slope: Tensor) -> None:
        """`left` are the moments after the Gaussian; `slope` shrinks the diagonal (`DIAGONAL`)."""
        self.diagonal = _slopes(left, slope)
        rest = left.less(self.diagonal)
        self.n, self.c, self.y = rest.n, rest.c, rest.y
        eigenvalues, self.vectors = eigh(rest.cc())
        self.eigenvalues = eigenvalues.clamp(min=0)
        self.turned = torch.empty_like(self.vectors)
        for rows in some_rows(self.turned):
            self.turned[rows] = rest.yc(rows) @ self.vectors

    def weights(self, gaussian: Tensor, lambdas: Tensor) -> Tensor:
        """A, for a lambda for each row (d,)."""
        result = torch.empty_like(self.turned)
        for rows in some_rows(result):
            result[rows] = (self.turned[rows] / (self.eigenvalues + lambdas[rows, None])) @ self.vectors.T
        result.diagonal().add_(self.diagonal)
        (result.diagonal() if gaussian.ndim == 1 else result).add_(gaussian)
        return result

    def posterior(self, lambdas: Tensor, variances: Tensor) -> Tensor:
        """`tr[S (C + lambda)^-1]` and `tr[(C + lambda)^-1]` of each row, (2, d)."""
        squares = torch.cat([self.vectors[:, some].square().T @ variances for some in some_rows(self.vectors)])
        weights = torch.stack([squares, torch.ones_like(variances)])
        parts = [weights @ (1 / (self.eigenvalues + lambdas[rows, None])).T for rows in some_rows(self.vectors)]
        return torch.cat(parts, 1)

    def errors(self, held: Moments, factors: Tensor) -> Tensor:
        """Held-out sums of squares of each row for each of the ridge parameters, (L, d)."""
        held = held.less(self.diagonal)
        covariance = torch.zeros_like(self.vectors)
        for some in some_rows(covariance):
            covariance.addmm_(self.vectors[some].T, held.cc(some))
        for some in some_rows(covariance):
            covariance[some] = covariance[some] @ self.vectors
        shift, offset = self.vectors.T @ (held.c - self.c), held.y - self.y
        unit = self.eigenvalues.mean()
        left: Tensor = offset.new_empty(len(factors), len(offset))
        for part in some_rows(covariance):
            product = held.yc(part) @ self.vectors
            for level, factor in enumerate(factors.tolist()):
                rows = self.turned[part] / (self.eigenvalues + factor * unit)
                moved = offset[part] - rows @ shift
                left[level, part] = (
                    held.yy[part] + ((rows @ covariance - 2 * product) * rows).sum(1) + held.n * moved.square()
                )
        return left


def _slopes(left: Moments, slope: Tensor) -> Tensor:
    """Slopes along single directions, (..., d) for `slope` (..., 1) or a number."""
    slopes: Tensor = left.yc_diagonal / (left.cc_diagonal * (1 + slope / left.n))
    return slopes


@dataclass(frozen=True)
class _Halves:
    """What fits to halves of the draws tell.

    Attributes:
        slope: The shrinkage of slopes (`DIAGONAL`).
        lambdas: Ridge parameters of the rows (d,).
        heldout: Mean squares (d,) left on the other half.
        posterior: `_Ridge.posterior`, the mean of both, (2, d).
        measured: Of the function and of the weights, the squared errors, (2,), means of both.
    """

    slope: Tensor
    lambdas: Tensor
    heldout: Tensor
    posterior: Tensor
    measured: Tensor


def _try_halves(sums: Sums, gaussian: Tensor, variances: Tensor, shrink: bool, draws: int) -> _Halves:
    """Fit each half, choose how both are shrunk by what they leave on the other half, and measure their errors."""
    halves = [Moments.of(sums, *half).less(gaussian) for half in HALVES]
    slope = _choose_slope(halves) if shrink else torch.full_like(sums.count[0], torch.inf)
    factors = LAMBDAS.to(gaussian) if shrink else gaussian.new_zeros(1)
    fits = [_Ridge(halves[1 - number], slope) for number in (0, 1)]
    errors = torch.stack([fit.errors(halves[number], factors) for number, fit in enumerate(fits)])
    total = errors.sum(0)
    if shrink and draws < fewest_draws(len(gaussian), shrink=False):
        total = torch.where(factors[:, None] < SMALLEST, torch.inf, total)
    relative = (total / total[-1]).nan_to_num(1.0, torch.inf)  # the last one is without R
    chosen = _over_neighbours(relative).argmin(0)
    unit = torch.stack([fit.eigenvalues.mean() for fit in fits]).mean()
    lambdas = factors[chosen] * unit
    left, measured = total.gather(0, chosen[None])[0], []
    for number, (first, second) in enumerate(HALVES):
        weights = fits[number].weights(gaussian, lambdas)
        measured.append(_measure(weights, sums, [(first,), (second,)], variances))
        del weights  # before the next ones are made
    posterior = torch.stack([fit.posterior(lambdas, variances) for fit in fits]).mean(0)
    return _Halves(slope, lambdas, left / sums.count.sum(), posterior, torch.stack(measured).mean(0))


def _choose_slope(moments: Sequence[Moments]) -> Tensor:
    """The shrinkage of slopes that does best on held-out draws, the same for all directions."""
    errors = torch.zeros(len(DIAGONAL), dtype=torch.float64)
    for fitted, held in (moments, moments[::-1]):
        slopes = _slopes(fitted, DIAGONAL[:, None].to(fitted.n))
        offset = held.y - fitted.y - slopes * (held.c - fitted.c)
        left = -2 * slopes * held.yc_diagonal + slopes.square() * held.cc_diagonal + held.n * offset.square()
        errors += left.sum(1).cpu()
    return DIAGONAL[errors.argmin()].to(moments[0].n)


def _over_neighbours(errors: Tensor) -> Tensor:
    """Means over NEIGHBOURS rows of (L, d)."""
    side = NEIGHBOURS // 2
    return avg_pool1d(pad(errors[:, None], (side, side), mode="replicate"), NEIGHBOURS, 1)[:, 0]


def _measure(weights: Tensor, sums: Sums, parts: Sequence[tuple[int, ...]], variances: Tensor) -> Tensor:
    """`E||(A - A') c||^2` and `||A - A'||_F^2`, from two parts of the draws to which A' was not fitted."""
    first, second = (Moments.of(sums, *part).less(weights) for part in parts)
    products = torch.zeros_like(variances)
    for rows in some_rows(variances):
        products += (first.yc(rows).div_(first.n - 1) * second.yc(rows).div_(second.n - 1)).sum(0)
    return torch.stack([(products / variances).sum(), (products / variances.square()).sum()])


def _noise(there: Tensor, left: Tensor, variances: Tensor, draws: float) -> Tensor:
    """Variances of what `_measure` finds from two parts of so many draws, from second moments.

    An entry of the residual moments of a part has a noise of variance `left_k S_j / draws`. It enters as a product, and
    times what is there.
    """
    inverse = torch.stack([torch.ones_like(variances), variances.reciprocal()])
    squares = inverse.square().sum(1)
    products = left.square().sum() * squares / draws**2
    typical = left.square().sum() / left.sum()
    return products + 2 / draws * there.clamp(min=0) * typical * squares / inverse.sum(1)


def _spread(measured: Tensor, heldout: Tensor, variances: Tensor, n: float) -> Tensor:
    """Standard errors of errors that were measured on quarters, as predictions for the fit to all draws.

    Errors themselves, sums of squares over about `rows * columns` entries of noise, differ between fits.
    """
    rows = heldout.sum().square() / heldout.square().sum()
    inverse = torch.stack([torch.ones_like(variances), variances.reciprocal()])
    columns = inverse.sum(1).square() / inverse.square().sum(1)
    between = 3 / (rows * columns) * measured.square()
    nearly_singular = 1.5 * len(variances) < n < 3 * len(variances)  # the halves, with about d draws
    spread = SCATTER[nearly_singular] * (_noise(measured, heldout, variances, n / 4) / 2 + between).sqrt()
    return spread.nan_to_num(0.0)  # without any noise
