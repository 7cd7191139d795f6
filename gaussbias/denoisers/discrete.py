"""Networks of variance-preserving noise, trained at numbered steps or at any time, as denoisers at noise levels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gaussbias.denoisers.preconditioned import Coefficients, PreconditionedDenoiser

PREDICTIONS = ("epsilon", "v_prediction", "sample")


class VariancePreserving(PreconditionedDenoiser):
    """A network of `x_t = a x0 + b eps`, `a^2 + b^2 = 1` (Ho et al. 2020, arXiv 2006.11239).

    With `x = x_t / a`, `sigma = b / a` and `c_in = a = 1 / sqrt(sigma^2 + 1)`,

    | prediction | c_skip | c_out |
    |---|---|---|
    | `epsilon` (Ho et al. 2020) | 1 | -sigma |
    | `v_prediction` (Salimans and Ho 2022, arXiv 2202.00512) | 1 / (sigma^2 + 1) | -sigma / sqrt(sigma^2 + 1) |
    | `sample` | 0 | 1 |

    and c_noise is the time that belongs to sigma.

    Args:
        backbone: Called with x_t (B, C, H, W) and its time (B,).
        prediction: What the network predicts.
        classes: Number of classes.

    Raises:
        ValueError: For another prediction.
    """

    def __init__(self, backbone: nn.Module, prediction: str = "epsilon", classes: int = 0) -> None:
        super().__init__(backbone, classes)
        if prediction not in PREDICTIONS:
            raise ValueError(f"Expected `prediction` to be one of {', '.join(PREDICTIONS)} but got {prediction}.")
        self.prediction = prediction

    @abstractmethod
    def time(self, sigma: Tensor) -> Tensor:
        """What the network is told at noise levels, any shape."""

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise."""
        scale = (sigma.square() + 1).rsqrt()
        time = self.time(sigma).to(sigma.dtype)
        if self.prediction == "epsilon":
            return 1.0, -sigma, scale, time
        if self.prediction == "v_prediction":
            return scale.square(), -sigma * scale, scale, time
        return 0.0, torch.ones_like(sigma), scale, time


class TimedDenoiser(VariancePreserving):
    """A network of variance-preserving noise that is told any function of the noise level.

    Args:
        backbone: Called with x_t (B, C, H, W) and its time (B,).
        told: The time of noise levels, of any shape.
        prediction: What the network predicts.
        classes: Number of classes.
    """

    def __init__(
        self, backbone: nn.Module, told: Callable[[Tensor], Tensor], prediction: str = "epsilon", classes: int = 0
    ) -> None:
        super().__init__(backbone, prediction, classes)
        self.told = told

    def time(self, sigma: Tensor) -> Tensor:
        """What the network is told at noise levels, any shape."""
        return self.told(sigma)


class DiscreteDenoiser(VariancePreserving):
    """A network of numbered steps t with `a^2 = abar_t` (Ho et al. 2020): it is told t.

    Between two steps t is interpolated in ln sigma.

    Args:
        backbone: Called with x_t (B, C, H, W) and t (B,).
        alphas_cumprod: abar_t (T,), descending.
        prediction: What the network predicts.
        classes: Number of classes.

    Raises:
        ValueError: For another prediction, or steps whose noise does not grow.
    """

    log_sigmas: Tensor

    def __init__(
        self, backbone: nn.Module, alphas_cumprod: Tensor, prediction: str = "epsilon", classes: int = 0
    ) -> None:
        super().__init__(backbone, prediction, classes)
        kept = alphas_cumprod.double()
        kept = kept[kept > 0]  # where nothing of the image is left sigma is infinite
        sigmas = ((1 - kept) / kept).sqrt()
        if len(sigmas) < 2 or not bool((sigmas[:1] > 0).all() and (sigmas.diff() > 0).all()):
            raise ValueError("Expected `alphas_cumprod` to descend from below 1, at least 2 of them.")
        self.register_buffer("log_sigmas", sigmas.log(), persistent=False)
        self.sigma_range = (float(sigmas[0]), float(sigmas[-1]))

    def time(self, sigma: Tensor) -> Tensor:
        """The step t of noise levels, any shape, with fractions; float64."""
        levels = self.log_sigmas.to(sigma.device)  # a network that was wrapped may have moved since
        level = sigma.double().log().clamp(levels[0], levels[-1])
        above = torch.searchsorted(levels, level.contiguous()).clamp(1, len(levels) - 1)
        low, high = levels[above - 1], levels[above]
        return above - 1 + (level - low) / (high - low)

    def effective_sigma(self, sigma: float) -> float:
        """The noise level of the step that the network gets, which is rounded to float32."""
        time = self.time(self.log_sigmas.new_tensor(sigma)).float().double()
        below = int(time.floor().clamp(0, len(self.log_sigmas) - 2))
        low, high = self.log_sigmas[below], self.log_sigmas[below + 1]
        return float((low + (time - below) * (high - low)).exp())
