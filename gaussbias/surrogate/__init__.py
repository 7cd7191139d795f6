"""The estimator of the linear surrogate: sums over draws, and the affine map that is fitted to them."""

from gaussbias.surrogate.describing import describe_weights, sampling_paths, write_description
from gaussbias.surrogate.fitting import AffineFit, fewest_draws, fit_affine
from gaussbias.surrogate.pool import Pool
from gaussbias.surrogate.sums import QUARTERS, Sums

__all__ = [
    "QUARTERS",
    "AffineFit",
    "Pool",
    "Sums",
    "describe_weights",
    "fewest_draws",
    "fit_affine",
    "sampling_paths",
    "write_description",
]
