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

Pools are `train`, the training images, and `heldout`, images of the same kind that are not trained on; on request
`trajectory`, points on the network's own deterministic sampling path from fixed latents, and `noise`, pure noise
`sigma eps`. What has no meaning on those is left out: neither has clean images, nor a trajectory known moments.

D is the network's denoiser, D_G that of the Gaussian with the training data's mean and covariance, D_M the memoriser,
whose values are weighted means of training images; x0 is a clean image, d its number of pixels times channels. Images
have values from -1 to 1.

All but `train/*` belongs to the averaged weights (EMA), if there is an average, and is computed in float32 with float64
sums. With `probes.weights=[ema,raw]` the same of the raw weights is logged as `raw/<name>/...`.

`<key>_se` is the standard error of a value: the jackknife's, over blocks of draws (or over samples), and for means over
noise levels that of the mean as a whole, since levels share draws. A 95 % interval is the value and 2.1 times as much
to either side with 16 blocks (Student's t with one degree of freedom fewer than `probes/blocks`). The error covers the
draws, not the choice of the images in a pool. Curves move less than it says, since every measurement uses the same
draws: `gaussbias.history.compare` gives the difference of two measurements, or of two runs, with its own error
([how many draws](draws.md)).
"""
LOGGING = (
    callbacks.LinearityCallback,
    callbacks.GaussianCallback,
    callbacks.LadderCallback,
    callbacks.GeneralizationCallback,
    callbacks.SamplesCallback,
    callbacks.FrechetCallback,
    callbacks.PicturesCallback,
    callbacks.LinearCallback,
    callbacks.SurrogateLog,
    callbacks.TeacherCallback,
    callbacks.SpectrumCallback,
    callbacks.GaussianGapStopping,
    callbacks.MemorizationStopping,
    callbacks.TrainingLog,
    callbacks.ProbeCallback,
)


def page() -> str:
    """The page as it should be."""
    parts = [f"## {cls.__name__}\n\n{(inspect.getdoc(cls) or '').partition('Args:')[0].strip()}\n" for cls in LOGGING]
    return "\n".join([HEAD, *parts]).replace("||", "\N{DOUBLE VERTICAL LINE}")  # in Markdown | ends a cell


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page())
