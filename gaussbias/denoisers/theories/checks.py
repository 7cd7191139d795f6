"""What theories are made of is checked in one place."""

from __future__ import annotations

from torch import Tensor


def check_images(images: Tensor) -> None:
    """Raise `ValueError` for what is no set of images (N, C, H, W)."""
    if images.ndim != 4 or not len(images):
        raise ValueError(f"Expected `images` (N, C, H, W) with N > 0 but got shape {tuple(images.shape)}.")


def reach_of(window: int) -> int:
    """How far a window of k x k pixels reaches on each side; raises `ValueError` for an even k, or one below 1."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"Expected an odd `window` of at least 1 but got {window}.")
    return window // 2
