"""The keys of a run, one dataclass per section, with their defaults and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gaussbias.config.roles import Role, key, section

FREE, FORCED, PLACE, SAME, AXIS, METHOD = Role.FREE, Role.FORCED, Role.PLACE, Role.SAME, Role.AXIS, Role.METHOD
MEASURE, PATH, LENS, FITTED = Role.MEASURE, Role.PATH, Role.LENS, Role.FITTED
ABOVE_ZERO, NOT_NEGATIVE = Role.ABOVE_ZERO, Role.NOT_NEGATIVE


@dataclass
class ModuleConfig:
    """Which LightningModule runs."""

    kind: Literal["edm", "linear", "gaussian"] = "edm"


@dataclass
class DataConfig:
    """Where the images come from and which of them are used."""

    source: str = key("digits", LENS, MEASURE)
    """One of `gaussbias.config.sources.SOURCES`, or `package.module:function` of your own."""
    path: str | None = key(None, FREE, PLACE, MEASURE, LENS)
    heldout_path: str | None = key(None, FREE, PLACE, MEASURE, LENS)
    """Images of the same kind to hold out; `null` holds out some of `path`."""
    resolution: int | None = key(None, LENS, ABOVE_ZERO)
    """Downsample by area to this many pixels a side; `null` keeps the size."""
    layout: Literal["NCHW", "NHWC"] | None = key(None, LENS)
    """Where arrays have their channels; `null` tells it from their shape, where that can be read in one way alone."""
    cache: str | None = key("auto", FREE, PLACE, MEASURE, LENS)
    """Folder of decoded images, which runs and ranks share; `auto` is in the user's cache, `null` keeps none."""
    n_train: int | None = key(None, AXIS, LENS)
    """Training images; `null` takes all that are left."""
    n_heldout: int | None = key(None, LENS)
    """Held-out images; `null` is 1,000, and of fewer than 5,000 images a fifth of them."""
    subset_seed: int = key(0, AXIS, LENS)
    half: Literal["S1", "S2"] | None = key(None, AXIS, LENS)
    """Draw the training images from one of two disjoint halves."""
    flip: bool = key(False, LENS)
    """Mirror half of the training images, at random."""
    labels: bool = key(False, LENS)
    """Train on images and their classes: the network is told the class, and is measured on each class by itself."""
    classes: list[int] | None = key(None, LENS)
    """Take the images of these classes alone; `null` takes all."""


@dataclass
class ModelConfig:
    """The network."""

    backbone: Literal["unet", "mlp", "ddpmpp", "ncsnpp", "adm"] = "unet"
    """diffusers' U-Net, a multilayer perceptron, or EDM's networks."""
    channels: int = key(32, AXIS, ABOVE_ZERO)
    channel_mult: list[int] = key(lambda: [1, 2])
    layers_per_block: int = key(1, ABOVE_ZERO)
    attention: list[int] = key(list)
    """Resolutions, in pixels a side, that get self-attention."""
    patch: int = key(1, ABOVE_ZERO)
    """Squares of so many pixels a side are one pixel to the network, with all their numbers as channels."""
    dropout: float = key(0.0, FORCED, NOT_NEGATIVE)
    sigma_data: int | float | Literal["auto"] = key(0.5, ABOVE_ZERO)
    """The standard deviation of the data, for preconditioning; `auto` measures it, and shifts the training noise."""
    label_dropout: float = key(0.0, FORCED, NOT_NEGATIVE)
    """Share of the images whose class the network is not told (`data.labels`), for guidance."""


@dataclass
class NoiseConfig:
    """Training noise levels: ln sigma ~ N(P_mean, P_std^2)."""

    P_mean: float = key(-1.2, FORCED)
    P_std: float = key(1.2, FORCED, ABOVE_ZERO)


@dataclass
class TrainConfig:
    """The optimisation."""

    batch_size: int = key(128, FITTED, ABOVE_ZERO)
    """Images in one step, over all devices."""
    microbatch: int | None = key(None, FREE, SAME, AXIS, MEASURE, LENS, ABOVE_ZERO)
    """Images that a device evaluates at once, where a batch does not fit; `null`: all that it gets."""
    kimg: float = key(100.0, FREE, AXIS, ABOVE_ZERO)
    """Length of the run, in thousands of images."""
    lr: float = key(1e-3, FORCED, ABOVE_ZERO)
    lr_rampup_kimg: float = key(1.0, FORCED, NOT_NEGATIVE)
    ema_halflife_kimg: float | None = key(500.0, ABOVE_ZERO)
    """Half-life of the weight average; `null` measures and exports the raw weights."""
    ema_rampup_ratio: float | None = key(0.05, FORCED, ABOVE_ZERO)
    """The half-life is at most this share of the images seen so far; `null` is no limit."""
    ema_lengths: list[float] = key(list)
    """Lengths of further averages, of which `gaussbias.ema` makes those of other lengths afterwards."""
    ema_every_kimg: float | None = key(None, ABOVE_ZERO)
    """How often they are written; `null` is 32 times in all."""
    grad_clip: float | None = key(None, FORCED, ABOVE_ZERO)
    precision: Literal["32-true", "bf16-mixed", "auto"] = key("auto", FORCED)
    """Precision of training; `auto` is bf16-mixed on a GPU that has it. Measurements are float32, without TF32."""
    compile: bool | Literal["auto"] = key("auto", FREE, SAME, AXIS)
    """Compile the training step; `auto` does on a GPU, for runs so long that it pays."""
    accelerator: Literal["auto", "cpu", "gpu"] = key("auto", FREE, PLACE, MEASURE, LENS)
    devices: int | Literal["auto"] = key("auto", FREE, PLACE, ABOVE_ZERO)
    num_nodes: int = key(1, FREE, PLACE, ABOVE_ZERO)
    strategy: Literal["auto", "ddp"] = key("auto", FREE, SAME, AXIS)
    checkpoint_every_kimg: float = key(50.0, FREE, AXIS, ABOVE_ZERO)
    checkpoints_kept: int | Literal["all"] = key(2, FREE, PLACE, ABOVE_ZERO)
    """The newest so many; all of them take much room, and let the report look at the denoiser at earlier times."""
    log_every_kimg: float = key(1.0, FREE, AXIS, ABOVE_ZERO)


@dataclass
class ProbesConfig:
    """What is measured, on how many draws, and when."""

    draws: int = key(512, MEASURE, LENS)
    """Noisy images per pool; the same ones serve every noise level."""
    block: int | None = key(None, MEASURE, LENS, ABOVE_ZERO)
    """Draws that are evaluated and paired together, the unit that devices share out and that errors are taken over;
    `null` is the largest number that leaves 16 blocks, which has the smallest errors."""
    sigmas: list[float] | None = key(None, METHOD, MEASURE, LENS)
    """Noise levels; `null` is EDM's grid of 10 from 80 to 0.002."""
    pools: list[str] = key(lambda: ["train", "heldout"], MEASURE, LENS)
    first_kimg: float = key(1.0, FREE, ABOVE_ZERO)
    """First measurement after the one before training; then the time grows from one to the next."""
    growth: float = key(2.0, FREE)
    """By this factor."""
    every_kimg: float = key(25.0, FREE, ABOVE_ZERO)
    """Measurements are at most this far apart."""
    samples: int = key(200, FORCED, METHOD, LENS)
    sampler: Literal["heun", "euler"] = key("heun", FORCED, METHOD, MEASURE, PATH, LENS)
    sampler_steps: int = key(18, FORCED, METHOD, MEASURE, PATH, LENS)
    weights: list[str] = key(lambda: ["ema"], METHOD, MEASURE)
    """`ema`, the averaged weights, `raw`, those that are trained, or both; values of raw ones are named `raw/...`."""
    surrogate: str | None = key(None, FORCED)
    """A linear surrogate (its run folder or linear.safetensors) to measure the distance to, as `linear/rmse`."""
    features: str | None = key(None, FORCED, METHOD)
    """`package.module:function` that returns a feature network of your own, for `samples/fid`."""
    theories: list[str] = key(list, FORCED, MEASURE, LENS)
    """Further denoisers to compare with: `bootstrap`, `family:number`, or `[name=]package.module:function`."""
    theory_samples: int = key(16, FORCED, METHOD, LENS, NOT_NEGATIVE)
    """From how many latents theories make samples as well, to compare with: `theory/<name>/samples_r`."""
    also: list[str] = key(list, FORCED, MEASURE, LENS)
    """Further probes, as `package.module:function`."""
    cycles: int = key(0, FREE)
    """At the end of a run noise is added to samples and they are sampled back, so many times; 0 is no such audit."""
    cycle_sigma: float = key(0.5, FREE, ABOVE_ZERO)
    """The noise of each cycle, in data units."""
    guidance: list[float] = key(list, FORCED, MEASURE, LENS)
    """With `data.labels`, weights w of classifier-free guidance whose samples are measured as well; 1 is none."""
    per_class: bool = key(False, FORCED, MEASURE, LENS)
    """With `data.labels`, log the values of each class as well, as `class_<c>/...`."""
    seed: int = key(0, MEASURE, LENS)
    """Seed of the draws and the sampling latents: runs that share it measure the same points."""


STOP_RULES = ("gaussian_gap", "memorization", "gap", "novelty")
"""The keys of the section `stop` that name a rule."""


@dataclass
class StopConfig:
    """Rules for early stopping: `mark` keeps checkpoints/best_<rule>.ckpt, `end` also ends the run."""

    gaussian_gap: Literal["mark", "end"] | None = key(None, FREE)
    """Keep the weights nearest to the Gaussian denoiser on held-out images."""
    patience: int = key(3, FREE)
    """Measurements above that minimum after which it is past."""
    errors: float = key(2.0, FREE)
    """They are above it by more than so many standard errors of the difference."""
    memorization: Literal["mark", "end"] | None = key(None, FREE)
    """Keep the last weights whose samples are not memorised."""
    memorized_fraction: float = key(0.05, FREE)
    """They are once the lower end of the memorised fraction's 95 % interval is above this."""
    gap: Literal["mark", "end"] | None = key(None, FREE)
    """Keep the last weights before the gap that D_G does not explain opens: before samples are memorised."""
    gap_z: float = key(4.0, FREE, ABOVE_ZERO)
    """It is open once `gap/z` is above this at two measurements in a row."""
    novelty: Literal["mark", "end"] | None = key(None, FREE)
    """Keep the last weights before samples are nearer to training images than new images are."""
    novelty_z: float = key(3.0, FREE, ABOVE_ZERO)
    """They are once `novelty/train_share_z` is above this at two measurements in a row."""


@dataclass
class LinearConfig:
    """The distillation of a denoiser into one affine map per noise level (module.kind=linear)."""

    teacher: str | None = key(None, FREE, SAME)
    """A run folder, a checkpoint or an exported denoiser, of ours, of EDM or of diffusers."""
    labels: str | None = None
    """The class of a class-conditional teacher: its number, `average` or `none`."""
    pool: Literal["train", "heldout"] = key("train", FITTED)
    """Whose noisy images it is fitted on."""
    method: Literal["exact", "gradient"] = key("exact", FITTED)
    """Sums and a solve, or the paper's Adam."""
    shrink: bool = key(True, FITTED)
    """To the Gaussian denoiser; else least squares."""
    draws: int | None = key(None, FITTED, ABOVE_ZERO)
    """For each noise level; `null` is 16 per dimension, and 1,000 for the gradient."""
    target_error: float | None = key(None, FITTED, ABOVE_ZERO)
    """End a level once the predicted error of W, `||W - W_L||^2 / ||W||^2`, is surely below."""
    lr: list[float] | None = key(None, FITTED)
    """Learning rates of the gradient, one for each noise level; `null` picks among the paper's."""


@dataclass
class RunConfig:
    """Where results go."""

    name: str | None = key(None, FREE, PLACE)
    """Folder of the run; `null` is the configuration's file name."""
    root: str = key("runs", FREE, PLACE)
    seed: int = key(0, AXIS)
    logger: Literal["wandb", "tensorboard", "csv"] = key("wandb", FREE, PLACE)
    """What shows curves while a run goes on; history.csv is written in any case, and `csv` writes nothing else."""
    wandb: Literal["online", "offline", "disabled"] = key("offline", FREE, PLACE)
    wandb_levels: bool = key(False, FREE, PLACE)
    """Send values of single noise levels as curves too, in place of a table for each measurement alone."""
    pictures: Literal["live", "end", "none"] = key("live", FREE, PLACE)
    """Drawn at each measurement, beside training; once at the end; or not at all."""
    write_errors: Literal["continue", "stop"] = key("continue", FREE, PLACE)
    """What a checkpoint or a row that cannot be written (a full disk) means for a run."""
    project: str = key("gaussbias", FREE, PLACE)
    entity: str | None = key(None, FREE, PLACE)
    group: str | None = key(None, FREE, PLACE)
    tags: list[str] = key(list, FREE, PLACE)


@dataclass
class Config:
    """A whole run."""

    module: ModuleConfig = section(ModuleConfig)
    data: DataConfig = section(DataConfig)
    model: ModelConfig = section(ModelConfig, "edm")
    noise: NoiseConfig = section(NoiseConfig, "edm")
    train: TrainConfig = section(TrainConfig)
    probes: ProbesConfig = section(ProbesConfig)
    stop: StopConfig = section(StopConfig)
    linear: LinearConfig = section(LinearConfig, "linear")
    run: RunConfig = section(RunConfig)
