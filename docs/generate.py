"""Writes docs/metrics.md from the callbacks' own tables: `python docs/generate.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

from gaussbias import callbacks

HEAD = """\
# What is logged

This page is made from the docstrings of the callbacks by `python docs/generate.py`; a test keeps it current.

Every row has `kimg` (thousands of images seen, the x axis in W&B) and `epoch`. Values that belong to a pool of images
and to a noise level are logged as

- `<name>/<pool>`: the mean over the intermediate noise levels, 0.1 to 20, where denoisers differ;
- `<name>/<pool>/sigma_<s>`: one level, `<s>` to three digits with `p` for the point, as in
  `gaussian/rmse/heldout/sigma_0p47`.

Pools are `train`, the training images, and `heldout`, images of the same kind that are not trained on. D is the
network's denoiser, D_G that of the Gaussian with the training data's mean and covariance, D_M the memoriser, whose
values are weighted means of training images; x0 is a clean image, d its number of pixels times channels. Images have
values from -1 to 1.

All but `train/*` belongs to the averaged weights (EMA), if there is an average, and is computed in float32 with float64
sums.
"""
LOGGING = (
    callbacks.LinearityCallback,
    callbacks.GaussianCallback,
    callbacks.GeneralizationCallback,
    callbacks.SamplesCallback,
    callbacks.FrechetCallback,
    callbacks.PicturesCallback,
    callbacks.TrainingLog,
    callbacks.ProbeCallback,
)


def page() -> str:
    """The page as it should be."""
    parts = [f"## {cls.__name__}\n\n{(inspect.getdoc(cls) or '').partition('Args:')[0].strip()}\n" for cls in LOGGING]
    return "\n".join([HEAD, *parts]).replace("||", "\N{DOUBLE VERTICAL LINE}")  # in Markdown | ends a cell


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page())
