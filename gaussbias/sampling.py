"""The probability-flow ODE from noise to an image, for any denoiser.

Karras et al. 2022, Eq. 1 and Algorithm 1, arXiv 2206.00364: `dx/dsigma = (x - D(x, sigma)) / sigma`, from
`x = sigmas[0] * latents` down to sigma = 0. The state is float64; the denoiser is called in the dtype of the latents
and never at sigma = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from gaussbias.denoisers import Evaluate, GaussianDenoiser, given, guided
from gaussbias.numerics.precision import full_precision


@overload
def sample(
    denoiser: Evaluate,
    latents: Tensor,
    sigmas: Sequence[float] | Tensor,
    method: str = ...,
    path: Literal[False] = ...,
    labels: Tensor | int | None = ...,
    guidance: float = ...,
) -> Tensor: ...
@overload
def sample(
    denoiser: Evaluate,
    latents: Tensor,
    sigmas: Sequence[float] | Tensor,
    method: str = ...,
    *,
    path: Literal[True],
    labels: Tensor | int | None = ...,
    guidance: float = ...,
) -> tuple[Tensor, Tensor]: ...
def sample(
    denoiser: Evaluate,
    latents: Tensor,
    sigmas: Sequence[float] | Tensor,
    method: str = "heun",
    path: bool = False,
    labels: Tensor | int | None = None,
    guidance: float = 1.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw samples, one for each latent.

    Args:
        denoiser: Called with (B, C, H, W) and noise levels (B,).
        latents: Standard normal (B, C, H, W); they are scaled by `sigmas[0]` here.
        sigmas: Noise levels, descending, at least 2; the last step goes from the last of them to 0.
        method: `heun`, second order with two evaluations a step and one in the last, or `euler`.
        path: Return the states too.
        labels: Of a denoiser with classes, the class of each sample (B,), or of all; it is then called with labels (B,)
            as well.
        guidance: w of classifier-free guidance, `D(x) + w (D(x, c) - D(x))` (Ho and Salimans 2022, arXiv 2207.12598,
            whose own scale is w - 1); 1 is none, 0 is the denoiser that is told no class, which has the label -1.

    Returns:
        Samples (B, C, H, W) in the dtype of the latents; with `path` also the states at each sigma and at 0,
        (S + 1, B, C, H, W), float64.

    Raises:
        ValueError: For another method, noise levels that do not descend, labels that the denoiser does not have, and
            guidance without labels or of a denoiser that cannot be told no class.
    """
    if labels is None and guidance != 1:
        raise ValueError(f"Expected `labels` with guidance={guidance:g} but got none.")
    chosen = guided(given(denoiser, labels), guidance)

    def denoise(x: Tensor, sigma: float) -> Tensor:
        state = x.to(latents.dtype)
        return chosen(state, state.new_full((len(state),), sigma)).to(torch.float64)

    levels = _check(sigmas, method)
    states = [latents.to(torch.float64) * levels[0]]
    for x in _steps(denoise, states[0], levels, method):
        states = [*states, x] if path else [x]
    samples = states[-1].to(latents.dtype)
    return (samples, torch.stack(states)) if path else samples


def sample_gaussian(
    gaussian: GaussianDenoiser,
    latents: Tensor,
    sigmas: Sequence[float] | Tensor,
    method: str = "heun",
) -> Tensor:
    """What `sample` gives for the Gaussian denoiser, up to round-off, from two projections in all.

    D_G scales each principal component by a number, so a sampler does too: its steps are run on the gains of
    the components alone.
    """
    levels = _check(sigmas, method)
    eigenvalues = torch.cat([gaussian.eigenvalues.double(), gaussian.eigenvalues.new_zeros(1).double()])

    def denoise(gains: Tensor, sigma: float) -> Tensor:
        return eigenvalues / (eigenvalues + sigma**2) * gains

    gains = torch.ones_like(eigenvalues)
    for state in _steps(denoise, gains, levels, method):
        gains = state
    return _scale(gaussian, latents, levels[0], gains)


def gaussian_flow(gaussian: GaussianDenoiser, latents: Tensor, sigma_start: float, sigma_end: float = 0.0) -> Tensor:
    """The exact solution of the Gaussian's ODE (Li, Dai and Qu 2024, Eq. 7, arXiv 2410.24060).

    `x(s) = mu + sum_i sqrt((s^2 + lam_i) / (s_T^2 + lam_i)) u_i u_i^T (x_T - mu)`, with `x_T = sigma_start * latents`.
    """
    eigenvalues = torch.cat([gaussian.eigenvalues.double(), gaussian.eigenvalues.new_zeros(1).double()])
    gains = ((sigma_end**2 + eigenvalues) / (sigma_start**2 + eigenvalues)).sqrt()
    return _scale(gaussian, latents, sigma_start, gains)


def _scale(gaussian: GaussianDenoiser, latents: Tensor, sigma: float, gains: Tensor) -> Tensor:
    """`mu + (gains in the eigenbasis, the last for all that is outside) (sigma latents - mu)`."""
    basis = gaussian.eigenvectors
    centred = sigma * latents.flatten(1).to(basis.dtype) - gaussian.mean
    inside = (gains[:-1] - gains[-1]).to(basis.dtype)
    with full_precision(latents.device):
        turned = (inside * (centred @ basis)) @ basis.T
    scaled = gaussian.mean + gains[-1].to(basis.dtype) * centred + turned
    return scaled.view_as(latents).to(latents.dtype)


def _steps(denoise: Callable[[Tensor, float], Tensor], x: Tensor, sigmas: list[float], method: str) -> Iterator[Tensor]:
    """The state after each step."""
    for here, there in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        slope = (x - denoise(x, here)) / here
        end = x + (there - here) * slope
        if method == "heun" and there > 0:
            slope = (slope + (end - denoise(end, there)) / there) / 2
            end = x + (there - here) * slope
        x = end
        yield x


def _check(sigmas: Sequence[float] | Tensor, method: str) -> list[float]:
    levels = [float(sigma) for sigma in sigmas]
    if method not in ("heun", "euler"):
        raise ValueError(f"Expected `method` to be one of heun, euler but got {method}.")
    if len(levels) < 2 or any(a <= b for a, b in zip(levels, [*levels[1:], 0.0], strict=True)):
        raise ValueError(f"Expected at least 2 noise levels `sigmas` that descend and are above 0 but got {levels}.")
    return levels
