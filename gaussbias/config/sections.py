"""The keys of a run, one dataclass per section, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ModuleConfig:
    """Which LightningModule runs."""

    kind: Literal["edm", "linear", "gaussian"] = "edm"


@dataclass
class DataConfig:
    """Where the images come from and which of them are used."""

    source: Literal["digits", "cifar10", "idx", "edm_zip", "folder", "array", "gaussian"] = "digits"
    path: str | None = None
    heldout_path: str | None = None
    """Images of the same kind to hold out; `null` holds out some of `path`."""
    resolution: int | None = None
    """Downsample by area to this many pixels a side; `null` keeps the size."""
    n_train: int | None = None
    """Training images; `null` takes all that are left."""
    n_heldout: int | None = None
    """Held-out images; `null` is 1,000, and of fewer than 5,000 images a fifth of them."""
    subset_seed: int = 0
    half: Literal["S1", "S2"] | None = None
    """Draw the training images from one of two disjoint halves."""
    flip: bool = False
    """Mirror half of the training images, at random."""


@dataclass
class ModelConfig:
    """The network."""

    backbone: Literal["unet", "mlp", "ddpmpp", "ncsnpp", "adm"] = "unet"
    """diffusers' U-Net, a multilayer perceptron, or EDM's networks."""
    channels: int = 32
    channel_mult: list[int] = field(default_factory=lambda: [1, 2])
    layers_per_block: int = 1
    attention: list[int] = field(default_factory=list)
    """Resolutions, in pixels a side, that get self-attention."""
    dropout: float = 0.0
    sigma_data: float = 0.5


@dataclass
class NoiseConfig:
    """Training noise levels: ln sigma ~ N(P_mean, P_std^2)."""

    P_mean: float = -1.2
    P_std: float = 1.2


@dataclass
class TrainConfig:
    """The optimisation."""

    batch_size: int = 128
    """Images in one step, over all devices."""
    microbatch: int | None = None
    """Images that a device evaluates at once, where a batch does not fit; `null`: all that it gets."""
    kimg: float = 100.0
    """Length of the run, in thousands of images."""
    lr: float = 1e-3
    lr_rampup_kimg: float = 1.0
    ema_halflife_kimg: float | None = 500.0
    """Half-life of the weight average; `null` measures and exports the raw weights."""
    ema_rampup_ratio: float | None = 0.05
    """The half-life is at most this share of the images seen so far; `null` is no limit."""
    grad_clip: float | None = None
    precision: Literal["32-true", "bf16-mixed", "auto"] = "auto"
    """Of the training step; `auto` is bf16-mixed on a GPU that has it. Measurements are float32, without TF32."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the training step; `auto` does on a GPU, for runs so long that it pays."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = "auto"
    num_nodes: int = 1
    strategy: Literal["auto", "ddp"] = "auto"
    checkpoint_every_kimg: float = 50.0
    log_every_kimg: float = 1.0


@dataclass
class ProbesConfig:
    """What is measured, on how many draws, and when."""

    draws: int = 512
    """Noisy images per pool; the same ones serve every noise level."""
    block: int | None = None
    """Draws that are evaluated and paired together, the unit that devices share out and that errors are taken over;
    `null` is the largest number that leaves 16 blocks, which has the smallest errors."""
    sigmas: list[float] | None = None
    """Noise levels; `null` is EDM's grid of 10 from 80 to 0.002."""
    pools: list[str] = field(default_factory=lambda: ["train", "heldout"])
    first_kimg: float = 1.0
    """First measurement after the one before training; then the time doubles from one to the next ..."""
    every_kimg: float = 25.0
    """... until they are this far apart."""
    samples: int = 200
    sampler: Literal["heun", "euler"] = "heun"
    sampler_steps: int = 18
    weights: list[str] = field(default_factory=lambda: ["ema"])
    """`ema`, the averaged weights, `raw`, those that are trained, or both; values of raw ones are named `raw/...`."""
    surrogate: str | None = None
    """A linear surrogate (its run folder or linear.safetensors) to measure the distance to, as `linear/rmse`."""
    features: str | None = None
    """`package.module:function` that returns a feature network of your own, for `samples/fid`."""
    seed: int = 0
    """Of the draws and the sampling latents: runs that share it measure the same points."""


@dataclass
class StopConfig:
    """Rules for early stopping: `mark` keeps checkpoints/best_<rule>.ckpt, `end` also ends the run."""

    gaussian_gap: Literal["mark", "end"] | None = None
    """Keep the weights nearest to the Gaussian denoiser on held-out images."""
    patience: int = 3
    """Measurements above that minimum after which it is past ..."""
    errors: float = 2.0
    """... by more than so many standard errors of the difference."""
    memorization: Literal["mark", "end"] | None = None
    """Keep the last weights whose samples are not memorised."""
    memorized_fraction: float = 0.05
    """They are once the lower end of the memorised fraction's 95 % interval is above this."""


@dataclass
class LinearConfig:
    """The distillation of a denoiser into one affine map per noise level (module.kind=linear)."""

    teacher: str | None = None
    """A run folder, a checkpoint or an exported denoiser, of ours, of EDM or of diffusers."""
    labels: str | None = None
    """Of a class-conditional teacher: the number of a class, `average` or `none`."""
    pool: Literal["train", "heldout"] = "train"
    """Whose noisy images it is fitted on."""
    method: Literal["exact", "gradient"] = "exact"
    """Sums and a solve, or the paper's Adam."""
    shrink: bool = True
    """To the Gaussian denoiser; else least squares."""
    draws: int | None = None
    """For each noise level; `null` is 16 per dimension, and 1,000 for the gradient."""
    target_error: float | None = None
    """End a level once the predicted error of W, `||W - W_L||^2 / ||W||^2`, is surely below."""
    antithetic: bool = False
    """Use each noise with both signs."""
    symmetrize: bool = False
    """Replace W by (W + W^T) / 2."""
    lr: list[float] | None = None
    """Of the gradient, one for each noise level; `null` picks among the paper's."""


@dataclass
class RunConfig:
    """Where results go."""

    name: str | None = None
    """Folder of the run; `null` is the configuration's file name."""
    root: str = "runs"
    seed: int = 0
    wandb: Literal["online", "offline", "disabled"] = "offline"
    write_errors: Literal["continue", "stop"] = "continue"
    """What a checkpoint or a row that cannot be written (a full disk) means for a run."""
    project: str = "gaussbias"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Config:
    """A whole run."""

    module: ModuleConfig = field(default_factory=ModuleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    probes: ProbesConfig = field(default_factory=ProbesConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    linear: LinearConfig = field(default_factory=LinearConfig)
    run: RunConfig = field(default_factory=RunConfig)
