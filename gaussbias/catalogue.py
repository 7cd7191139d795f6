"""All logged values: their names, what they mean, and what they are shown beside.

Tables, curves, dashboards, pages and the documentation take names and titles from here. A value of a pool of draws is
logged as `<name>/<pool>`, its mean over the intermediate noise levels, and as `<name>/<pool>/sigma_<s>` at each level;
others as `<name>`. Standard errors end in `_se`, and names of raw weights begin with `raw/`.

Only the standard library is imported here. A probe, a theory or a callback from elsewhere brings entries of its own,
which a run folder keeps in `catalogue.json`, so that whoever reads the run knows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gaussbias.noise import sigma_name

RAW = "raw/"
"""Before the names of what was measured of raw weights."""
GUIDED = "guided_"
"""Before the weight of guidance, in the names of what was measured of samples that are guided."""
CLASS = "class_"
"""Before the number of a class, in the names of what was measured on its images alone."""
SE = "_se"
"""After the name of a value: that of its standard error."""
LOW, HIGH = "_low", "_high"
"""After the name of a share: those of the ends of its interval."""
IMAGES = ("train", "heldout")
"""Pools of noisy images: of those that are trained on, and of those that are not."""
POINTS = ("trajectory", "noise")
"""Pools without images: a network's own sampling path from fixed latents, and pure noise."""
POOLS = (*IMAGES, *POINTS)
FILE = "catalogue.json"
"""In a run folder: the entries that are not in this file."""


@dataclass(frozen=True)
class Entry:
    """A logged value.

    Attributes:
        name: `<group>/<metric>`, without pool and noise level; `<i>` stands for a number.
        title: In words, for rows of tables and panels of pictures.
        meaning: What it is, a formula where there is one.
        short: The head of a column; empty: the title.
        unit: Of the value; empty for a number without one.
        low: The smallest value that it can have; `None` is no limit.
        high: The largest one.
        pools: The pools that it is measured on; none for a value of its own.
        levels: Whether it is a value of each noise level; with pools also averaged over the intermediate ones.
        averaged: Whether a value of noise levels without a pool is averaged over the intermediate ones as well.
        larger_is_better: Whether larger values are better; `None` where neither is.
        gaussian: What the Gaussian denoiser has: the name of a value, or a number.
        ideal: What real images, or for values of pools the memoriser, have: the name of a value, or a number.
        reference: Whether it belongs to a baseline, whatever the weights that are measured.
        null: For a sign of memorisation, what a network has that copies nothing, the name of a value or a number; it
            grows with memorisation.
    """

    name: str
    title: str
    meaning: str
    short: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    pools: tuple[str, ...] = ()
    levels: bool = False
    averaged: bool = False
    larger_is_better: bool | None = None
    gaussian: str | float | None = None
    ideal: str | float | None = None
    reference: bool = False
    null: str | float | None = None

    @property
    def head(self) -> str:
        """The head of a column."""
        return self.short or self.title

    @property
    def range(self) -> str:
        """In words.

        >>> Entry("a/b", "", "", low=0, high=1).range, Entry("a/b", "", "", low=0).range
        ('0 to 1', 'at least 0')
        """
        if self.low is None:
            return "" if self.high is None else f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def main_pool(self) -> str:
        """Where one value stands for all pools: held-out images, else the first pool; empty for none."""
        return "heldout" if "heldout" in self.pools else next(iter(self.pools), "")

    @property
    def shown_pools(self) -> Sequence[str]:
        """Where values are shown side by side: its pools of images, else all of them; one empty name for none."""
        return [pool for pool in IMAGES if pool in self.pools] or self.pools or ("",)

    def on(self, pool: str, sigma: float | None = None) -> str:
        """The logged name on a pool, if there is one, at one noise level or averaged over the intermediate ones.

        >>> Entry("gaussian/rmse", "", "").on("heldout", 0.47)
        'gaussian/rmse/heldout/sigma_0p47'
        """
        return on_pool(self.name, pool) + ("" if sigma is None else self.end(sigma))

    def at(self, sigma: float) -> str:
        """The logged name at one noise level, of a value that belongs to no pool."""
        return self.name + self.end(sigma)

    @staticmethod
    def end(sigma: float) -> str:
        """What stands behind a name for a noise level."""
        return f"/sigma_{sigma_name(sigma)}"


def _draws(name: str, title: str, meaning: str, short: str = "", pools: Sequence[str] = POOLS, **others: Any) -> Entry:
    return Entry(name, title, meaning, short, pools=tuple(pools), levels=True, **others)


COSINE = _draws(
    "linearity/cosine",
    "cosine of a mixture",
    "cosine of `D(a x1 + b x2)` and `a D(x1) + b D(x2)`, without its sign",
    "cosine",
    low=0,
    high=1,
    gaussian="linearity/gaussian_cosine",
)
COSINE_SIGNED = _draws(
    "linearity/cosine_signed",
    "signed cosine of a mixture",
    "cosine of `D(a x1 + b x2)` and `a D(x1) + b D(x2)`, with its sign",
    low=-1,
    high=1,
    gaussian="linearity/gaussian_cosine_signed",
)
NMSE = _draws(
    "linearity/nmse",
    "distance of a mixture",
    "distance of `D(a x1 + b x2)` and `a D(x1) + b D(x2)`, over the norm of the first",
    low=0,
    gaussian="linearity/gaussian_nmse",
)
AFFINE_COSINE = _draws(
    "linearity/affine_cosine",
    "linearity",
    "`cosine_signed` about the mean: perfect for any affine map",
    low=-1,
    high=1,
    gaussian=1.0,
)
AFFINE_NMSE = _draws(
    "linearity/affine_nmse", "distance of a mixture about the mean", "`nmse` about the mean", low=0, gaussian=0.0
)
GAUSSIAN_COSINE = _draws("linearity/gaussian_cosine", "cosine of D_G", "`cosine` of D_G", low=0, high=1, reference=True)
GAUSSIAN_COSINE_SIGNED = _draws(
    "linearity/gaussian_cosine_signed", "signed cosine of D_G", "`cosine_signed` of D_G", low=-1, high=1, reference=True
)
GAUSSIAN_NMSE = _draws("linearity/gaussian_nmse", "distance of D_G", "`nmse` of D_G", low=0, reference=True)
GAUSSIAN_RMSE = _draws(
    "gaussian/rmse",
    "rmse to D_G",
    "mean of `sqrt(||D - D_G||^2 / d)`: small for a denoiser that generalises",
    "to D_G",
    unit="data units",
    low=0,
    gaussian=0.0,
)
GAUSSIAN_RELATIVE = _draws(
    "gaussian/nmse", "relative distance to D_G", "mean of `||D - D_G|| / ||D||`", low=0, gaussian=0.0
)
EMPIRICAL_RMSE = _draws(
    "empirical/rmse",
    "rmse to D_M",
    "mean of `sqrt(||D - D_M||^2 / d)`: small for one that memorises",
    "to D_M",
    unit="data units",
    low=0,
    ideal=0.0,
)
LINEAR_RMSE = _draws(
    "linear/rmse",
    "rmse to D_L",
    "mean of `sqrt(||D - D_L||^2 / d)`, to the surrogate D_L that `probes.surrogate` names",
    "to D_L",
    unit="data units",
    low=0,
)
TOTAL = _draws(
    "ladder/total",
    "squared distance to D_G",
    "`E||D - D_G||^2 / d`",
    "to D_G",
    unit="squared data units",
    low=0,
    gaussian=0.0,
)
WITH_MOMENTS = ("train", "heldout", "noise")
AFFINE = _draws(
    "ladder/affine",
    "affine part of the squared distance to D_G",
    "`E||D_L - D_G||^2 / d`",
    "affine",
    WITH_MOMENTS,
    unit="squared data units",
    gaussian=0.0,
)
NONLINEAR = _draws(
    "ladder/nonlinear",
    "nonlinear part of the squared distance to D_G",
    "`E||D - D_L||^2 / d`; both parts add up to `ladder/total`",
    "nonlinear",
    WITH_MOMENTS,
    unit="squared data units",
    gaussian=0.0,
)
WEIGHT_GAP = _draws("ladder/weight_gap", "weights to D_G's", "`||W_L - W_G||_F^2`", pools=WITH_MOMENTS, gaussian=0.0)
WEIGHT_NMSE = _draws(
    "linear/weight_nmse",
    "relative distance of weights to D_G's",
    "`||W_L - W_G||_F^2 / ||W_G||_F^2`",
    "weights",
    WITH_MOMENTS,
    gaussian=0.0,
)
R2 = _draws(
    "ladder/r2",
    "R2 of the affine fit",
    "share of the variance of D that D_L explains: 1 for an affine map",
    "R2",
    WITH_MOMENTS,
    high=1,
    gaussian=1.0,
)
POSITION = _draws(
    "ladder/position",
    "position",
    "`(L_G - L) / (L_G - L_M)` of denoising errors: 0 at D_G, 1 at D_M",
    pools=("train",),
    gaussian=0.0,
    ideal=1.0,
)
MSE = _draws(
    "denoising/mse",
    "error",
    "L, `E||D - x0||^2 / d`",
    pools=IMAGES,
    unit="squared data units",
    low=0,
    larger_is_better=False,
    gaussian="denoising/gaussian_mse",
    ideal="denoising/empirical_mse",
)
GAUSSIAN_MSE = _draws(
    "denoising/gaussian_mse",
    "error of D_G",
    "L_G, that of D_G, in closed form",
    "of D_G",
    IMAGES,
    unit="squared data units",
    low=0,
    reference=True,
)
EMPIRICAL_MSE = _draws(
    "denoising/empirical_mse",
    "error of D_M",
    "L_M, that of D_M",
    "of D_M",
    IMAGES,
    unit="squared data units",
    low=0,
    reference=True,
)
GL_SCORE = Entry(
    "generalization/gl_score",
    "GL score",
    "mean of `||x - NN(x)|| / ||x||` over samples; 0 is memorised",
    "GL",
    low=0,
    gaussian="generalization/gl_score_gaussian",
    ideal="generalization/gl_score_heldout",
)
GL_SCORE_HELDOUT = Entry(
    "generalization/gl_score_heldout",
    "GL score of held-out images",
    "the GL score of real held-out images: a perfect generator's value",
    "of real images",
    low=0,
    reference=True,
)
GL_SCORE_GAUSSIAN = Entry(
    "generalization/gl_score_gaussian",
    "GL score of D_G's samples",
    "the GL score of D_G's samples from the same latents",
    "of D_G's samples",
    low=0,
    reference=True,
)
MEMORIZED_FRACTION = Entry(
    "generalization/memorized_fraction",
    "memorised samples",
    "share of samples with `d1 / d2 < 1/3`: nearest over next",
    "memorised",
    low=0,
    high=1,
    larger_is_better=False,
)
MEMORIZED_LOW = Entry(
    "generalization/memorized_fraction_low",
    "memorised samples, lower end",
    "lower end of the 95 % Wilson interval of the memorised fraction",
    low=0,
    high=1,
    larger_is_better=False,
)
MEMORIZED_HIGH = Entry(
    "generalization/memorized_fraction_high",
    "memorised samples, upper end",
    "upper end of the 95 % Wilson interval of the memorised fraction",
    low=0,
    high=1,
    larger_is_better=False,
)
MEMORIZED_ANY = Entry(
    "generalization/memorized_fraction_any",
    "memorised samples, of any class",
    "the memorised fraction of samples of classes, with nearest and next among the training images of all classes",
    "of any class",
    low=0,
    high=1,
    larger_is_better=False,
)
MEMORIZED_ANY_LOW = Entry(
    "generalization/memorized_fraction_any_low",
    "memorised samples, of any class, lower end",
    "lower end of its 95 % Wilson interval",
    low=0,
    high=1,
    larger_is_better=False,
)
MEMORIZED_ANY_HIGH = Entry(
    "generalization/memorized_fraction_any_high",
    "memorised samples, of any class, upper end",
    "upper end of its 95 % Wilson interval",
    low=0,
    high=1,
    larger_is_better=False,
)
OF_CLASSES = (MEMORIZED_ANY, MEMORIZED_ANY_LOW, MEMORIZED_ANY_HIGH)
"""What is measured of samples of classes alone."""
TRAIN_SHARE = Entry(
    "novelty/train_share",
    "share nearest to a training image",
    "of samples, the share whose nearest image among training and held-out images together is a training image",
    "train share",
    low=0,
    high=1,
    gaussian="novelty/train_share_gaussian",
    ideal="novelty/train_share_null",
    null="novelty/train_share_null",
)
TRAIN_SHARE_NULL = Entry(
    "novelty/train_share_null",
    "that share of new images",
    "`n_t / (n_t + n_h)`: what new draws of the distribution have, of `n_t` training and `n_h` held-out images",
    "null",
    low=0,
    high=1,
    reference=True,
)
TRAIN_SHARE_GAUSSIAN = Entry(
    "novelty/train_share_gaussian",
    "that share of D_G's samples",
    "that share of D_G's samples from the same latents, which is above the null where training images are few",
    "of D_G's samples",
    low=0,
    high=1,
    reference=True,
)
TRAIN_SHARE_Z = Entry(
    "novelty/train_share_z",
    "that share less its null, in standard errors",
    "`(train_share - train_share_null)` over the standard error that relabelling all images at random would give",
    "z",
    null=0.0,
)
NEAREST_AUC = Entry(
    "novelty/nearest_auc",
    "samples nearer than held-out images",
    "probability that a sample is nearer to its nearest training image than a held-out image is to its own: above 1/2 "
    "samples copy or are blurred, below it they are far from everything",
    "AUC",
    low=0,
    high=1,
    ideal=0.5,
    null=0.5,
)


def _gap(name: str, title: str, meaning: str, short: str, **others: Any) -> Entry:
    return Entry(name, title, meaning, short, levels=True, averaged=True, **others)


GAP_MSE = _gap(
    "gap/mse",
    "gap that D_G does not explain",
    "`(L_heldout - L_train) - (L_G,heldout - L_G,train)`, from each draw's error less D_G's",
    "gap",
    unit="squared data units",
    gaussian=0.0,
    null=0.0,
)
GAP_Z = _gap(
    "gap/z",
    "that gap in standard errors",
    "`gap/mse` over its standard error, by images, at a level; `gap/z` itself is the largest of the intermediate ones",
    "z",
    null=0.0,
)
GAP_AUC = _gap(
    "gap/auc",
    "training errors below held-out ones",
    "probability that the error on a draw of a training image, less D_G's on the same draw, is below that of a "
    "held-out image",
    "AUC",
    low=0,
    high=1,
    gaussian="gap/auc_gaussian",
    null=0.5,
)
GAP_AUC_GAUSSIAN = _gap(
    "gap/auc_gaussian",
    "that probability of D_G's errors",
    "probability that D_G's own error on a draw of a training image is below that of a held-out image: what a "
    "membership attack finds though nothing was copied",
    "AUC of D_G",
    low=0,
    high=1,
    reference=True,
)
TRACE = _draws(
    "freedom/trace",
    "degrees of freedom",
    "`E tr J`, J the Jacobian of D, by Stein's identity",
    "tr J",
    IMAGES,
    gaussian="freedom/gaussian_trace",
    ideal="freedom/empirical_trace",
)
GAUSSIAN_TRACE = _draws(
    "freedom/gaussian_trace",
    "degrees of freedom of D_G",
    "`sum lam / (lam + sigma^2)`, in closed form",
    "of D_G",
    IMAGES,
    low=0,
    reference=True,
)
EMPIRICAL_TRACE = _draws(
    "freedom/empirical_trace", "degrees of freedom of D_M", "`E tr J` of D_M", "of D_M", IMAGES, reference=True
)
CONSISTENCY = _draws(
    "freedom/consistency",
    "consistency",
    "`L - sigma^2 E tr J / d`: 0 for every exact posterior mean on its own distribution",
    "consistency",
    IMAGES,
    unit="squared data units",
    ideal=0.0,
)
TRACE_GAP = _gap(
    "freedom/trace_gap",
    "degrees of freedom, held-out less training",
    "`freedom/trace` on held-out images less that on training images; 0 for every affine map",
    "tr J, difference",
    gaussian=0.0,
    null=0.0,
)
CONSISTENCY_GAP = _gap(
    "freedom/consistency_gap",
    "consistency, held-out less training",
    "`freedom/consistency` on held-out images less that on training images, less the same of D_G",
    "consistency, difference",
    unit="squared data units",
    gaussian=0.0,
    null=0.0,
)
GAIN = _gap(
    "spectrum/gain_<i>",
    "gain of the i-th component",
    "diagonal entry of `U^T W_L U` on training images: how much D passes of the i-th principal component, "
    "i = 1, 2, 5, 10, 20, 50, ...",
    "gain",
)
SAMPLE_SPREAD = Entry(
    "spectrum/samples_<i>",
    "variance of samples along the i-th component",
    "`u_i^T Cov(samples) u_i / lam_i`, over the variance of the training images along their i-th principal component, "
    "i = 1, 2, 5, 10, 20, 50, ...",
    "variance of samples",
    low=0,
    gaussian="spectrum/samples_gaussian_<i>",
    ideal=1.0,
)
SAMPLE_SPREAD_GAUSSIAN = Entry(
    "spectrum/samples_gaussian_<i>",
    "variance of D_G's samples along the i-th component",
    "the same of D_G's samples from the same latents, which is not 1 where a sampler of few steps leaves noise",
    "of D_G's samples",
    low=0,
    reference=True,
)
EMERGENCE = Entry(
    "spectrum/emergence_<i>",
    "emergence of the i-th component",
    "when its gain came half of the way from the first measurement's to `lam / (lam + sigma^2)`, once it has",
    unit="kimg",
    low=0,
    levels=True,
)
BETWEEN = _draws(
    "between/h",
    "between the memoriser and the Gaussian",
    "the h of the smoothed bootstrap D_h that is nearest to D: 0 is D_M, 1 is D_G",
    "h",
    low=0,
    high=1,
    gaussian=1.0,
    ideal=0.0,
)
BETWEEN_UNEXPLAINED = _draws(
    "between/unexplained",
    "not explained between them",
    "`E||D - D_h||^2 / E||D - E D||^2` at that h",
    "but for D_h",
)
BEST_MSE = _draws(
    "theory/best_mse",
    "error of the best theory",
    "the least `E||T - x0||^2 / d` of D_G, D_M and all theories that are compared with: what a network has to beat",
    "of the best theory",
    ("heldout",),
    unit="squared data units",
    low=0,
    reference=True,
)
LOCAL_SCALE = _draws(
    "local/k",
    "window of the nearest local machine",
    "the k x k window of the local score machine, of those that are compared with, that is nearest to D",
    "k",
    unit="pixels",
    low=1,
)
SAMPLE_COSINE = Entry(
    "samples/gaussian_cosine",
    "cosine with D_G's samples",
    "mean cosine of samples and those of D_G from the same latents, after subtracting the training mean",
    "cosine",
    low=-1,
    high=1,
    gaussian=1.0,
)
SAMPLE_RMSE = Entry(
    "samples/gaussian_rmse",
    "rmse to D_G's samples",
    "mean of `sqrt(||x - x_G||^2 / d)`",
    unit="data units",
    low=0,
    gaussian=0.0,
)
FRECHET = Entry(
    "samples/frechet_pca",
    "Frechet distance (PCA)",
    "Frechet distance of samples to held-out images, in the 64 leading principal directions of the training images",
    "Frechet distance",
    unit="squared data units",
    low=0,
    larger_is_better=False,
    gaussian="samples/frechet_pca_gaussian",
    ideal="samples/frechet_pca_train",
)
FRECHET_GAUSSIAN = Entry(
    "samples/frechet_pca_gaussian",
    "Frechet distance (PCA) of D_G's samples",
    "the Frechet distance (PCA) of D_G's samples from the same latents",
    unit="squared data units",
    low=0,
    reference=True,
)
FRECHET_TRAIN = Entry(
    "samples/frechet_pca_train",
    "Frechet distance (PCA) of training images",
    "the Frechet distance (PCA) of as many training images: what a perfect generator would have",
    "of training images",
    unit="squared data units",
    low=0,
    reference=True,
)
FID = Entry(
    "samples/fid",
    "Frechet distance (features)",
    "the Frechet distance by the features of `probes.features`",
    low=0,
    larger_is_better=False,
    gaussian="samples/fid_gaussian",
    ideal="samples/fid_train",
)
FID_GAUSSIAN = Entry(
    "samples/fid_gaussian",
    "Frechet distance (features) of D_G's samples",
    "the Frechet distance (features) of D_G's samples",
    reference=True,
)
FID_TRAIN = Entry(
    "samples/fid_train",
    "Frechet distance (features) of training images",
    "the Frechet distance (features) of as many training images",
    reference=True,
)
SAMPLE_GRID = Entry(
    "samples/grid", "samples", "a picture: samples above their nearest training images and the baselines' samples"
)
THEORY_MAP = Entry(
    "theory/map",
    "theories over time",
    "a picture, on held-out images: what each theory leaves unexplained now, which explains most at each noise level "
    "and time, and `between/h`",
)
LADDER_PARTS = Entry("ladder/parts", "parts over time", "a picture: the affine and the nonlinear part over time")
TEACHER_LINEAR = _draws(
    "teacher/linear_rmse",
    "rmse to its teacher",
    "mean of `sqrt(||T - D_L||^2 / d)`, of the teacher T to its surrogate",
    unit="data units",
    low=0,
    gaussian="teacher/gaussian_rmse",
    ideal="teacher/empirical_rmse",
)
TEACHER_GAUSSIAN = _draws(
    "teacher/gaussian_rmse",
    "rmse of the teacher to D_G",
    "mean of `sqrt(||T - D_G||^2 / d)`, of the teacher T",
    unit="data units",
    low=0,
)
TEACHER_EMPIRICAL = _draws(
    "teacher/empirical_rmse",
    "rmse of the teacher to D_M",
    "mean of `sqrt(||T - D_M||^2 / d)`, of the teacher T",
    unit="data units",
    low=0,
)


def _level(name: str, title: str, meaning: str, **others: Any) -> Entry:
    return Entry(name, title, meaning, levels=True, **others)


FIT_DRAWS = _level("surrogate/draws", "draws of a fit", "evaluations of the teacher", low=0)
FIT_ERROR = _level(
    "surrogate/error", "error of the fitted map", "predicted `E||D_fit - D_L||^2 / d`; with its standard error"
)
FIT_WEIGHT_ERROR = _level(
    "surrogate/weight_error",
    "error of the fitted weights",
    "predicted `||W_fit - W_L||_F^2 / ||W_fit||_F^2`; with its standard error",
)
FIT_HELDOUT_ERROR = _level(
    "surrogate/heldout_error",
    "held-out error of the fitted map",
    "`E||D - D_fit||^2 / d` of fits to half the draws, on the other half",
    low=0,
)
FIT_NONLINEAR = _level(
    "surrogate/nonlinear_share", "nonlinear share", "`E||D - D_L||^2` as a share of the variance of D"
)
FIT_WEIGHT_NMSE = _level(
    "surrogate/weight_nmse",
    "weights of the surrogate to D_G's",
    "`||W_L - W_G||_F^2 / ||W_G||_F^2`, unbiased; with its standard error",
)
FIT_FLOOR = _level(
    "surrogate/weight_nmse_floor", "floor of that distance", "the predicted error of W_fit in the same units"
)
SPECTRUM_COUNT = Entry("spectrum/count", "images", "images, mirrored copies included", low=0)
EFFECTIVE_RANK = Entry(
    "spectrum/effective_rank",
    "effective rank",
    "`(sum lam)^2 / sum lam^2` of the eigenvalues lam of the covariance",
    low=1,
)
VARIANCE = Entry("spectrum/variance", "variance", "`sum lam / d`", unit="squared data units", low=0)
EIGENVALUE = Entry(
    "spectrum/eigenvalue_<i>",
    "i-th eigenvalue",
    "the i-th largest one, i = 1, 2, 5, 10, 20, 50, ...",
    unit="squared data units",
    low=0,
)
SPECTRUM_MSE = _level(
    "spectrum/gaussian_mse",
    "error of this Gaussian",
    "`L_G / d`, `L_G = sum lam sigma^2 / (lam + sigma^2)`: D_G's error on the images",
    low=0,
)
LOSS = Entry("train/loss", "training loss", "mean weighted loss over steps and devices", low=0, larger_is_better=False)
LEARNING_RATE = Entry("train/lr", "learning rate", "learning rate of the last step", low=0)
SPEED = Entry(
    "train/images_per_second",
    "images a second",
    "speed, without the time for measurements",
    unit="images/s",
    low=0,
    larger_is_better=True,
)
SECONDS = Entry("probes/seconds", "seconds of a measurement", "cost of this measurement", unit="s", low=0)
SHARE = Entry(
    "probes/share",
    "share of time that is measuring",
    "cost of all measurements, as a share of the time since training began",
    low=0,
    high=1,
)
BLOCK_COUNT = Entry(
    "probes/blocks",
    "blocks of draws",
    "blocks of draws: intervals of denoisers' values are Student's t with one fewer",
    low=1,
)
GAUSSIAN_GAP_STOP = Entry(
    "stop/gaussian_gap",
    "whether gaussian_gap would end the run",
    "1 once the rule gaussian_gap says that training should end, else 0",
    low=0,
    high=1,
)
GAUSSIAN_GAP_KIMG = Entry(
    "stop/gaussian_gap_kimg",
    "nearest to the Gaussian so far",
    "when the distance to the Gaussian on held-out images was smallest so far",
    unit="kimg",
    low=0,
)
MEMORIZATION_STOP = Entry(
    "stop/memorization",
    "whether memorization would end the run",
    "1 once the rule memorization says that training should end, else 0",
    low=0,
    high=1,
)
MEMORIZATION_KIMG = Entry(
    "stop/memorization_kimg",
    "last before memorisation so far",
    "the last measurement so far before samples were memorised",
    unit="kimg",
    low=0,
)
GAP_STOP = Entry(
    "stop/gap",
    "whether gap would end the run",
    "1 once the rule gap says that training should end, else 0",
    low=0,
    high=1,
)
GAP_KIMG = Entry(
    "stop/gap_kimg",
    "last before the gap opened so far",
    "the last measurement so far before the gap that D_G does not explain was beyond doubt",
    unit="kimg",
    low=0,
)
NOVELTY_STOP = Entry(
    "stop/novelty",
    "whether novelty would end the run",
    "1 once the rule novelty says that training should end, else 0",
    low=0,
    high=1,
)
NOVELTY_KIMG = Entry(
    "stop/novelty_kimg",
    "last before samples drifted so far",
    "the last measurement so far before samples were nearer to training images than new images are, beyond doubt",
    unit="kimg",
    low=0,
)

LINEAR = "linear"
"""The theory that is a surrogate D_L, which was fitted to a network before."""
GUIDANCE_NORM = _draws(
    "guidance/norm",
    "size of the guidance term",
    "`sqrt(E ||D(x, c) - D(x)||^2 / d)`, of what guidance adds for each unit of its weight",
    unit="data units",
    low=0,
)
GUIDANCE_EXPLAINED = _draws(
    "guidance/explained",
    "guidance term, explained by Gaussians",
    "`1 - E||g - g_G||^2 / E||g||^2`, `g = D(x, c) - D(x)`, g_G the same of the Gaussians of class and of all images; "
    "left out where g is not clear of 0",
    "explained",
    high=1,
)
GUIDANCE_SHIFT = _draws(
    "guidance/shift",
    "guidance term along the mean shift",
    "`E<g, p> / E||g||^2`, p the mean shift `(I - S)(mu_c - mu)`, with `S = Sigma (Sigma + sigma^2)^-1` of all images",
    "mean shift",
)
GUIDANCE_POSITIVE = _draws(
    "guidance/positive",
    "guidance term along positive contrast",
    "`E<g, p> / E||g||^2`, p the part of `(S_c - S)(x - mu_c)` of positive eigenvalues",
    "positive",
)
GUIDANCE_NEGATIVE = _draws(
    "guidance/negative",
    "guidance term along negative contrast",
    "`E<g, p> / E||g||^2`, p the part of `(S_c - S)(x - mu_c)` of negative eigenvalues",
    "negative",
)
GUIDANCE_PARTS = Entry(
    "guidance/parts",
    "parts of the guidance term",
    "a picture: how much Gaussians explain of the guidance term at each noise level, its parts, and their directions",
)
GUIDANCE = {
    "norm": GUIDANCE_NORM,
    "explained": GUIDANCE_EXPLAINED,
    "shift": GUIDANCE_SHIFT,
    "positive": GUIDANCE_POSITIVE,
    "negative": GUIDANCE_NEGATIVE,
}
"""What is logged of the term of guidance (Li, Wang and Qu 2025, arXiv 2505.19210), by quantity."""

THEORY_TITLES = {"gaussian": "D_G", "empirical": "D_M", LINEAR: "D_L"}
"""What theories are called that have a sign of their own."""

ENTRIES = {value.name: value for value in dict(globals()).values() if isinstance(value, Entry)}
"""All of this file, by name."""


def theory_entries(name: str) -> tuple[Entry, Entry, Entry]:
    """What is logged of a denoiser T that can be written down, beside D_G and D_M.

    Args:
        name: Of the theory.

    Returns:
        The share of D that it does not explain, the distance to it, and its error.
    """
    title = THEORY_TITLES.get(name, name)
    unexplained = _draws(
        f"theory/{name}/unexplained",
        f"not explained by {title}",
        f"`E||D - T||^2 / E||D - E D||^2`, 1 less R2, of the theory {title}; left out where the variance of D is not "
        "known to three standard errors",
        f"but for {title}",
        low=0,
    )
    rmse = _draws(
        f"theory/{name}/rmse",
        f"rmse to {title}",
        f"mean of `sqrt(||D - T||^2 / d)`, to the theory {title}",
        f"to {title}",
        unit="data units",
        low=0,
    )
    mse = _draws(
        f"theory/{name}/mse",
        f"error of {title}",
        f"`E||T - x0||^2 / d`, the error of the theory {title}",
        f"of {title}",
        IMAGES,
        unit="squared data units",
        low=0,
        reference=True,
    )
    return unexplained, rmse, mse


def likeness_entries(name: str) -> tuple[Entry, ...]:
    """What is logged of samples beside those of a theory from the same latents.

    Args:
        name: Of the theory.

    Returns:
        The mean correlation, the mean R2, and the median correlation with the ends of its interval.
    """
    start, of = f"theory/{name}/samples_", f"samples of {THEORY_TITLES.get(name, name)}"
    median = "median of that correlation over samples, as Kamb and Ganguli (2024) report it"
    interval = "of the 95 % interval of that median, by the sign test"
    return (
        Entry(
            f"{start}r",
            f"correlation with {of}",
            "mean Pearson correlation over pixels and channels of a sample and the one that the theory makes from the "
            f"same latent: {of}",
            "r",
            low=-1,
            high=1,
        ),
        Entry(
            f"{start}r2",
            f"R2 of {of}",
            "mean of `1 - ||a - b||^2 / (n var b)`, b a sample, a the one that the theory makes from the same latent",
            "R2",
            high=1,
        ),
        Entry(f"{start}r_median", f"median correlation with {of}", median, "median r", low=-1, high=1),
        Entry(f"{start}r_median_low", f"median correlation with {of}, lower end", f"lower end {interval}"),
        Entry(f"{start}r_median_high", f"median correlation with {of}, upper end", f"upper end {interval}"),
    )


def theory_parts(name: str) -> tuple[str, str] | None:
    """The theory and the quantity of an entry's name; `None` for what is not of one theory.

    >>> theory_parts("theory/local-3/mse"), theory_parts("theory/best_mse")
    (('local-3', 'mse'), None)
    """
    parts = name.split("/")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "theory" else None


def on_pool(name: str, pool: str) -> str:
    """The logged name of an entry's name on a pool; an empty pool is none."""
    return f"{name}/{pool}" if pool else name


def component_places(count: int) -> list[int]:
    """Which of so many principal components are shown, counted from 1.

    >>> component_places(12)
    [1, 2, 5, 10]
    """
    return [place for power in range(6) for step in (1, 2, 5) if (place := step * 10**power) <= count]


def numbered(entry: Entry, number: int) -> str:
    """The name of an entry whose name has a place for a number.

    >>> numbered(GAIN, 5)
    'spectrum/gain_5'
    """
    return entry.name.replace("<i>", str(number))


def of_class(name: str, label: int) -> str:
    """The name of a value on the images of one class.

    >>> of_class("gaussian/rmse/heldout", 3)
    'class_3/gaussian/rmse/heldout'
    """
    return f"{CLASS}{label}/{name}"


def guided(name: str, weight: float) -> str:
    """The name of a value of samples with guidance.

    >>> guided("generalization/gl_score", 1.5)
    'guided_1p5/generalization/gl_score'
    """
    return f"{GUIDED}{weight:g}/".replace(".", "p").replace("-", "m") + name


def guidance_weights(entries: Iterable[Entry]) -> list[float]:
    """The weights of guidance that entries are of, in order.

    >>> guidance_weights([guided_entry(GL_SCORE, 1.5), GL_SCORE])
    [1.5]
    """
    found = (re.match(rf"{GUIDED}([\dpme+]+)/", entry.name) for entry in entries)
    return sorted({float(match[1].replace("p", ".").replace("m", "-")) for match in found if match})


def guided_entry(entry: Entry, weight: float) -> Entry:
    """The entry of such a value."""
    beside = guided(entry.gaussian, weight) if isinstance(entry.gaussian, str) else entry.gaussian
    meaning = f"{entry.meaning}; of samples with guidance of weight {weight:g}"
    name, title = guided(entry.name, weight), f"{entry.title}, w = {weight:g}"
    return replace(entry, name=name, title=title, meaning=meaning, gaussian=beside)


def known_entry(name: str) -> Entry | None:
    """The entry of a name of this file, or that whose name has a place for its number.

    >>> known_entry("spectrum/gain_5") is GAIN, known_entry("mine/own") is None
    (True, True)
    """
    return ENTRIES.get(name) or ENTRIES.get(re.sub(r"_\d+$", "_<i>", name))


def group_of(entry: Entry) -> str:
    """What the names of an entry's group begin with.

    >>> group_of(LOSS)
    'train/'
    """
    return entry.name.partition("/")[0] + "/"


@dataclass(frozen=True)
class Name:
    """A logged name taken apart.

    Attributes:
        raw: Whether it is a value of raw weights.
        entry: The name of its entry.
        pool: Its pool; empty for none.
        level: What follows for a noise level, as `sigma_0p47`; empty for none.
        error: Whether it is a standard error.
    """

    raw: bool
    entry: str
    pool: str
    level: str
    error: bool


@lru_cache(maxsize=65536)
def take_apart(key: str) -> Name:
    """A logged name in its parts.

    >>> take_apart("raw/theory/bump/rmse/heldout/sigma_0p47_se")
    Name(raw=True, entry='theory/bump/rmse', pool='heldout', level='sigma_0p47', error=True)
    >>> take_apart("generalization/gl_score").pool
    ''
    """
    rest = key.removeprefix(RAW).removesuffix(SE)
    parts = rest.split("/")
    level = parts.pop() if parts[-1].startswith("sigma_") else ""
    pool = parts.pop() if parts[-1] in POOLS else ""
    return Name(key.startswith(RAW), "/".join(parts), pool, level, key.endswith(SE))


def write_extra(folder: Path, entries: Iterable[Entry]) -> None:
    """Keep in a run folder the entries that are not in this file; nothing is written if there are none."""
    extra = [asdict(entry) for entry in entries if entry.name not in ENTRIES]
    if extra:
        (folder / FILE).write_text(json.dumps(extra, indent=1) + "\n", encoding="utf-8")


def read_extra(*folders: Path) -> list[Entry]:
    """The entries that run folders keep beside those of this file; a file that cannot be read has none."""
    extra: dict[str, Entry] = {}
    for folder in folders:
        try:
            for given in json.loads((folder / FILE).read_text(encoding="utf-8")):
                entry = Entry(**{**given, "pools": tuple(given["pools"])})
                texts = (entry.name, entry.title, entry.meaning, entry.short, entry.unit, *entry.pools)
                if all(isinstance(text, str) for text in texts):
                    extra[entry.name] = entry
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return [entry for name, entry in extra.items() if name not in ENTRIES]
