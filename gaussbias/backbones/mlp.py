"""A residual multilayer perceptron, for small images and quick tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Residual blocks of `x + W2 silu(W1 norm(x) + embedding(c_noise))` on flattened images.

    The last layer starts at 0, so that an untrained denoiser is `c_skip x`.

    Args:
        shape: (C, H, W) of the images.
        channels: Width.
        layers: Number of blocks.
        dropout: Probability.
        classes: Number of classes; their embedding is added to that of the noise.
    """

    def __init__(
        self, shape: tuple[int, int, int], channels: int, layers: int = 2, dropout: float = 0.0, classes: int = 0
    ) -> None:
        super().__init__()
        d = math.prod(shape)
        self.enter = nn.Linear(d, channels)
        self.blocks = nn.ModuleList(_Block(channels, dropout) for _ in range(layers))
        self.leave = nn.Linear(channels, d)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)
        self.label = nn.Linear(classes, _WIDTH, bias=False) if classes else None

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W), c_noise (B,) and one-hot labels (B, classes), absent ones all 0."""
        hidden = self.enter(x.flatten(1))
        embedding = _embed(c_noise)
        if self.label is not None and labels is not None:
            embedding = embedding + self.label(labels * math.sqrt(labels.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, embedding)
        result: Tensor = self.leave(nn.functional.silu(hidden)).view_as(x)
        return result


class _Block(nn.Module):
    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.first = nn.Linear(channels, channels)
        self.embed = nn.Linear(_WIDTH, channels)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(channels, channels)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        hidden = nn.functional.silu(self.first(self.norm(x)) + self.embed(embedding))
        result: Tensor = x + self.second(self.dropout(hidden))
        return result


_WIDTH = 32


def _embed(c_noise: Tensor) -> Tensor:
    """Cosines and sines of c_noise at frequencies from 1 to 30."""
    frequencies = torch.logspace(0, math.log10(30), _WIDTH // 2, device=c_noise.device, dtype=c_noise.dtype)
    angles = c_noise[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1)
