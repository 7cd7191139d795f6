# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # From Gaussian to memoriser
#
# Li, Dai and Qu (2024, [arXiv 2410.24060](https://arxiv.org/abs/2410.24060)) found two things. A diffusion model
# that generalises has a denoiser close to D_G, the best denoiser for a normal distribution with the mean and
# covariance of its training images. A model that memorises moves away from it, to the denoiser D_M whose samples
# are the training images. And every model passes near D_G on its way.
#
# This page shows all of that in less than a minute, with two networks that differ in nothing but the number of
# their training images.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from gaussbias.fit import main as fit
from gaussbias.history import compare, load

root = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Two runs
#
# `gaussbias.fit` is the command `python -m gaussbias.fit`. Both runs train the same small U-Net on handwritten
# digits of 8 x 8 pixels: one on 1,400 of them, one on 10. So few images are memorised within seconds.

# %%
KEYS = ["model.channels=16", "train.kimg=14", "probes.first_kimg=2", "probes.draws=64", "probes.samples=50"]
KEYS += ["probes.theories=[]", "run.logger=csv", "run.pictures=none", f"run.root={root}"]
fit([*KEYS, "run.name=many"])
fit([*KEYS, "run.name=few", "data.n_train=10"])

# %% [markdown]
# ## The curves
#
# Everything that a run measures is in its `history.csv`. `load` reads it; kimg is the number of images seen, in
# thousands.

# %%
PANELS = {
    "distance to D_G, training images": "gaussian/rmse/train",
    "distance to D_M, training images": "empirical/rmse/train",
    "error on held-out images": "denoising/mse/heldout",
    "memorised samples": "generalization/memorized_fraction",
}
figure, axes = plt.subplots(1, 4, figsize=(14, 3))
for name, style in (("many", "C0-o"), ("few", "C1-s")):
    history = load(root / name)
    rows = [i for i, value in enumerate(history["generalization/gl_score"]) if value == value]
    for axis, (title, key) in zip(axes, PANELS.items(), strict=True):
        axis.plot([history["kimg"][i] for i in rows], [history[key][i] for i in rows], style, ms=3, label=name)
        axis.set(title=title, xlabel="kimg")
axes[0].legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# Both networks come closer to D_G at first. The network with many images stays close to it. The network with few
# images then goes to D_M, its error on held-out images rises, and its samples become copies.
#
# ## How sure is that?
#
# Both runs measure the same noisy held-out images, so their difference is known better than their values.

# %%
difference = compare(root / "few", root / "many", "denoising/mse/heldout")
print(difference)
history = load(root / "few")
rows = [i for i, value in enumerate(history["generalization/gl_score"]) if value == value]
best = min(rows, key=lambda i: history["denoising/mse/heldout"][i])
print(
    f"few: the least held-out error was at {history['kimg'][best]:g} kimg, "
    f"with {history['generalization/memorized_fraction'][best]:.0%} of the samples memorised; "
    f"at the end {history['generalization/memorized_fraction'][rows[-1]]:.0%} are"
)

# %% [markdown]
# ## Where to go on
#
# - The same with U-Nets and pictures: [the first hour](../first-hour.md).
# - Over many data-set sizes and capacities, with the figures of the paper: [the atlas](../atlas.md).
# - What explains the network better than D_G does: [theories](../theories.md).
