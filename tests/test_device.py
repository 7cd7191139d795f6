"""What holds on a GPU, on a pretend one."""

import gc
import io
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pretend
import pytest
import torch
from pretend import counting, live, loads, peak
from runs import SMALL, Run, checkpoint, command, have_device, pretended, rows

from gaussbias import config, moments
from gaussbias.atlas.timing import _key, _speed
from gaussbias.backbones.mlp import MLP
from gaussbias.callbacks import EMA, Checkpoints, Stopping, TrainingLog, measurements
from gaussbias.data.rows import ImageRows, Near, copied_bytes
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.modules import EDMModule, GaussianModule, ImageDataModule, LinearModule
from gaussbias.moments import Moments, estimate
from gaussbias.numerics import integers
from gaussbias.numerics.seeding import ALIKE, Normals
from gaussbias.probes import ProbeBank
from gaussbias.surrogate import Pool, Sums, fit_affine, sums
from gaussbias.system.signals import StopRequest
from gaussbias.system.terminal import is_out_of_memory
from gaussbias.training.devices import find_device, find_devices
from gaussbias.training.resuming import Hardware, hardware_differs


@pretended()
def test_the_pretend_device_is_as_a_gpu_is():
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    assert x.device == torch.device("cuda:0")
    assert x.is_cuda
    assert (x * torch.tensor(2.0)).is_cuda
    assert x[torch.tensor([0, 1])].shape == (2, 4)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.Flatten(), torch.nn.Linear(288, 2)
    )
    before = [id(p) for p in net.parameters()]
    net.to("cuda")
    assert [id(p) for p in net.parameters()] == before
    adam, losses = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True), []
    image = torch.randn(5, 3, 8, 8, device="cuda")
    for _ in range(3):
        adam.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = net(image)
        assert out.dtype == torch.bfloat16
        loss = out.float().square().mean()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[0]
    start = live()
    y = torch.zeros(2**20, device="cuda")
    z = y[:5]
    del y
    assert live() - start == 2**22
    del z
    assert live() == start


@pretended(memory=2**20, refused={97}, largest_eigh=8)
def test_mistakes_with_devices_are_caught():
    x = torch.randn(4, 4, device="cuda")
    a = torch.ones(128, 16, dtype=torch.int8, device="cuda")
    for mistake, said in (
        (lambda: x @ torch.ones(4, 4), "same device"),
        (lambda: x + torch.ones(4), "same device"),
        (lambda: torch.ones(4, 4).add_(x), "same device"),
        (lambda: torch.stack([x.sum(), torch.tensor(1.0)]), "same device"),
        (lambda: x.index_put_((torch.tensor([0]),), torch.ones(1, 4)), "same device"),
        (lambda: torch.randn(3, generator=torch.Generator(), device="cuda"), "generator"),
        (lambda: torch.randn(3, generator=torch.Generator("cuda")), "generator"),
        (lambda: x.numpy(), "numpy"),
        (lambda: x.long() @ x.long(), "not implemented"),
        (lambda: torch._int_mm(a[:16], a.T), "greater than 16"),
        (lambda: torch._int_mm(a, a.T.contiguous()), "NOT_SUPPORTED"),
        (lambda: torch._int_mm(a[:97], a.T), "NOT_SUPPORTED"),
        (lambda: torch.zeros(2**19, device="cuda"), "out of memory"),
        (lambda: torch.linalg.eigh(torch.eye(9, device="cuda")), "cusolver"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=said):
            mistake()
    assert torch._int_mm(a, a.T)[0, 0].item() == 16
    with counting() as waits:
        float(x.sum()), bool((x > 0).any()), x.cpu(), x[x > 0], torch.ones(2).to("cuda")
        x.sum().mul(2).add_(1)
    assert sum(waits.values()) == 5
    file = io.BytesIO()
    torch.save({"x": x}, file)
    for where, count in (("cpu", 0), (None, 1)):
        file.seek(0)
        torch.load(file, map_location=where, weights_only=True)
        assert sum(loads.values()) == count
    torch.randn(100, 100, device="cuda")
    assert sum(pretend.wide.values()) == 1


# memory ---------------------------------------------------------------------------------------------------------------

SIDE = 14
SIZE = 3 * SIDE**2
MATRIX = 8 * SIZE**2
"""Bytes of a d x d matrix in float64, which all below is counted in."""


def pixels(count, random=None):
    return torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=random)


def matrices(since=0):
    """The most there was, and what there is now."""
    gc.collect()
    return (peak(reset=True) - since) / MATRIX, (live() - since) / MATRIX


@pretended()
def test_moments_take_one_matrix_and_three_when_they_are_decomposed():
    moments.COLUMNS = 64
    images = pixels(2 * SIZE).to("cuda")
    before = live()
    metric = Moments((3, SIDE, SIDE), pixels=True).to("cuda")
    assert matrices(before) == pytest.approx((1, 1), abs=0.02)
    metric.update(images)
    metric.reset()
    assert metric.outer.shape == (SIZE, SIZE)
    metric.update(images)
    assert matrices(before)[0] == pytest.approx(2.3, abs=0.2)  # the product in 32 bits, and 8-bit images filled up
    found = metric.eigenmoments()
    assert matrices(before) == pytest.approx((3.2, 1), abs=0.15)  # the covariance, eigh's result, and ours
    expected = estimate(images.cpu())
    assert (found.to(torch.device("cpu")).eigenvalues - expected.eigenvalues).abs().max() < 1e-12


@pretended()
def test_the_gaussian_module_keeps_its_sums_and_takes_four_matrices():
    moments.COLUMNS = 64
    module = GaussianModule((3, SIDE, SIDE), 2 * SIZE).to("cuda")
    module.over_ranks = lambda value: value
    module.sums = module.sums.to("cuda")
    module.sums.update(pixels(2 * SIZE).to("cuda"))
    assert matrices()[1] == pytest.approx(1, abs=0.02)
    module.estimate()
    assert matrices() == pytest.approx((4.2, 1), abs=0.15)
    assert float(module.sums.count) == 2 * SIZE


@pytest.mark.long
@pretended()
def test_a_surrogate_takes_nine_matrices_and_six_more_for_its_fit():
    """Of images of another pool one more, and one for the Gaussian denoiser in their basis."""
    sums.ROWS = 32
    images = pixels(2 * SIZE)
    train, other = estimate(images), estimate(images[: SIZE + 50])
    for own, more in ((True, 0), (False, 1)):
        pool, found = Pool(train if own else other, train).to("cuda"), Sums(SIZE).to("cuda")
        for quarter in range(4):
            c = torch.randn(2 * SIZE, SIZE, dtype=torch.float64) * (pool.variances.cpu() + 0.25).sqrt()
            y = 0.7 * c + 0.1 * c.roll(1, 1) + 0.1 * torch.randn_like(c)
            found.update(quarter, c.to("cuda"), y.to("cuda"))
        del c, y
        pool.gaussian(0.5)
        assert matrices()[1] == pytest.approx(9 + more, abs=0.1)
        fit = fit_affine(found, pool, 0.5)
        assert matrices()[0] == pytest.approx(14.4 + 2 * more, abs=0.3)
        del fit, pool, found


@pretended()
def test_a_copy_of_images_is_shared_and_freed_with_the_last_who_holds_it():
    images = pixels(50)
    first, second, third = ImageRows(images), ImageRows(images, flip=True), Near(images)
    for device in ("cuda", "cuda:0"):
        next(first.chunks(10, torch.device(device)))
        second.take(torch.tensor([3, 60], device=device))
        assert third.on(torch.device(device)).is_cuda
        assert copied_bytes() == images.nbytes
    there = images.to("cuda")
    assert Near(there).on(torch.device("cuda")) is there
    del first, second, third
    gc.collect()
    assert copied_bytes() == 0


# what is computed -----------------------------------------------------------------------------------------------------


@pretended(refused={96, 128})
def test_products_of_integers_that_a_card_refuses_are_exact():
    assert integers.are_fast(torch.device("cuda"))
    for m in (1, 16, 17, 33, 95, 96, 97, 127, 128, 129, 256):
        for k in (3, 64, 192, 3072):
            a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m, k), (k, 50)))
            found = integers.product(a.to("cuda"), b.to("cuda")).cpu()
            assert torch.equal(found.double(), a.double() @ b.double())
    assert {shape[1] for shape in integers._refused} == {96, 128}


@pretended(refused={64})
def test_a_card_that_refuses_the_first_product_is_not_asked_again():
    assert not integers.are_fast(torch.device("cuda"))


@pretended()
def test_noise_is_a_function_of_its_key_and_of_no_card():
    """Of every rank the rows are those of the whole, and no kernel draws more numbers than every card draws alike."""
    for shape in ((64,), (64, 3, 32, 32), (10, 3 * ALIKE), (64, 1, 5, 5)):
        whole = Normals(0, "x", device="cuda")
        first, second = (whole(*shape, rows=slice(None)).cpu() for _ in range(2))
        assert not torch.equal(first, second)
        for start, stop in ((0, 5), (3, 7), (shape[0] - 1, shape[0])):
            part = Normals(0, "x", device="cuda")
            part(*shape, rows=slice(start, stop))
            assert torch.equal(part(*shape, rows=slice(start, stop)).cpu(), second[start:stop])
    assert not pretend.wide
    numbers = torch.cat(
        [Normals(1, i, device="cuda")(100, 3, 16, 16, rows=slice(None)).flatten().cpu() for i in range(4)]
    )
    assert abs(float(numbers.mean())) < 5 / len(numbers) ** 0.5
    assert abs(float(numbers.var()) - 1) < 5 * (2 / len(numbers)) ** 0.5
    on_cpu, random = Normals(2, "y"), torch.Generator().manual_seed(0)
    assert torch.equal(on_cpu(7, 3, rows=slice(2, 4)), Normals(2, "y")(7, 3, rows=slice(None))[2:4])
    assert on_cpu(7, rows=slice(None)).shape == (7,)
    assert random.device.type == "cpu"


@pretended(largest_eigh=SIZE - 1)
def test_moments_are_those_of_the_cpu_also_where_a_gpu_fails():
    images, device = pixels(2 * SIZE, torch.Generator().manual_seed(0)), torch.device("cuda")
    expected = estimate(images)
    pretend.card.largest_eigh = SIZE
    for where in (device, torch.device("cpu")):
        found = estimate(images, device=where)
        assert found.eigenvectors.device.type == "cpu"
        assert torch.equal(found.eigenvalues, expected.eigenvalues)  # the pretend device has the CPU's values
    assert peak() > 3 * MATRIX
    for failing in ({"largest_eigh": SIZE - 1}, {"memory": MATRIX // 2}):
        vars(pretend.card).update(largest_eigh=SIZE, memory=2**34)
        vars(pretend.card).update(failing)
        assert torch.equal(estimate(images, device=device).eigenvalues, expected.eigenvalues)
    vars(pretend.card).update(largest_eigh=0, memory=2**34)
    moments.LARGEST_ON_GPU = SIZE - 1  # which it is not even asked for
    moments.log.warning = None
    assert torch.equal(estimate(images, device=device).eigenvalues, expected.eigenvalues)


def waits_of_steps(module, images, *callbacks):
    """What the host waits for from the end of a training step to that of the next; the first ones set things up."""
    bank = ProbeBank({"train": images}, draws=32, sigmas=[1.0, 0.5], block=2, samples=0)
    found, before = [], Counter(pretend.waits)

    class Watch(pl.Callback):
        def on_train_batch_end(self, *_):
            found.append(dict(pretend.waits - before))
            before.update(found[-1])

    trainer = pl.Trainer(
        **{"accelerator": "gpu", "devices": 1, "max_steps": 6, "logger": False, "limit_val_batches": 0},
        **{"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False},
        **{"num_sanity_val_steps": 0, "callbacks": [*callbacks, Watch()], "use_distributed_sampler": False},
    )
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # as a run does
    trainer.fit(module, datamodule=ImageDataModule(images, images, bank, 16, flip=True))
    assert len(found) == 6
    return found[2:]


@pretended()
def test_the_host_waits_for_no_training_step():
    images = torch.randint(0, 256, (64, 1, 4, 4), dtype=torch.uint8)
    teacher = GaussianDenoiser(estimate(images))
    for module, callbacks in (
        (EDMModule(MLP((1, 4, 4), 8, 1), batch_size=16, microbatch=6, grad_clip=1.0), [EMA(16), TrainingLog({100})]),
        (LinearModule(teacher, estimate(images), [1.0], 1000, batch_size=16), []),
        (LinearModule(teacher, estimate(images), [1.0], 112, batch_size=16, method="gradient"), []),
        (GaussianModule((1, 4, 4), 96, batch_size=16), []),
    ):
        found = waits_of_steps(module, images, *callbacks, Stopping(StopRequest()))
        assert found == [{}] * 4, (type(module), found)


@pretended()
def test_what_is_searched_and_denoised_directly_is_that_of_the_cpu():
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5000, 1, 6, 6), generator=random, dtype=torch.uint8)
    x0, eps = (torch.randn(20, 1, 6, 6, generator=random) for _ in range(2))
    sigmas = (80.0, 3.0, 0.5, 0.05)
    for make in (lambda: EmpiricalDenoiser(images), lambda: GaussianDenoiser(estimate(images))):
        here, there = make(), make().to("cuda")
        found = there.forward_grid(x0.to("cuda"), eps.to("cuda"), sigmas).cpu()
        assert (found - here.forward_grid(x0, eps, sigmas)).abs().max() < 2e-6
    assert torch.equal(NearestImages(images)(x0.to("cuda")).index.cpu(), NearestImages(images)(x0).index)


# devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "shape", "expected"),
    [
        ([], (1, 8, 8), [1] * 8),
        (["train.batch_size=96"], (1, 8, 8), [1] * 8),
        (["configs/cifar_small.yaml"], (3, 32, 32), [1, 2, 2, 4, 4, 4, 4, 4]),
        (["configs/cifar_small.yaml", "train.batch_size=258"], (3, 32, 32), [1, 2, 3, 3, 3, 3, 3, 3]),
        (["configs/paper_cifar.yaml"], (3, 32, 32), [1, 2, 2, 4, 4, 4, 4, 8]),
        (["configs/paper_cifar.yaml", "train.num_nodes=4"], (3, 32, 32), [1, 2, 2, 4, 4, 4, 4, 4]),  # 16 blocks
        (["configs/paper_cifar.yaml", "train.num_nodes=2"], (3, 32, 32), [1, 2, 2, 4, 4, 4, 4, 8]),
        (["configs/linear_tiny.yaml", "linear.teacher=x"], (1, 8, 8), [1] * 8),
        (["configs/linear_tiny.yaml", "linear.teacher=x"], (3, 32, 32), [1, 2, 2, 4, 4, 4, 4, 8]),
        (["module.kind=gaussian"], (3, 64, 64), [1] * 8),
        (["train.devices=3"], (1, 8, 8), [None, None, 3, 3, 3, 3, 3, 3]),
    ],
)
def test_auto_takes_the_gpus_that_serve_a_run(keys, shape, expected, monkeypatch):
    file, keys = (keys[0], keys[1:]) if keys and keys[0].endswith("yaml") else (None, keys)
    data = [] if file is None or "linear" in file else ["data.path=x"]
    chosen = config.load(file, [*data, *keys])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("gaussbias.training.devices.shape_of", lambda data: shape)
    for found, count in enumerate(expected, 1):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=found: found)
        if count is None:
            with pytest.raises(Exception, match=f"expected at most {found} GPUs, got 3"):
                find_devices(chosen)
        else:
            assert find_devices(chosen) == ("gpu", count)


def test_auto_takes_the_processes_that_a_launcher_has_started(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", "x")
        patch.setenv("LOCAL_WORLD_SIZE", "3")
        assert find_devices(config.load(None, ["train.accelerator=cpu"])) == ("cpu", 3)
    with monkeypatch.context() as patch:  # srun -n 2, which is then told what to give
        for name, value in {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}.items():
            patch.setenv(name, value)
        assert find_devices(config.load(None, ["train.accelerator=cpu"])) == ("cpu", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", "x")
        patch.setenv("LOCAL_WORLD_SIZE", "2")
        assert find_devices(config.load(None, [])) == ("gpu", 2)
        patch.setenv("LOCAL_WORLD_SIZE", "5")
        with pytest.raises(Exception, match="expected at most 4 GPUs, got 5"):
            find_devices(config.load(None, []))
    with monkeypatch.context() as patch:
        for name, value in {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "4"}.items():
            patch.setenv(name, value)
        assert find_devices(config.load(None, [])) == ("gpu", 4)


def test_what_differs_when_a_run_goes_on_elsewhere_is_said():
    here = Hardware(1, "cuda", "H200", "bf16-mixed")
    assert hardware_differs(here, here, True) is None
    other = hardware_differs(Hardware(1, "cuda"), here, True)  # of a version that drew noise as each card does
    assert other is not None
    assert other.endswith("the batches and their order stay as they were; noise is drawn in another way")
    stays = "the batches, their order and the noise stay as they were"
    other = hardware_differs(here, Hardware(1, "cuda", "T4", "bf16-mixed"), True)
    assert other == (
        f"before on 1 cuda (H200, bf16-mixed), now on 1 cuda (T4, bf16-mixed): {stays}; sums are taken in another "
        "order, which is round-off, and the masks of dropout are others"
    )
    other = hardware_differs(here, Hardware(1, "cuda", "H200", "32-true"), True)
    assert other is not None
    assert other.endswith(f"{stays}; steps are taken in another precision")
    other = hardware_differs(Hardware(2, "cpu"), Hardware(1, "cpu"), False)
    assert (
        other
        == f"before on 2 cpu, now on 1 cpu: {stays}; sums over devices are taken in another order, which is round-off"
    )
    other = hardware_differs(Hardware(1, "cpu"), here, False)
    assert other is not None
    assert "the batches and their order stay as they were" in other
    assert "noise is drawn by another generator" in other


@pretended(count=2)
def test_a_process_takes_a_gpu_that_it_sees():
    """A task of SLURM's may see one alone, whatever its number."""
    os.environ.update({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3"})
    assert find_device("gpu") == torch.device("cuda:1")
    assert find_device("cpu") == torch.device("cpu")


def test_apples_gpus_are_refused_for_measurements(digits):
    bank = ProbeBank({"train": digits[:50]}, draws=32, sigmas=[1.0], block=2, samples=0)
    callback = measurements(bank, digits[:50], digits[50:80])[0]
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("mps")))
    with pytest.raises(Exception, match="expected cpu or cuda for measurements in float64, got mps"):
        callback.setup(trainer, None, "fit")


@pretended()
def test_tests_hide_gpus():
    """Of a machine with a GPU tests see none: a Trainer on the CPU would complain of it, which is an error here."""
    assert torch.cuda.is_available()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as conftest.py does
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


# whole commands -------------------------------------------------------------------------------------------------------

RUN = [*SMALL, "train.kimg=1", "train.checkpoint_every_kimg=0.5", "probes.first_kimg=0.5", "probes.every_kimg=0.5"]
RUN += ["probes.sigmas=[42,5,0.5]"]  # an operator takes a pretend device 50 microseconds


@pytest.fixture
def on_device(tmp_path):
    """Runs `gaussbias.fit` on the pretend device: its exit code, and what it said."""
    if pretend.can_be() is not None:
        pytest.skip(pretend.can_be())

    def run(*arguments, **given):
        return Run(*arguments, f"run.root={tmp_path}", said=tmp_path / "said", fault=have_device, about=[given]).end()

    yield run
    Run.end_all()


def alike(one, other, tolerance):
    """Whether two rows have the same values, but for what no two runs share."""
    keys = [key for key in one if not key.startswith(("probes/s", "train/images")) and one[key] and key in other]
    assert len(keys) > (3 if one["kimg"] != "0" else 100)
    for key in keys:
        assert float(one[key]) == pytest.approx(float(other[key]), rel=tolerance, abs=tolerance, nan_ok=True), key


@pytest.mark.long
def test_a_run_on_a_gpu_measures_what_one_on_a_cpu_does_and_goes_on_on_either(on_device, tmp_path):
    keys = [*RUN, "stop.gaussian_gap=mark", "probes.weights=[ema,raw]", "probes.pools=[train,heldout,trajectory]"]
    code, said = on_device(*keys, "run.name=gpu")
    assert code == 0, said
    assert "on 1 pretended, bf16-mixed" in said
    code, said = on_device(*keys, "run.name=cpu", "train.accelerator=cpu")
    assert code == 0, said
    first, reference = rows(tmp_path / "gpu")[0], rows(tmp_path / "cpu")[0]
    alike(first, reference, 1e-5)  # before a step, of the same weights and draws
    attempt = json.loads((tmp_path / "gpu" / "attempts.jsonl").read_text())
    assert [attempt[key] for key in ("devices", "card", "precision")] == [[1, "gpu"], "pretended", "bf16-mixed"]
    assert checkpoint(tmp_path / "gpu")["callbacks"]["Checkpoints"]["card"] == "pretended"
    best = tmp_path / "gpu" / "checkpoints" / "best_gaussian_gap.ckpt"
    assert best.exists()

    code, said = on_device(*keys, "run.name=gpu", "train.kimg=1.5", "--resume", name="another", bf16=False)
    assert code == 0, said
    assert (
        "before on 1 cuda (pretended, bf16-mixed), now on 1 cuda (another, 32-true): the batches, their order and the "
        "noise stay as they were; sums are taken in another order, which is round-off, and steps are taken in another "
        "precision" in said
    )
    again = Run(*keys, "run.name=gpu", "train.kimg=2", "--resume", f"run.root={tmp_path}", said=tmp_path / "said").end()
    assert again[0] == 0, again[1]
    assert "now on 1 cpu: the batches and their order stay as they were" in again[1]
    assert "were not kept" not in again[1]
    assert "cannot be read" not in again[1]
    chosen = [row["stop/gaussian_gap_kimg"] for row in rows(tmp_path / "gpu") if row.get("stop/gaussian_gap_kimg")][-1]
    step = torch.load(best, map_location="cpu", weights_only=True)["global_step"]
    assert step * 32 / 1000 == pytest.approx(float(chosen))


@pretended()
def test_what_a_rule_kept_on_a_gpu_stays_on_a_machine_without_one():
    """Only what was read and is of another step is removed."""
    callback = Checkpoints(Path(), set(), set())
    loader = SimpleNamespace(batch_size=100, dataset=range(1000))
    trainer = SimpleNamespace(
        global_step=10, datamodule=None, train_dataloader=loader, world_size=1, accumulate_grad_batches=1
    )
    rule, file = SimpleNamespace(name="x", chosen=0.5), Path("best_x.ckpt")
    torch.save({"global_step": 5, "weights": torch.ones(3, device="cuda")}, file)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        torch.load(file, weights_only=True)
    callback._check_kept(trainer, rule)
    assert file.exists()
    rule.chosen = 0.4
    callback._check_kept(trainer, rule)
    assert not file.exists()
    file.write_bytes(b"damaged")
    callback._check_kept(trainer, rule)
    assert file.read_bytes() == b"damaged"


@pytest.mark.long
def test_the_readmes_first_command_takes_one_of_three_gpus(on_device):
    code, said = on_device("train.kimg=0.2", "run.wandb=disabled", "run.pictures=none", count=3)
    assert code == 0, said
    assert "on 1 of 3 pretended, bf16-mixed" in said


@pytest.mark.long
def test_surrogates_measuring_and_the_lens_on_a_gpu(on_device, tmp_path):
    """A teacher, its surrogate by both methods, the Gaussian, and what looks at them afterwards."""
    code, said = on_device(*RUN, "run.name=teacher")
    assert code == 0, said
    linear = [*SMALL, "module.kind=linear", f"linear.teacher={tmp_path}/teacher", "linear.draws=256"]
    linear += ["probes.sigmas=[5,1]", "train.checkpoint_every_kimg=0.1", "linear.pool=heldout"]
    found = {}
    for name, keys in (("exact", []), ("gradient", ["linear.method=gradient"]), ("cpu", ["train.accelerator=cpu"])):
        code, said = on_device(*linear, *keys, f"run.name={name}")
        assert code == 0, said
        found[name] = rows(tmp_path / name)[-1]
    assert float(found["exact"]["linearity/affine_cosine/heldout"]) == pytest.approx(1)
    assert found["exact"].keys() == found["cpu"].keys()
    code, said = on_device(*SMALL, "module.kind=gaussian", "run.name=gaussian")
    assert code == 0, said
    assert float(rows(tmp_path / "gaussian")[-1]["ladder/total/heldout"]) < 1e-9
    out = f"--out={tmp_path}/out"
    for module, arguments in (
        ("measure", [f"{tmp_path}/teacher", "probes.draws=32", "probes.sigmas=[5,1]"]),
        (
            "lens.__main__",
            [
                f"{tmp_path}/teacher",
                "--data",
                f"{tmp_path}/teacher",
                out,
                "probes.draws=32",
                "probes.samples=8",
                "probes.sigmas=[5,1]",
            ],
        ),
    ):
        said = tmp_path / "said"
        found = Run(*arguments, said=said, fault=have_device, about=[{}], module=f"gaussbias.{module}").end()
        assert found[0] == 0, found[1]
        assert "Traceback" not in found[1]
    assert "cuda" in found[1]


@pytest.mark.long
def test_two_ranks_on_two_gpus_are_one(on_device, tmp_path):
    """Each in a process of its own, over a group that takes no tensor of the CPU; they measure what one does."""
    site = tmp_path / "site"
    site.mkdir()
    place = pretend.site(site, count=2)
    keys = [*RUN, f"run.root={tmp_path}", "train.precision=32-true"]
    code, said = command(*keys, "train.devices=2", "run.name=two", **place)
    assert code == 0, said
    assert "on 2 pretended, 32-true" in said
    code, said = command(*keys, "train.devices=1", "run.name=one", **place)
    assert code == 0, said
    assert "on 1 of 2 pretended, 32-true" in said
    for one, two in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
        alike(two, one, 1e-3 if float(one["kimg"]) else 1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("megabytes", "keys", "what", "advice"),
    [
        (4, [], "before the first step", "begin another run with fewer images (data.n_train)"),
        (
            11,
            ["data.n_train=1400", "probes.samples=200", "probes.draws=256", "probes.sigmas=null"],
            "in a measurement",
            "go on by --resume with train.microbatch=16, images that the network is given at once, or begin another "
            "run with probes.block=8",
        ),
        (
            12,
            ["train.batch_size=8192", "data.n_train=1400"],
            "in a training step",
            "with train.microbatch=4096, images",
        ),
    ],
)
def test_a_full_memory_is_a_line_that_says_what_to_do(on_device, megabytes, keys, what, advice):
    code, said = on_device(*RUN, *keys, memory=megabytes * 2**20)
    assert code == 1
    assert "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert line.startswith(f"gaussbias.fit: the memory of GPU 0 ({megabytes}.0 MiB) is full {what}; it holds ")
    assert "MiB of baselines" in line
    assert advice in line


def test_what_libraries_say_of_a_full_memory_is_known():
    for said in ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory: 5 bytes"):
        assert is_out_of_memory(RuntimeError(said))
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert not is_out_of_memory(RuntimeError("a shape"))


@pretended(bf16=False)
def test_an_atlas_times_steps_in_the_precision_that_its_runs_have():
    """Emulated bf16 is slower than float32, and no run takes it."""
    seen, usual = [], torch.autocast

    def recorded(device, dtype=None, enabled=True):
        seen.append(enabled)
        return usual(device, dtype=dtype, enabled=enabled)

    torch.autocast = recorded
    key = _key(config.load(None, ["model.backbone=mlp", "model.channels=8", "train.batch_size=4"]))
    for able in (False, True):
        pretend.card.bf16 = able
        seen.clear()
        assert _speed(key, (1, 8, 8)).images > 0
        assert any(seen) == able
