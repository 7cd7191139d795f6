"""A network as a denoiser, by EDM's preconditioning."""

from __future__ import annotations

from torch import Tensor, nn

from gaussbias.denoisers.preconditioned import Coefficients, PreconditionedDenoiser


class EDMDenoiser(PreconditionedDenoiser):
    """`D(x, sigma) = c_skip x + c_out F(c_in x, c_noise)` (Karras et al. 2022, Eq. 7 and Table 1, arXiv 2206.00364).

        c_skip = sd^2 / (sigma^2 + sd^2)        c_out   = sigma sd / sqrt(sigma^2 + sd^2)
        c_in   = 1 / sqrt(sigma^2 + sd^2)       c_noise = ln(sigma) / 4

    For data of standard deviation sd, the input of F and what it has to predict have unit variance at every
    noise level.

    Args:
        backbone: F, called with (B, C, H, W) and c_noise (B,).
        sigma_data: sd, the standard deviation of the data.
        classes: Number of classes.
    """

    def __init__(self, backbone: nn.Module, sigma_data: float = 0.5, classes: int = 0) -> None:
        super().__init__(backbone, classes)
        self.sigma_data = sigma_data

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise, each of the shape of `sigma`."""
        total = sigma.square() + self.sigma_data**2
        return (
            self.sigma_data**2 / total,
            sigma * self.sigma_data / total.sqrt(),
            total.rsqrt(),
            sigma.log() / 4,
        )

    def loss_weight(self, sigma: Tensor) -> Tensor:
        """`(sigma^2 + sd^2) / (sigma sd)^2 = 1 / c_out^2`: every level starts at the same loss (EDM, Table 1)."""
        return (sigma.square() + self.sigma_data**2) / (sigma * self.sigma_data).square()
