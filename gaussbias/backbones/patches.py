"""A network that sees squares of pixels as one: cheaper on large images."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn


class Patched(nn.Module):
    """A network on patches of `patch x patch` pixels, whose numbers become channels, and back.

    A convolution then takes `patch^2` times fewer operations for the same width. Dosovitskiy et al. 2021
    (arXiv 2010.11929) give patches to transformers, Peebles and Xie 2023 (arXiv 2212.09748) to those of diffusion.

    Args:
        network: Called with (B, C patch^2, H / patch, W / patch), and what else is given; gives images of that shape.
        patch: Pixels a side.
    """

    def __init__(self, network: nn.Module, patch: int) -> None:
        super().__init__()
        self.network, self.patch = network, patch

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        """F(x, ...) for x (B, C, H, W), sides divisible by `patch`."""
        size = {"p": self.patch, "q": self.patch}
        inner = self.network(rearrange(x, "b c (h p) (w q) -> b (c p q) h w", **size), *given)
        result: Tensor = rearrange(inner, "b (c p q) h w -> b c (h p) (w q)", **size)
        return result
