"""What holds on a GPU, on a pretend one."""

import io

import pretend
import pytest
import torch
from pretend import counting, live, loads
from runs import SMALL, Run, have_device_of, pretended


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


RUN = [*SMALL, "train.kimg=1", "train.checkpoint_every_kimg=0.5"]


@pytest.fixture
def on_device(tmp_path):
    """Runs a command on the pretend device: its exit code and what it said."""
    if pretend.can_be() is not None:
        pytest.skip(pretend.can_be())

    def run(*arguments, **given):
        process = Run(*arguments, f"run.root={tmp_path}", said=tmp_path / "said", fault=have_device_of, about=[given])
        return process.end()

    yield run
    Run.end_all()


@pytest.mark.parametrize(
    ("megabytes", "keys", "what"),
    [
        (4, [], "is full before the first step; it holds"),
        (11, ["data.n_train=1400", "probes.samples=200", "probes.draws=256"], "is full in a measurement; it holds"),
        (12, ["train.batch_size=8192", "data.n_train=1400"], "is full in a training step; it holds"),
    ],
)
def test_a_full_memory_is_a_line_that_says_what_to_do(on_device, megabytes, keys, what):
    code, said = on_device(*RUN, *keys, memory=megabytes * 2**20)
    assert code == 1
    assert "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert line.startswith(f"gaussbias.fit: the memory of GPU 0 ({megabytes}.0 MiB) {what}")
    assert "MiB of baselines" in line
    assert {4: "data.n_train", 11: "train.microbatch=16", 12: "train.microbatch=4096"}[megabytes] in line
    assert ("probes.block=" in line) == ("measurement" in what)
