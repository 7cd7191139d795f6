"""Networks as denoisers: `D(x, sigma) = c_skip x + c_out F(c_in x, c_noise)` (Karras et al. 2022, Table 1)."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from gaussbias.denoisers.base import Denoiser, per_image

Coefficients = tuple[Tensor | float, Tensor, Tensor | float, Tensor]


class PreconditionedDenoiser(Denoiser):
    """`D(x, sigma) = c_skip x + c_out F(c_in x, c_noise)` (Karras et al. 2022, Eq. 7, arXiv 2206.00364).

    Args:
        backbone: F, called with (B, C, H, W) and c_noise (B,). Of an output with more channels than the images have
            the first ones count: the others are variances. With classes it is called with one-hot rows (B, classes) as
            well, in which no class is a row of zeros.
        classes: Number of classes that F tells apart.
    """

    def __init__(self, backbone: nn.Module, classes: int = 0) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes

    @abstractmethod
    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise, each of the shape of `sigma` or a number."""

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        """Denoise `x` (B, C, H, W) at `sigma`, one or (B,).

        Args:
            x: Noisy images.
            sigma: Noise level.
            labels: Of a network with classes, the class of each image (B,), -1 for none; `None`: none of any.

        Raises:
            ValueError: For a noise level that is not in `sigma_range`, and for no labels of a network that has to be
                told them.
        """
        if labels is None and self.classes and not self.knows_none:
            raise ValueError(f"Expected `labels`, from 0 to {self.classes - 1}, of a network that knows no others.")
        if self.at_once is not None and len(x) > self.at_once:
            levels = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
            given = (x, levels) if labels is None else (x, levels, labels)
            parts = zip(*(part.split(self.at_once) for part in given), strict=True)
            return torch.cat([self(*part) for part in parts])
        self.check_sigma(sigma)
        c_skip, c_out, c_in, c_noise = self.coefficients(per_image(sigma, x))
        dtype = x.dtype
        if dtype == torch.float64:  # weights from elsewhere are float32 whatever x is
            dtype = next((parameter.dtype for parameter in self.backbone.parameters()), dtype)
        told = dtype if x.dtype != torch.float64 else torch.promote_types(dtype, torch.float32)  # times need digits
        given = (c_in * x).to(dtype), c_noise.reshape(len(x)).to(told)
        rows = (one_hot(labels, len(x), self.classes, x.device).to(dtype),) if self.classes else ()
        raw: Tensor = self.backbone(*given, *rows)
        return c_skip * x + c_out * raw[:, : x.shape[1]].to(x.dtype)


def one_hot(labels: Tensor | None, count: int, classes: int, device: torch.device) -> Tensor:
    """Rows (count, classes) with a 1 at each class; of zeros where there is none, -1, or without labels."""
    if labels is None:
        return torch.zeros(count, classes, device=device)
    return (labels.to(device)[:, None] == torch.arange(classes, device=device)).float()


class VPDenoiser(PreconditionedDenoiser):
    """The variance-preserving process of Song et al. 2021 (EDM, Table 1, first column).

        c_skip = 1    c_out = -sigma    c_in = 1 / sqrt(sigma^2 + 1)    c_noise = (M - 1) t(sigma)

    with `sigma(t)^2 = exp(beta_d t^2 / 2 + beta_min t) - 1`. EDM, which trained such networks, takes t(sigma) in
    float32, where `1 + sigma^2` is rounded: at sigma 0.002 the network is told a value 1.3 % off. So it is here.

    Args:
        backbone: F.
        beta_d: Growth of the rate of noise.
        beta_min: Rate of noise at t = 0.
        steps: M.
        smallest: t of the smallest noise level.
        classes: Number of classes.
    """

    def __init__(
        self,
        backbone: nn.Module,
        beta_d: float = 19.9,
        beta_min: float = 0.1,
        steps: int = 1000,
        smallest: float = 1e-5,
        classes: int = 0,
    ) -> None:
        super().__init__(backbone, classes)
        self.beta_d, self.beta_min, self.steps = beta_d, beta_min, steps
        self.sigma_range = (self._sigma(smallest), self._sigma(1.0))

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise."""
        rate = 2 * self.beta_d * (1 + sigma.float().square()).log()
        time = ((self.beta_min**2 + rate).sqrt() - self.beta_min) / self.beta_d
        return 1.0, -sigma, (sigma.square() + 1).rsqrt(), ((self.steps - 1) * time).to(sigma.dtype)

    def _sigma(self, time: float) -> float:
        return math.sqrt(math.expm1(self.beta_d * time**2 / 2 + self.beta_min * time))


class VEDenoiser(PreconditionedDenoiser):
    """The variance-exploding process of Song et al. 2021 (EDM, Table 1, second column).

        c_skip = 1    c_out = sigma    c_in = 1    c_noise = ln(sigma / 2)

    Args:
        backbone: F.
        sigma_range: Smallest and largest noise level.
        classes: Number of classes.
    """

    def __init__(self, backbone: nn.Module, sigma_range: tuple[float, float] = (0.02, 100.0), classes: int = 0) -> None:
        super().__init__(backbone, classes)
        self.sigma_range = sigma_range

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise."""
        return 1.0, sigma, 1.0, (sigma / 2).log()


class IDDPMDenoiser(PreconditionedDenoiser):
    """The steps of Nichol and Dhariwal 2021 (arXiv 2102.09672; EDM, Table 1, third column).

        c_skip = 1    c_out = -sigma    c_in = 1 / sqrt(sigma^2 + 1)    c_noise = M - 1 - j

    with u_j the nearest of M noise levels, the only ones that the network knows: `effective_sigma`. The output has
    twice the channels of the images; its second half, of variances, is not used.

    Args:
        backbone: F.
        u: The noise levels (M + 1,), descending, the last one 0; `iddpm_levels()` if not given.
        classes: Number of classes.
    """

    u: Tensor

    def __init__(self, backbone: nn.Module, u: Tensor | None = None, classes: int = 0) -> None:
        super().__init__(backbone, classes)
        self.register_buffer("u", (iddpm_levels() if u is None else u).float(), persistent=False)
        self.steps = len(self.u) - 1
        self.sigma_range = (float(self.u[self.steps - 1]), float(self.u[0]))

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise."""
        nearest = (sigma.to(self.u.dtype)[..., None] - self.u).abs().argmin(-1)
        return 1.0, -sigma, (sigma.square() + 1).rsqrt(), (self.steps - 1 - nearest).to(sigma.dtype)

    def effective_sigma(self, sigma: float) -> float:
        """The nearest noise level that the network knows."""
        levels = self.u[:-1].double()
        return float(levels[(levels - sigma).abs().argmin()])


def iddpm_levels(C_1: float = 0.001, C_2: float = 0.008, steps: int = 1000) -> Tensor:
    """Noise levels u_j (M + 1,) of the cosine schedule, float64.

    u_M = 0, and downwards for j = M..1

        u_{j-1}^2 = (u_j^2 + 1) / max(a_{j-1} / a_j, C_1) - 1,    a_j = sin^2(pi j / (2 M (C_2 + 1))).

    EDM computes them in float32, which is off by up to 5e-4: of a checkpoint take those that are stored in it.
    """
    levels = [0.0]

    def signal(j: int) -> float:
        return math.sin(math.pi / 2 * j / (steps * (C_2 + 1))) ** 2

    for j in range(steps, 0, -1):
        levels.append(math.sqrt((levels[-1] ** 2 + 1) / max(signal(j - 1) / signal(j), C_1) - 1))
    return torch.tensor(levels[::-1], dtype=torch.float64)
