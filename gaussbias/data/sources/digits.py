"""scikit-learn's digits, which come in its wheel."""

from __future__ import annotations

import numpy as np
import torch

from gaussbias.data.sources.base import TensorSource


def digits() -> TensorSource:
    """1,797 real 8 x 8 digits (Alpaydin and Kaynak, 1998), 0..16 stored as `round(v*255/16)`."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return TensorSource(torch.from_numpy(pixels)[:, None], lambda: digits.target)
