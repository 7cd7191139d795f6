# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Is my model memorising?
#
# You train a diffusion model on your own images, in your own training loop. This tutorial adds one object to that
# loop, a `Ruler`. It answers three questions at any step of training:
#
# 1. Is the network still learning something that holds for new images?
# 2. Has it begun to treat its training images differently from new ones?
# 3. Are its samples copies?
#
# Run it with `python docs/tutorials/memorising.py`, or cell by cell in a notebook. It takes less than a minute on
# one CPU core.

# %%
import torch
from torch import nn

from gaussbias import Ruler
from gaussbias.data.sources.digits import digits

torch.manual_seed(0)

# %% [markdown]
# ## Images
#
# Here the images are handwritten digits of 8 x 8 pixels. Put your own tensor of shape (N, C, H, W) in their
# place: uint8 pixels, or floating-point numbers from -1 to 1. We train on only 60 images, so the network will
# memorise them. We keep 400 other images, which are not used for training. Without held-out images nobody can
# tell memorising from learning.

# %%
pixels = digits().images
images, heldout = pixels[:60], pixels[1000:1400]
print(images.shape, images.dtype, heldout.shape)


# %% [markdown]
# ## A network
#
# Any network will do. This one is a small multilayer perceptron in EDM's form (Karras et al. 2022): it returns an
# estimate of the clean image, D(x, sigma). If yours predicts noise, v or a velocity, `gaussbias.wrap` makes such
# a function of it.


# %%
class Denoiser(nn.Module):
    """D(x, sigma) = c_skip x + c_out F(c_in x, ln(sigma) / 4), for images whose values have standard deviation 0.5."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(65, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64)
        )

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """The clean images that belong to noisy images x (B, 1, 8, 8) with noise levels sigma (B,)."""
        level = sigma.reshape(-1, 1).expand(len(x), 1)
        total = (0.25 + level**2).sqrt()
        raw: torch.Tensor = self.layers(torch.cat([x.flatten(1) / total, level.log() / 4], 1))
        return (0.25 / total**2 * x.flatten(1) + 0.5 * level / total * raw).view_as(x)


network = Denoiser()

# %% [markdown]
# ## A ruler
#
# The ruler holds the images, and the noisy images on which it always measures.

# %%
ruler = Ruler(images, heldout, draws=256, samples=100)

# %% [markdown]
# ## The training loop, measured
#
# The lines about `ruler` are the only ones that a loop without `gaussbias` would not have.

# %%
optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
COLUMNS = {
    "error, training": "denoising/mse/train",
    "error, held-out": "denoising/mse/heldout",
    "gap (z)": "gap/z",
    "near training (z)": "novelty/train_share_z",
    "memorised": "generalization/memorized_fraction",
}
print(f"{'kimg':>6}" + "".join(f"{title:>19}" for title in COLUMNS))
history = []
for step in range(4001):
    if step in (0, 125, 250, 500, 1000, 2000, 4000):
        measured = ruler(network, kimg=step * 64 / 1000)
        history.append(measured)
        print(f"{measured.kimg:6.0f}" + "".join(f"{measured[key]!s:>19}" for key in COLUMNS.values()))
    x0 = images[torch.randint(len(images), (64,))] / 127.5 - 1
    sigma = (-1.2 + 1.2 * torch.randn(64)).exp()
    x = x0 + sigma[:, None, None, None] * torch.randn_like(x0)
    weight = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    loss = (weight * (network(x, sigma) - x0).square().flatten(1).mean(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# ## What the columns say
#
# - **error, training** and **error, held-out** are mean squared errors of the denoised images. Both fall at
#   first. When the error on held-out images stops falling, the network no longer learns anything that holds for
#   new images.
# - **gap (z)** is how much larger the error is on held-out images, beyond what the Gaussian denoiser of these
#   images would show too. It is given in standard errors: a network that does not memorise stays below 3. Above
#   4, at two measurements in a row, is beyond doubt.
# - **near training (z)** asks whether samples lie nearer to training images than new images do, in standard
#   errors too.
# - **memorised** is the share of samples that are copies. It is the last to move: the two columns before it are
#   early signs.
#
# A number in brackets is the standard error of the last digit. All measurements use the same noisy images, so the
# difference of two of them is known much better than each of them:

# %%
change = (history[-1] - history[-3])["denoising/mse/heldout"]
print(f"held-out error, last less third last: {change.difference:.4f}, 95 %: {change.low:.4f} to {change.high:.4f}")

# %% [markdown]
# ## What to do about it
#
# Stop earlier, take more images, or a smaller network. [Early signs](../early-signs.md) says how early each sign
# is on real images, and how `python -m gaussbias.fit` stops by itself. [Your own training loop](../own-loop.md)
# shows the same in Lightning.
