# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # What does this checkpoint do?
#
# Somebody gives you a diffusion model and the images that it was trained on. Does it generalise? The command
# `gaussbias.lens` reads checkpoints of EDM, EDM2 and diffusers, and measures them without executing any code in
# them.
#
# A real checkpoint takes minutes on a GPU. So that this page runs in less than a minute on one CPU core, we first
# make a small checkpoint with diffusers. If you have one already, go to [the command](#the-command).

# %%
import csv
import tempfile
from pathlib import Path

import numpy as np
import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from gaussbias.data.sources.digits import digits
from gaussbias.lens.__main__ import main as lens

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A checkpoint
#
# A U-Net that predicts noise, trained for a few seconds on 40 images of handwritten digits, and saved as
# diffusers saves its pipelines. The images are saved as well: the lens needs those that the network was trained
# on, and others.

# %%
pixels = digits().images
np.save(folder / "images.npy", pixels[:40].numpy())
np.save(folder / "others.npy", pixels[1000:1200].numpy())
x0 = pixels[:40] / 127.5 - 1
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    block_out_channels=(16, 32),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
scheduler = DDPMScheduler()
optimizer = torch.optim.Adam(unet.parameters(), lr=2e-3)
for _ in range(500):
    batch = x0[torch.randint(len(x0), (64,))]
    noise, steps = torch.randn_like(batch), torch.randint(0, 1000, (64,))
    loss = (unet(scheduler.add_noise(batch, noise, steps), steps).sample - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
DDPMPipeline(unet, scheduler).save_pretrained(folder / "checkpoint")

# %% [markdown]
# ## The command
#
# In a terminal this is
#
# ```bash
# python -m gaussbias.lens CHECKPOINT --data images.npy data.heldout_path=others.npy --out FOLDER
# ```
#
# It says what it takes the network for, measures it at the noise levels that it was trained for, and writes one
# page with everything, `lens.html`.

# %%
lens(
    [
        *(str(folder / "checkpoint"), "--data", str(folder / "images.npy"), "--out", str(folder / "lens")),
        *(f"data.heldout_path={folder / 'others.npy'}", "probes.draws=64", "probes.samples=64"),
    ]
)
print(sorted(path.name for path in (folder / "lens").iterdir()))

# %% [markdown]
# ## The answer
#
# `lens.csv` has every value by its [logged name](../metrics.md), one row for each checkpoint.

# %%
with (folder / "lens" / "lens.csv").open(newline="") as file:
    values = next(csv.DictReader(file))
for title, key in {
    "error on training images": "denoising/mse/train",
    "error on held-out images": "denoising/mse/heldout",
    "error of the Gaussian denoiser there": "denoising/gaussian_mse/heldout",
    "distance to the Gaussian denoiser, held-out": "gaussian/rmse/heldout",
    "distance to the memoriser, held-out": "empirical/rmse/heldout",
    "GL score of samples": "generalization/gl_score",
    "GL score of real images": "generalization/gl_score_heldout",
    "memorised samples": "generalization/memorized_fraction",
}.items():
    print(f"{title:45}{float(values[key]):.3f}")

# %% [markdown]
# Read it like this:
#
# - If the error is much larger on held-out images than on training images, the network knows its training images
#   too well.
# - If the error on held-out images is above that of the Gaussian denoiser, mean and covariance of the images
#   would have been a better model.
# - If samples have a lower GL score than real images, they lie closer to the training images than new images do.
#
# [The lens](../lens.md) says what is read, and how to give class labels, guidance and several checkpoints at
# once.
