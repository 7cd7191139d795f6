"""What a run computes on, and how."""

from __future__ import annotations

import math
import os
import shutil
from typing import Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import DDPStrategy
from torch.utils._triton import has_triton

from gaussbias.backbones import flops
from gaussbias.config import Config
from gaussbias.data import shape_of
from gaussbias.modules import SummingModule, SummingStrategy
from gaussbias.numerics.blocks import block_size
from gaussbias.system.errors import UserError
from gaussbias.system.ranks import launcher, settle

WORTH_COMPILING = 3e16
"""Floating-point operations of a run from which on compiling is worth its minute: 5 minutes at 100 TFLOP/s."""
WORTH_A_DEVICE = 5e11
"""Operations of a step on one of several GPUs: 5 ms at 100 TFLOP/s; with less, starting kernels takes most of it."""
LARGE_IMAGES = 3072
"""Numbers in an image from which on the networks that are distilled, which are not read yet, are worth several GPUs."""


def find_ranks(config: Config) -> tuple[str, int]:
    """`cpu` or `gpu`, and how many on a node; from here on `gaussbias.system.ranks.is_first` is right.

    Raises:
        UserError: If there are not so many, or a launcher has started another number of processes.
    """
    accelerator, devices = find_devices(config)
    check_launcher(devices, config.train.num_nodes)
    world_size = devices * config.train.num_nodes
    settle(world_size, config.train.num_nodes)
    if world_size == 1:
        # else it is what a variable said when Lightning was imported, and its loggers write nothing
        rank_zero_only.rank = 0  # type: ignore[attr-defined]
    return accelerator, devices


def find_devices(config: Config) -> tuple[str, int]:
    """`cpu` or `gpu`, and how many on a node."""
    train, accelerator = config.train, find_accelerator(config)
    if accelerator == "cpu":
        if train.precision == "bf16-mixed" and not torch.cpu._is_avx512_bf16_supported():
            raise UserError(
                f"train.precision: expected 32-true on a CPU without instructions for bf16, got {train.precision}, "
                "which is far slower there"
            )
        return "cpu", (_started(train.num_nodes) or 1) if train.devices == "auto" else train.devices
    there = torch.cuda.device_count()
    wanted = (_started(train.num_nodes) or _serving(config, there)) if train.devices == "auto" else train.devices
    if wanted > there:
        raise UserError(f"train.devices: expected at most {there} GPUs, got {wanted}")
    return "gpu", wanted


def _started(nodes: int) -> int | None:
    """How many processes a launcher has started on each node; `None` without one."""
    by = launcher()
    if by == "torchrun":
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if by == "srun":
        each = os.environ.get("SLURM_NTASKS_PER_NODE", os.environ["SLURM_NTASKS"] if nodes == 1 else "")
        return int(each) if each.isdecimal() else None
    return None


def _serving(config: Config, there: int) -> int:
    """How many of the GPUs found serve a run.

    They have to divide its batch and share out its blocks of draws, and each has to have enough to do in a step.
    """
    train, probes = config.train, config.probes
    if there <= 1 or config.module.kind == "gaussian":
        return 1
    shape = shape_of(config.data)
    if config.module.kind == "linear":
        most = there if math.prod(shape) >= LARGE_IMAGES else 1
    else:
        most = int(3 * flops(config.model, shape) * train.batch_size / train.num_nodes / WORTH_A_DEVICE)
    blocks = probes.draws // (probes.block or block_size(probes.draws) or probes.draws)
    fitting = [
        n
        for n in range(1, min(there, most) + 1)
        if train.batch_size % (n * train.num_nodes) == 0 and n * train.num_nodes <= blocks
    ]
    return max(fitting, default=1)


def check_launcher(devices: int, nodes: int) -> None:
    """Raise `UserError` if a launcher has started another number of processes than there are devices.

    Each would be a run of its own, in one folder.
    """
    wanted = devices * nodes
    by = launcher()
    if by == "srun":
        tasks, each = int(os.environ["SLURM_NTASKS"]), os.environ.get("SLURM_NTASKS_PER_NODE")
        if tasks != wanted or (each is None and tasks > 1) or (each is not None and each != str(devices)):
            raise UserError(
                f"train.devices: expected as many tasks as devices, {devices} on each of {nodes} nodes, but SLURM has "
                f"started {tasks}; give sbatch --nodes={nodes} --ntasks-per-node={devices}, and start it by srun"
            )
    elif by is None and nodes > 1 and _rank_without_node():
        raise UserError(
            f"train.num_nodes: expected processes on {nodes} nodes to be started by torchrun or srun, or to have "
            f"NODE_RANK, got RANK={os.environ['RANK']} alone; set NODE_RANK to the number of the node"
        )
    elif by == "torchrun" and int(os.environ.get("WORLD_SIZE", "1")) != wanted:
        raise UserError(
            f"train.devices: expected as many processes as devices, {devices} on each of {nodes} nodes, but torchrun "
            f"has started {os.environ['WORLD_SIZE']}; give both the same number"
        )


def _rank_without_node() -> bool:
    """Whether a launcher that is not known here has numbered this process: all would take themselves for the first."""
    return "RANK" in os.environ and not any(name in os.environ for name in ("NODE_RANK", "GROUP_RANK"))


def find_accelerator(config: Config) -> str:
    """`cpu` or `gpu`; Apple's GPUs lack the float64 that the measurements need.

    Raises:
        UserError: If a GPU is asked for and there is none.
    """
    wanted = config.train.accelerator
    if wanted == "gpu" and not torch.cuda.is_available():
        raise UserError("train.accelerator: expected a CUDA or ROCm GPU for gpu, found none; use cpu or auto")
    return "gpu" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def find_device(accelerator: str) -> torch.device:
    """The device of this process."""
    if accelerator == "cpu":
        return torch.device("cpu")
    number = os.environ.get("SLURM_LOCALID" if launcher() == "srun" else "LOCAL_RANK", "0")
    return torch.device("cuda", int(number) % torch.cuda.device_count())  # a task may see one GPU, of its own


def find_precision(config: Config, accelerator: str) -> Literal["32-true", "bf16-mixed"]:
    """The precision of the training step."""
    if config.train.precision != "auto":
        return config.train.precision
    able = accelerator == "gpu" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if able else "32-true"


def find_compile(config: Config, accelerator: str, shape: tuple[int, int, int]) -> bool:
    """Whether the training step is compiled: on a CPU that takes minutes and gains nothing, and on a GPU a minute."""
    if config.train.compile != "auto":
        return config.train.compile
    if accelerator == "cpu" or config.module.kind != "edm" or not has_triton() or shutil.which("cc") is None:
        return False
    return 3000 * config.train.kimg * flops(config.model, shape) >= WORTH_COMPILING


def find_strategy(config: Config, module: pl.LightningModule, world_size: int) -> str | DDPStrategy:
    """DDP on several devices: FSDP does not go with averaged weights, and one device is enough for these networks."""
    if world_size == 1 and config.train.strategy != "ddp":
        return "auto"
    if isinstance(module, SummingModule):
        return SummingStrategy()
    # gradients in the buckets that are sent, not beside them; no network here has a buffer to send
    return DDPStrategy(gradient_as_bucket_view=True, broadcast_buffers=False)


def find_environment(world_size: int) -> list[ClusterEnvironment]:
    """SLURM's, if tasks were started by srun; requeueing is left to the job's script, which sees the exit code.

    Lightning would take SLURM's in any allocation, for a single process too.
    """
    by = launcher() if world_size > 1 else None
    if by == "srun":
        return [SLURMEnvironment(auto_requeue=False)]
    return [] if by == "torchrun" else [LightningEnvironment()]


def is_of_another_rank(error: Exception) -> bool:
    """Whether an error only says that the connection to another process broke off."""
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
