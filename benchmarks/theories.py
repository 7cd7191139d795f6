"""Theories on the measurement grid, each beside its formula, level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import unfold

from benchmarks.harness import Case
from gaussbias.data.images import to_unit
from gaussbias.denoisers import BootstrapDenoiser, Denoiser, LocalDenoiser, WienerDenoiser
from gaussbias.denoisers.theories import clustered
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas

HELDOUT = 256
CHECKED = 4
H, CLUSTERS, WINDOW = 0.5, 10, 3
TARGET = 2.0


def cases(images: Tensor) -> Iterator[Case]:
    """D_h, a mixture, the local score machine (on fewer draws) and the local Wiener filter."""
    training, size = images[HELDOUT:], images.shape[-1]
    sigmas = karras_sigmas(10)
    x0 = to_unit(images[:HELDOUT])
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1)).to(x0)
    moments = estimate(training).to(images.device)
    few = HELDOUT if size <= 8 else 4

    def case(name: str, denoiser: Denoiser, usual: Callable[[Tensor, float], Tensor], draws: int) -> Case:
        denoiser.to(images.device)
        clean, noise = x0[:draws], eps[:draws]

        def plain() -> Tensor:
            return torch.stack([usual(clean + sigma * noise, sigma) for sigma in sigmas])

        def ours() -> Tensor:
            return denoiser.forward_grid(clean, noise, sigmas)

        some = clean[:CHECKED].double(), noise[:CHECKED].double()
        exact = torch.stack([denoiser(some[0] + sigma * some[1], sigma) for sigma in sigmas])

        def error(value: Tensor) -> float:
            """The largest error of a pixel, against float64."""
            return float((value[:, :CHECKED] - exact).abs().max())

        ours()  # constants of noise levels are made once a run
        return Case(name, f"d={x0[0].numel()}, N={len(training)}, B={draws}", plain, ours, error, TARGET)

    flat, mean = to_unit(training.flatten(1)), moments.mean.float()
    lam, basis = moments.eigenvalues.float(), moments.eigenvectors.float()
    along = (flat - mean) @ basis * (1 - H**2) ** 0.5

    def bootstrap(x: Tensor, sigma: float) -> Tensor:
        scale = (H**2 * lam + sigma**2).sqrt()
        point = (x.flatten(1) - mean) @ basis
        weights = torch.softmax(-torch.cdist(point / scale, along / scale).square() / 2, 1)
        m = weights @ along
        clean: Tensor = mean + (m + H**2 * lam / scale.square() * (point - m)) @ basis.T
        return clean.view_as(x)

    yield case("D_h, 10 levels", BootstrapDenoiser(training, moments, H), bootstrap, HELDOUT)

    made = clustered(training, CLUSTERS)
    covariances = (made.eigenvectors * made.eigenvalues[:, None]) @ made.eigenvectors.mT

    def mixture(x: Tensor, sigma: float) -> Tensor:
        eye = torch.eye(covariances.shape[1]).to(covariances)
        logits, parts = [], []
        for weight, centre, covariance in zip(made.weights, made.means, covariances, strict=True):
            rest = torch.linalg.solve(covariance + sigma**2 * eye, (x.flatten(1).double() - centre).T)
            logits.append(weight.log() - ((x.flatten(1) - centre) * rest.T).sum(1) / 2)
            logits[-1] -= torch.logdet(covariance + sigma**2 * eye) / 2
            parts.append(centre + (covariance @ rest).T)
        weights = torch.softmax(torch.stack(logits), 0)
        mixed: Tensor = (weights[..., None] * torch.stack(parts)).sum(0)
        return mixed.view_as(x).to(x.dtype)

    yield case("mixture of 10, 10 levels", made, mixture, HELDOUT)

    channels = x0.shape[1]
    pixels = to_unit(training).flatten(2)

    def windows(values: Tensor) -> Tensor:
        return unfold(values, WINDOW, padding=WINDOW // 2).permute(2, 0, 1)

    def local(x: Tensor, sigma: float) -> Tensor:
        inside = windows(torch.ones_like(x[:1]))
        result = torch.empty_like(x).flatten(2)
        for place, (own, mask) in enumerate(zip(windows(x), inside, strict=True)):
            others = _window(place)
            weights = torch.softmax(-torch.cdist(own * mask, others * mask).square() / (2 * sigma**2), 1)
            result[:, :, place] = weights @ pixels[:, :, place]
        return result.view_as(x)

    padded = torch.nn.functional.pad(training, [WINDOW // 2] * 4)

    def _window(place: int) -> Tensor:
        y, column = divmod(place, size)
        part = padded[:, :, y : y + WINDOW, column : column + WINDOW]
        return to_unit(part).flatten(1)

    yield case("local machine 3 x 3, 10 levels", LocalDenoiser(training, WINDOW), local, few)

    covariance = (moments.eigenvectors * moments.eigenvalues) @ moments.eigenvectors.T
    place = torch.arange(channels * size * size, device=images.device).view(channels, size, size)

    def wiener(x: Tensor, sigma: float) -> Tensor:
        centred, result = x.flatten(1).double() - moments.mean, torch.empty_like(x)
        for y in range(size):
            for column in range(size):
                near = place[:, max(0, y - 1) : y + 2, max(0, column - 1) : column + 2].flatten()
                own = place[:, y, column]
                within = covariance[near][:, near] + sigma**2 * torch.eye(len(near)).to(covariance)
                weights = torch.linalg.solve(within, covariance[near][:, own])
                result[:, :, y, column] = (moments.mean[own] + centred[:, near] @ weights).to(x.dtype)
        return result

    yield case("local Wiener 3 x 3, 10 levels", WienerDenoiser(moments, WINDOW), wiener, HELDOUT)
