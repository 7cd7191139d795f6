"""A class-conditional network as one that is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST = 4096
"""Classes that are averaged over, at most."""


class LabelledBackbone(nn.Module):
    """The mean of a class-conditional network over given classes: `F(x, c_noise) = mean_k F(x, c_noise, label_k)`.

    Since denoisers are `c_skip x + c_out F`, it is also the mean of the denoisers. It costs an evaluation for each.

    Args:
        network: Called with (B, C, H, W), c_noise (B,) and labels (B, ...).
        labels: (K, ...), a row for each class.
    """

    labels: Tensor

    def __init__(self, network: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("labels", labels, persistent=False)

    def forward(self, x: Tensor, c_noise: Tensor) -> Tensor:
        """F(x, c_noise), for x (B, C, H, W) and c_noise (B,)."""
        total: Tensor | None = None
        for label in self.labels:
            each = self.network(x, c_noise, label.expand(len(x), *label.shape))
            total = each if total is None else total + each
        assert total is not None
        return total / len(self.labels)


def label_rows(labels: str, classes: int) -> Tensor:
    """One-hot rows (K, classes) of `average` (all classes), `none` (a row of zeros), or the number of a class.

    Raises:
        ValueError: For anything else.
    """
    if labels == "average" and classes <= MOST:
        return torch.eye(classes)
    row = torch.zeros(1, classes)
    if labels == "none":
        return row
    if labels.isdecimal() and int(labels) < classes:
        row[0, int(labels)] = 1
        return row
    raise ValueError(f"expected average, none or a class from 0 to {classes - 1}, got {labels}")
