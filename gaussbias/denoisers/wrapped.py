"""Any network in memory as a denoiser, whatever it predicts and whatever it is told of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.discrete import DiscreteDenoiser, TimedDenoiser
from gaussbias.denoisers.edm import EDMDenoiser
from gaussbias.denoisers.flow import FlowDenoiser
from gaussbias.denoisers.preconditioned import Coefficients, PreconditionedDenoiser

PREDICTIONS = {"epsilon": "epsilon", "v": "v_prediction", "x0": "sample"}
"""Kinds of variance-preserving networks, and what diffusers calls them."""
KINDS = ("flow", *PREDICTIONS, "edm", "denoiser")


def wrap(
    network: Callable[..., Any],
    kind: str,
    *,
    alphas_cumprod: Tensor | None = None,
    time: Callable[[Tensor], Tensor] | None = None,
    scale: float = 1.0,
    clean_at: int = 0,
    sigma_data: float = 0.5,
    classes: int = 0,
    null_label: int | None = None,
    sigma_range: tuple[float, float] | None = None,
) -> Denoiser:
    """A network as a denoiser `D(x, sigma) ~ E[x0 | x0 + sigma eps = x]`, which everything here takes.

        denoiser = gaussbias.wrap(unet, "epsilon", alphas_cumprod=scheduler.alphas_cumprod)
        levels = gaussbias.noise.karras_sigmas(10, *denoiser.sigma_range)  # those that it was trained for
        measured = gaussbias.Ruler(images, heldout, sigmas=levels, sampler_sigmas=levels)(denoiser)

    | kind | the network is called with | and gives |
    |---|---|---|
    | `flow` | `(1 - t) x0 + t eps`, `scale t` | `eps - x0` |
    | `flow`, `clean_at=1` | `t x0 + (1 - t) eps`, `scale t` | `x0 - eps` |
    | `epsilon` | `a x0 + b eps` with `a^2 + b^2 = 1`, the time | `eps` |
    | `v` | the same | `a eps - b x0` |
    | `x0` | the same | `x0` |
    | `edm` | `c_in x`, `ln(sigma) / 4` | F of `D = c_skip x + c_out F` |
    | `denoiser` | `x0 + sigma eps`, `sigma` | `x0`: D itself, such as EDM's `net` or k-diffusion's wrappers |

    The time of `epsilon`, `v` and `x0` is the step of `alphas_cumprod`, with fractions in between, or any function of
    the noise level, `time`. x0 are images in the units that the network was trained on.

    Args:
        network: Called with images (B, C, H, W), numbers (B,), and with classes labels (B,), int64. Its output, or the
            `sample` of it as in diffusers, is (B, C, H, W); of more channels the first C count. It stays as it is: a
            network that goes on training is measured as it is then, by `Ruler` in evaluation mode.
        kind: One of the table.
        alphas_cumprod: `a^2` of each step (T,), descending, for `epsilon`, `v` and `x0`.
        time: Instead of it, what the network is told at noise levels, a tensor of any shape.
        scale: What a flow is told at t = 1: 1,000 in diffusers.
        clean_at: The t of clean images of a flow, 0 or 1.
        sigma_data: Of `edm`, the standard deviation of the images for which it was made.
        classes: Number of classes of a network that is told them.
        null_label: The label that stands for no class, if it was trained with one; guidance needs it.
        sigma_range: Smallest and largest noise level that it was trained for; `None` is all that its kind can take: of
            steps their own noise levels, of k-diffusion's wrappers those in `sigmas`.

    Raises:
        ValueError: For another kind, and for arguments that it lacks or has no use for.
    """
    if kind not in KINDS:
        raise ValueError(f"Expected `kind` to be one of {', '.join(KINDS)} but got {kind}.")
    _check(kind, alphas_cumprod, time, scale, clean_at, sigma_data, classes, null_label)
    called = Called(network, null_label)
    denoiser: PreconditionedDenoiser
    if kind == "flow":
        denoiser = FlowDenoiser(called, scale, clean_at, classes)
    elif kind == "edm":
        denoiser = EDMDenoiser(called, sigma_data, classes)
    elif kind == "denoiser":
        denoiser = CleanDenoiser(called, classes)
    elif alphas_cumprod is not None:
        denoiser = DiscreteDenoiser(called, torch.as_tensor(alphas_cumprod), PREDICTIONS[kind], classes)
    else:
        assert time is not None
        denoiser = TimedDenoiser(called, time, PREDICTIONS[kind], classes)
    denoiser.knows_none = null_label is not None
    if sigma_range is not None:
        (low, high), (least, most) = sigma_range, denoiser.sigma_range
        if not least * (1 - 1e-6) <= low < high <= most * (1 + 1e-6):
            raise ValueError(
                f"Expected `sigma_range` to be two noise levels, ascending, from {least:.4g} to {most:.4g}, but got "
                f"{sigma_range}."
            )
        denoiser.sigma_range = sigma_range
    return denoiser


def _check(
    kind: str,
    alphas_cumprod: Tensor | None,
    time: Callable[[Tensor], Tensor] | None,
    scale: float,
    clean_at: int,
    sigma_data: float,
    classes: int,
    null_label: int | None,
) -> None:
    """Raise `ValueError` for arguments that a kind lacks, and for those that would mean nothing to it."""
    if kind in PREDICTIONS and (alphas_cumprod is None) == (time is None):
        both = "both" if time is not None else "neither"
        raise ValueError(f"Expected `alphas_cumprod` or `time` with kind {kind} but got {both}.")
    unused = {
        "alphas_cumprod": alphas_cumprod is not None and kind not in PREDICTIONS,
        "time": time is not None and kind not in PREDICTIONS,
        "scale": scale != 1 and kind != "flow",
        "clean_at": clean_at != 0 and kind != "flow",
        "sigma_data": sigma_data != 0.5 and kind != "edm",
        "null_label": null_label is not None and not classes,
    }
    for name, bad in unused.items():
        if bad:
            why = "a network without classes" if name == "null_label" else f"kind {kind}"
            raise ValueError(f"Expected no `{name}` with {why}, to which it means nothing.")


class Called(nn.Module):
    """A function as the network F of a denoiser, which is called with one-hot rows.

    Args:
        network: Called with images, numbers (B,) and labels (B,).
        null_label: The label for rows of zeros.
    """

    def __init__(self, network: Callable[..., Any], null_label: int | None = None) -> None:
        super().__init__()
        self.network, self.null_label = network, null_label

    def forward(self, x: Tensor, told: Tensor, rows: Tensor | None = None) -> Tensor:
        """The output (B, C or more, H, W), from images (B, C, H, W), what they are told (B,) and rows (B, classes).

        Raises:
            ValueError: If the output is of another shape.
        """
        labels = () if rows is None else (numbers(rows, self.null_label),)
        dtype = x.dtype
        if isinstance(self.network, nn.Module):
            dtype = next((one.dtype for one in self.network.parameters() if one.is_floating_point()), dtype)
        output = self.network(x.to(dtype), told.to(dtype) if dtype == torch.float64 else told, *labels)
        output = output if isinstance(output, Tensor) else getattr(output, "sample", output)
        good = isinstance(output, Tensor) and output.ndim == 4 and _sides(output) == _sides(x)
        if not good or output.shape[1] < x.shape[1]:
            what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"Expected the network to give a tensor of shape {tuple(x.shape)}, that of its images, or with more "
                f"channels, but got {what}."
            )
        result: Tensor = output
        return result


def numbers(rows: Tensor, null_label: int | None) -> Tensor:
    """The labels (B,), int64, of one-hot rows (B, classes); `null_label` of rows of zeros.

    Raises:
        ValueError: For a row of zeros without a null label, on a CPU.
    """
    labels = rows.argmax(1)
    if (
        null_label is None and rows.device.type == "cpu" and not bool(rows.any(1).all())
    ):  # a GPU would have to be waited for
        raise ValueError(f"Expected `labels` from 0 to {rows.shape[1] - 1} of a network that knows no others.")
    if null_label is not None:
        return torch.where(rows.any(1), labels, null_label)
    return labels


def _sides(x: Tensor) -> tuple[int, ...]:
    """Images, height and width."""
    return len(x), *x.shape[2:]


class CleanDenoiser(PreconditionedDenoiser):
    """A function of noisy images and noise levels that gives clean images.

    Of k-diffusion's wrappers of numbered steps `sigmas` are the noise levels, to which those with `quantize` round.

    Args:
        called: It.
        classes: Number of classes.
    """

    def __init__(self, called: Called, classes: int = 0) -> None:
        super().__init__(called, classes)
        levels = getattr(called.network, "sigmas", None)
        self._rounds_to: Tensor | None = None
        if isinstance(levels, Tensor):
            self.sigma_range = float(levels.min()), float(levels.max())
            self._rounds_to = levels.double().cpu() if getattr(called.network, "quantize", False) else None

    def coefficients(self, sigma: Tensor) -> Coefficients:
        """c_skip, c_out, c_in and c_noise: what the function gives is D."""
        return 0.0, torch.ones_like(sigma), 1.0, sigma

    def effective_sigma(self, sigma: float) -> float:
        """The noise level that the function takes `sigma` for, the nearest in the logarithm."""
        if self._rounds_to is None:
            return sigma
        return float(self._rounds_to[(self._rounds_to.log() - math.log(sigma)).abs().argmin()])
