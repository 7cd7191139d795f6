"""Networks that were trained by flow matching, as denoisers at any noise level."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gaussbias.denoisers.preconditioned import Coefficients, PreconditionedDenoiser


class FlowDenoiser(PreconditionedDenoiser):
    """A network of the straight path `x_t = (1 - t) x0 + t eps` that predicts its velocity `v = eps - x0`.

    (Liu et al. 2023, arXiv 2209.03003; Lipman et al. 2023, arXiv 2210.02747.) With `x = x_t / (1 - t)` the noise level
    is `sigma = t / (1 - t)`, and `D = x_t - t v`:

        c_skip = 1 / (1 + sigma)    c_out = -sigma / (1 + sigma)    c_in = 1 / (1 + sigma)    c_noise = scale t

    Of networks of the path in the other direction, `x_s = s x0 + (1 - s) eps` with `v = x0 - eps`, the clean images are
    at s = 1: c_out has the other sign, and c_noise is `scale (1 - t)`.

    Args:
        backbone: Called with x_t (B, C, H, W) and c_noise (B,).
        scale: What the network is told at the end of the path; 1,000 in diffusers.
        clean_at: The time of clean images, 0 or 1.
        classes: Number of classes.
    """

    def __init__(self, backbone: nn.Module, scale: float = 1.0, clean_at: int = 0, classes: int = 0) -> None:
        super().__init__(backbone, classes)
        if clean_at not in (0, 1):
            raise ValueError(f"Expected `clean_at` to be 0 or 1 but got {clean_at}.")
        self.scale, self.clean_at = scale, clean_at

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise."""
        left = 1 / (1 + sigma)
        noise, clean = sigma.double() / (1 + sigma.double()), 1 / (1 + sigma.double())
        told = (self.scale * (clean if self.clean_at else noise)).to(sigma.dtype)
        return left, sigma * left if self.clean_at else -sigma * left, left, told

    def effective_sigma(self, sigma: float) -> float:
        """The noise level of the time that the network gets, which is rounded to float32."""
        told = float(self.coefficients(torch.tensor(sigma, dtype=torch.float64))[3].float()) / self.scale
        noise, clean = (1 - told, told) if self.clean_at else (told, 1 - told)
        return noise / clean if clean > 0 else sigma
