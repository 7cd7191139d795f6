import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import lightning.pytorch as pl
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from gaussbias import config
from gaussbias.backbones.mlp import MLP
from gaussbias.backbones.unet import UNet
from gaussbias.callbacks import EMA, Stopping, measurement_steps, total_steps
from gaussbias.callbacks.progress import ProgressBar
from gaussbias.callbacks.schedule import even_steps
from gaussbias.callbacks.training import TrainingLog
from gaussbias.data.images import to_unit
from gaussbias.metrics.linearity import linearity
from gaussbias.modules import EDMModule, ImageDataModule, evaluate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import DrawBatch, ProbeBank, SampleBatch
from gaussbias.system.signals import StopRequest
from gaussbias.training.devices import find_compile


class Zero(nn.Module):
    """F = 0, with a parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x, c_noise):
        return self.scale * x


@pytest.mark.parametrize("backbone", [lambda: UNet((1, 8, 8), 8), lambda: MLP((1, 8, 8), 16)])
def test_untrained_denoisers_are_c_skip_x(backbone, digits, random):
    module = EDMModule(backbone(), batch_size=4)
    x = to_unit(digits[:4])
    sigma = torch.tensor([0.002, 0.5, 2.0, 80.0])
    skip = 0.25 / (sigma**2 + 0.25)
    assert torch.allclose(module(x, sigma), skip[:, None, None, None] * x, atol=1e-7)


def test_the_loss_of_f_zero_is_its_closed_value(digits):
    """With F = 0, D = c_skip x, whose expected error is (1-c_skip)^2 E x0^2 + c_skip^2 sigma^2."""
    module = EDMModule(Zero(), batch_size=4096, P_mean=-0.5, P_std=1e-9)
    images = digits[torch.arange(4096) % len(digits)]
    loss = float(next(module.losses({"images": images, "step": 0})).detach())
    sigma = math.exp(-0.5)
    skip, c_out2 = 0.25 / (sigma**2 + 0.25), sigma**2 * 0.25 / (sigma**2 + 0.25)
    power = float(to_unit(images).double().square().mean())
    expected = ((1 - skip) ** 2 * power + skip**2 * sigma**2) / c_out2
    assert loss == pytest.approx(expected, rel=0.01)  # 4096 * 64 draws of noise


def test_training_sigmas_have_the_configured_law(digits, monkeypatch):
    seen = []
    module = EDMModule(Zero(), batch_size=2048, P_mean=-1.2, P_std=1.2)
    monkeypatch.setattr(module.denoiser, "forward", lambda x, sigma: seen.append(sigma) or x)
    for step in range(4):
        next(module.losses({"images": digits[:1].repeat(2048, 1, 1, 1), "step": step}))
    log = torch.cat(seen).log().double()
    n = len(log)
    assert abs(float(log.mean()) + 1.2) < 4 * 1.2 / n**0.5
    assert abs(float(log.std()) - 1.2) < 4 * 1.2 / (2 * n) ** 0.5
    assert not torch.equal(seen[0], seen[1])


def test_noise_is_a_function_of_seed_and_step_and_ranks_take_rows(digits, monkeypatch):
    def losses(seed, step, rank, rows):
        module = EDMModule(Zero(), batch_size=8, seed=seed)
        monkeypatch.setattr(EDMModule, "global_rank", rank)
        return float(next(module.losses({"images": digits[:8][rows], "step": step})).detach())

    whole = losses(0, 5, 0, slice(8))
    assert losses(0, 5, 0, slice(8)) == whole
    assert losses(0, 6, 0, slice(8)) != whole
    assert losses(1, 5, 0, slice(8)) != whole
    shares = [losses(0, 5, rank, slice(2 * rank, 2 * rank + 2)) for rank in range(4)]
    assert sum(shares) / 4 == pytest.approx(whole, rel=1e-6)
    assert len(set(shares)) == 4


def test_dropout_is_a_function_of_seed_step_and_rank(digits):
    network = MLP((1, 8, 8), 16, dropout=0.5)
    nn.init.normal_(network.leave.weight)
    module = EDMModule(network, batch_size=8)
    batch = {"images": digits[:8], "step": 3}
    first, again, other = (next(module.losses({**batch, "step": step})).detach() for step in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_learning_rate_grows_over_its_rampup_and_never_is_zero():
    module = EDMModule(Zero(), batch_size=100, lr=0.01, lr_rampup_kimg=1.0)
    factor = module.configure_optimizers()["lr_scheduler"]["scheduler"].lr_lambdas[0]
    assert [factor(step) for step in (0, 4, 9, 10, 1000)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    assert EDMModule(Zero()).configure_optimizers()["lr_scheduler"]["scheduler"].lr_lambdas[0](0) == 1


def test_evaluate_returns_the_denoisers_values(digits, random):
    x0 = to_unit(digits[:4])
    eps = torch.randn(x0.shape, generator=random)
    sigma = torch.tensor([2.0, 0.1], dtype=torch.float64)
    batch = DrawBatch("train", 7, sigma, x0, eps)
    with torch.autocast("cpu", torch.bfloat16):  # measuring is not subject to it
        out = evaluate(lambda x, s: (x.flatten(1) @ torch.eye(64)).view_as(x) * s[:, None, None, None], batch)
    assert out.block == 7
    for s, level in enumerate((2.0, 0.1)):
        assert torch.equal(out.x[s], x0 + level * eps)
        assert torch.allclose(out.output[s], level * out.x[s], rtol=1e-6)
    latents = torch.randn(3, 1, 8, 8, generator=random)
    grid = torch.tensor(karras_sigmas(4), dtype=torch.float64)
    out = evaluate(lambda x, s: 0 * x, SampleBatch(0, 0, grid, latents, "heun"))
    assert out.samples.abs().max() < 1e-9


class Watched(nn.Module):
    """A small network of float64, and how many images it was given at once."""

    def __init__(self):
        super().__init__()
        self.weight, self.sizes = nn.Parameter(torch.linspace(-1, 1, 64, dtype=torch.float64)), []

    def forward(self, x, c_noise):
        self.sizes.append(len(x))
        return (self.weight.view(1, 8, 8) * x).tanh() * (1 + c_noise.view(-1, 1, 1, 1))


@pytest.mark.parametrize("microbatch", [1, 3, 7])
def test_measurements_and_samples_take_no_more_at_once_than_training(microbatch, digits):
    """And give what they give whole: in float64, to the last bits."""
    bank = ProbeBank({"train": digits}, 32, karras_sigmas(4), samples=9, sampler_sigmas=karras_sigmas(3))
    values = {}
    for parts in (None, microbatch):
        network = Watched()
        module = EDMModule(network, batch_size=12, microbatch=parts)
        values[parts] = []
        for loader in bank.loaders():
            for batch in loader:
                images = {name: v.double() for name, v in vars(batch).items() if getattr(v, "ndim", 0) == 4}
                batch = replace(batch, **images)
                with torch.no_grad():
                    outputs = module.validation_step(batch, 0)
                values[parts].append(outputs.samples if batch.pool == "samples" else outputs.output)
                if batch.pool == "train":
                    mean = torch.zeros(1, 8, 8, dtype=torch.float64)
                    found = linearity(module.denoiser, outputs.x, outputs.output, outputs.sigmas, mean)
                    values[parts].append(torch.stack(list(found.values())))
        if parts is not None:
            assert max(network.sizes) == parts
            raw = functional_call(module.denoiser, dict(module.denoiser.named_parameters()), (outputs.path[0], 1.0))
            assert torch.allclose(raw, module.denoiser(outputs.path[0], 1.0), atol=0, rtol=1e-15)
            assert max(network.sizes) == parts
    for whole, part in zip(*values.values(), strict=True):
        assert torch.allclose(whole, part, atol=1e-13, rtol=1e-12)


def test_backbones_take_every_setting(random):
    x, c_noise = torch.randn(2, 3, 16, 16, generator=random), torch.tensor([-1.55, 1.1])
    for network in (
        UNet((3, 16, 16), 12, (1, 2, 2), 2, attention=(8, 4), dropout=0.1),
        UNet((3, 16, 16), 4, (1,), 1, attention=(16,)),
        MLP((3, 16, 16), 8, 3, dropout=0.1),
    ):
        assert network(x, c_noise).shape == x.shape
    attention = UNet((3, 16, 16), 8, (1, 2), 1, attention=(8,))
    assert "AttnDownBlock2D" in str(attention.net.config.down_block_types[1])
    assert "AttnDownBlock2D" not in str(attention.net.config.down_block_types[0])


@pytest.mark.parametrize("microbatch", [1, 7, 20, 64])
def test_parts_of_a_batch_give_the_step_of_the_whole(microbatch, digits, random):
    """Parts that do not divide the batch, and larger than it; float32 rounds off 20 terms in another order."""

    def gradients(size):
        network = MLP((1, 8, 8), 16)
        nn.init.normal_(network.leave.weight, generator=torch.Generator().manual_seed(0))
        network.load_state_dict(weights) if weights else weights.update(network.state_dict())
        module = EDMModule(network, batch_size=20, microbatch=size)
        losses = list(module.losses({"images": images, "step": 3}))
        for loss in losses:
            loss.backward()
        return len(losses), sum(losses), [p.grad for p in network.parameters()]

    weights = {}
    images = digits[:20]
    one, loss, whole = gradients(None)
    count, total, parts = gradients(microbatch)
    assert (one, count) == (1, -(-20 // microbatch))
    assert float(total.detach()) == pytest.approx(float(loss.detach()), rel=1e-6)
    for a, b in zip(whole, parts, strict=True):
        assert float((a - b).norm()) <= 1e-6 * float(a.norm())


# compiling


@pytest.mark.long
def test_the_compiled_loss_is_the_loss_and_measurements_do_not_use_it(digits, tmp_path):
    torch.manual_seed(0)
    backbone = MLP((1, 8, 8), 16)
    backbone.leave.weight.data.normal_()
    batch = {"images": digits[:20], "step": 3}
    found = []
    for compile in (False, True):
        module = EDMModule(copy.deepcopy(backbone), batch_size=20, microbatch=8, compile=compile)
        losses = list(module.losses(batch))
        sum(losses).backward()
        found.append(([float(loss.detach()) for loss in losses], [p.grad for p in module.parameters()]))
        assert list(module.state_dict()) == list(EDMModule(backbone).state_dict())
        assert module.denoiser.backbone._compiled_call_impl is None
    (plain, gradients), (compiled, others) = found
    assert compiled == pytest.approx(plain, rel=1e-5)  # sums in another order
    for a, b in zip(gradients, others, strict=True):
        assert float((a - b).norm()) <= 1e-5 * float(a.norm())


def test_a_network_that_cannot_be_compiled_trains_without(digits, monkeypatch, caplog):
    def broken(*arguments):
        raise TorchDynamoException("no compiler\nand so on")

    monkeypatch.setattr(torch, "compile", lambda function: broken)
    plain, compiled = (EDMModule(Zero(), batch_size=20, compile=compile) for compile in (False, True))
    batch = {"images": digits[:20], "step": 3}
    assert [float(loss.detach()) for loss in compiled.losses(batch)] == [
        float(loss.detach()) for loss in plain.losses(batch)
    ]
    list(compiled.losses(batch))
    assert [record.message for record in caplog.records] == ["train.compile: the network trains without: no compiler"]


def test_a_backward_graph_that_cannot_be_compiled_is_found_before_it_is_needed(digits, monkeypatch, caplog):
    """Torch compiles it lazily, in the middle of a backward pass, from which nobody could go on."""

    def fails(graph, inputs):
        raise RuntimeError("no kernel for this in the backward graph")

    backend = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=fails)
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: usual(function, backend=backend))
    plain, compiled = (EDMModule(MLP((1, 8, 8), 8, 1), batch_size=20, compile=compile) for compile in (False, True))
    compiled.load_state_dict(plain.state_dict())
    batch = {"images": digits[:20], "step": 3}
    for module in (plain, compiled):
        for loss in module.losses(batch):
            loss.backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert "train.compile: the network trains without" in caplog.text


def test_long_runs_on_a_gpu_are_compiled(monkeypatch):
    shape = (3, 32, 32)

    def compiled(accelerator, *overrides):
        return find_compile(config.load("configs/cifar_small.yaml", list(overrides)), accelerator, shape)

    monkeypatch.setattr("gaussbias.training.devices.has_triton", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/cc")
    assert compiled("gpu")
    assert not compiled("gpu", "train.kimg=1000")
    assert not compiled("cpu")
    assert compiled("cpu", "train.compile=true")
    assert not compiled("gpu", "train.compile=false")
    assert not compiled("gpu", "module.kind=gaussian")
    monkeypatch.setattr("gaussbias.training.devices.has_triton", lambda: False)
    assert not compiled("gpu")
    assert compiled("gpu", "train.compile=true")


# the average


def test_ema_is_edms(random):
    ema = EMA(batch_size=100, halflife_kimg=2.0, rampup_ratio=0.1)
    assert ema.decay(0) == 0  # the first update copies
    assert ema.decay(10) == pytest.approx(0.5 ** (100 / 100))
    assert ema.decay(50) == pytest.approx(0.5 ** (100 / 500))
    assert ema.decay(10**6) == pytest.approx(0.5 ** (100 / 2000))
    assert EMA(100, 2.0, None).decay(0) == pytest.approx(0.5 ** (100 / 2000))
    network = torch.nn.Linear(1, 1)
    ema._average_model = average = torch.optim.swa_utils.AveragedModel(network)

    def step(number, weight):
        network.weight.data.fill_(weight)
        ema.on_train_batch_end(SimpleNamespace(global_step=number), network, None, None, 0)
        return average.module.weight.item()

    assert step(10, 3.0) == 3.0  # the first update copies, whenever it comes
    assert step(11, 1.0) == 2.0
    assert step(11, 7.0) == 2.0  # once a step
    assert int(average.n_averaged) == 2


def test_a_training_step_never_waits_for_the_device(digits):
    """Reading a number from a GPU waits for all that was begun: the step, its average and its log read none."""

    class Reads(TorchDispatchMode):
        found: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func)
            if any(part in name for part in ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal")):
                self.found.append(name)
            return func(*args, **(kwargs or {}))

    mode = Reads()

    class Watch(pl.Callback):
        """From the second step on, until before the last, whose end is logged."""

        def on_train_batch_start(self, trainer, module, batch, index):
            if trainer.global_step == 1:
                mode.__enter__()

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step == 3:
                mode.__exit__(None, None, None)

    images = digits[:40]
    data = ImageDataModule(images, digits[40:80], ProbeBank({"train": images}, 8, (0.5,), block=2), 8, flip=True)
    module = EDMModule(UNet((1, 8, 8), 4, dropout=0.1), batch_size=8, microbatch=4, grad_clip=1.0)
    trainer = pl.Trainer(
        max_steps=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[Watch(), Stopping(StopRequest()), EMA(8), TrainingLog({5}), ProgressBar()],
    )
    trainer.fit(module, data)
    assert trainer.global_step == 5
    assert Reads.found == []


# when


def test_schedules():
    assert total_steps(1.0, 128) == 8  # 7.8 steps
    assert total_steps(0.3, 100) == 3
    assert sorted(measurement_steps(100, 1, 25, 128)) == [0, 8, 16, 31, 62, 125, 250, 445, 641, 782]
    assert sorted(measurement_steps(0.05, 1, 25, 128)) == [0, 1]
    assert sorted(even_steps(10, 4, 1000)) == [4, 8, 10]
    assert sorted(even_steps(10, 0.001, 5000)) == [1, 2]
    assert sorted(even_steps(10, 50, 1000)) == [10]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_at_either_precision(precision, digits, tmp_path):
    bank = ProbeBank({"train": digits[:100]}, draws=8, sigmas=[1.0], block=8)
    data = ImageDataModule(digits[:100], digits[100:], bank, batch_size=20)
    network = MLP((1, 8, 8), 8)
    nn.init.normal_(network.leave.weight, std=3)
    norms = []

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            norms.append(float(torch.stack([p.grad.norm() for p in pl_module.parameters()]).norm()))

    for clip in (None, 0.5):
        module = EDMModule(network, batch_size=20, grad_clip=clip)
        pl.Trainer(
            max_steps=2,
            accelerator="cpu",
            precision=precision,
            callbacks=[Watch()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            limit_val_batches=0,
            default_root_dir=tmp_path,
        ).fit(module, datamodule=data)
    grads = [p.grad for p in module.parameters()]
    assert max(norms) > 0.5
    assert float(torch.stack([g.norm() for g in grads]).norm()) < 0.5001
