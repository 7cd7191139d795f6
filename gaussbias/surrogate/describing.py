"""What the weights of a surrogate look like beside the Gaussian's, and where sampling with each denoiser leads.

The pictures of Li, Dai and Qu 2024 (arXiv 2410.24060), Figures 2 (right) and 4, are drawn from these tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from gaussbias.data.images import to_pixels
from gaussbias.denoisers import Denoiser, LinearDenoiser, at_levels
from gaussbias.moments import Eigenmoments, eigh
from gaussbias.noise import BAND
from gaussbias.sampling import sample
from gaussbias.system.files import complete

LEADING = 100
"""Directions whose singular vectors are compared."""
SIZES = (1, 2, 5, 10, 20, 50, 100)
"""Dimensions of the leading subspaces that are compared."""


def describe_weights(denoiser: LinearDenoiser, moments: Eigenmoments) -> dict[str, Tensor]:
    """Spectra and singular vectors of the weights W of each level, beside those of the Gaussian denoiser.

    Args:
        denoiser: The surrogate, S levels.
        moments: Of the training images.

    Returns:
        On the CPU, float32:

        - `singular_values` (S, d), of W, descending;
        - `shrinkage` (S, d), `lam / (lam + sigma^2)`, those of the Gaussian denoiser;
        - `diagonal` (S, d), `u_i^T W u_i` along the eigenvectors of the data;
        - `vectors` (S, k, k), `|U_L^T U|` of the k <= 100 leading left singular vectors and eigenvectors;
        - `sizes` (n,) and `overlap` (S, n), `||P_L P||_F^2 / k` of the projectors on the k leading ones;
        - `asymmetry` (S,), `||W - W^T||_F / (2 ||W||_F)`;
        - `weight_nmse` (S,), `||W - W_G||_F^2 / ||W_G||_F^2`.

        Below the intermediate noise levels W is close to the identity, whose singular vectors mean nothing: there
        `vectors` and `overlap` are NaN.
    """
    basis = moments.eigenvectors.to(denoiser.weights.device)
    eigenvalues = moments.eigenvalues.to(basis)
    d, rank = basis.shape
    k = min(LEADING, rank)
    sizes = [size for size in SIZES if size <= k]
    levels: list[dict[str, Tensor]] = []
    for weights, sigma in zip(denoiser.weights, denoiser.sigmas.tolist(), strict=True):
        w = weights.to(basis)
        squares, left = eigh(w @ w.T)
        shrinkage = eigenvalues / (eigenvalues + sigma**2)
        turned = basis.T @ w @ basis
        gap = w.square().sum() - 2 * (turned.diagonal() * shrinkage).sum() + shrinkage.square().sum()
        vectors = (left.flip(1)[:, :k].T @ basis[:, :k]).abs()
        overlap = torch.stack([vectors[:size, :size].square().sum() / size for size in sizes])
        if sigma < BAND[0]:
            vectors, overlap = vectors * torch.nan, overlap * torch.nan
        levels.append(
            {
                "singular_values": squares.clamp(min=0).flip(0).sqrt(),
                "shrinkage": _padded(shrinkage, d),
                "diagonal": _padded(turned.diagonal(), d),
                "vectors": vectors,
                "overlap": overlap,
                "asymmetry": (w - w.T).norm() / (2 * w.norm()),
                "weight_nmse": gap / shrinkage.square().sum(),
            }
        )
    described = {name: torch.stack([level[name] for level in levels]).float().cpu() for name in levels[0]}
    return described | {"sizes": torch.tensor(sizes)}


def sampling_paths(
    denoisers: Mapping[str, Denoiser], latents: Tensor, sigmas: Tensor, method: str
) -> dict[str, Tensor]:
    """Denoised images along the sampling paths of several denoisers from the same latents, by name.

    Args:
        denoisers: By name.
        latents: Standard normal (n, C, H, W).
        sigmas: Descending noise levels (S,).
        method: `heun` or `euler`.

    Returns:
        (S, n, C, H, W), in data units.
    """
    paths = {}
    for name, denoiser in denoisers.items():
        _, states = sample(denoiser, latents, sigmas, method, path=True)
        paths[name] = at_levels(denoiser, states[:-1].to(latents.dtype), sigmas)
    return paths


def _padded(values: Tensor, size: int) -> Tensor:
    return torch.cat([values, values.new_zeros(size - len(values))])


def write_description(
    file: Path,
    surrogate: LinearDenoiser,
    others: Mapping[str, Denoiser],
    moments: Eigenmoments,
    latents: Tensor,
    method: str,
    show: Callable[[Tensor], Tensor] = to_pixels,
) -> None:
    """Write what `describe_weights` and `sampling_paths` find, for `gaussbias.figures`, which needs no torch.

    Args:
        file: Where to write (safetensors).
        surrogate: The surrogate.
        others: Further denoisers to follow from the same latents, by name.
        moments: Of the training images.
        latents: Standard normal (n, C, H, W).
        method: `heun` or `euler`.
        show: Makes pictures, uint8, of images in data units.
    """
    paths = sampling_paths({"linear": surrogate, **others}, latents, surrogate.sigmas, method)
    tensors = describe_weights(surrogate, moments)
    tensors |= {f"path_{name}": show(value).cpu() for name, value in paths.items()}
    about = {"format": "gaussbias.surrogate/1", "sigmas": json.dumps(surrogate.sigmas.tolist())}
    with complete(file) as temporary:
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary, about)
