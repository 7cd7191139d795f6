import os
from contextlib import contextmanager
from pathlib import Path

# A GPU of this machine is hidden: what is tested are the values of CPUs, and Lightning's complaint of a GPU that is not
# used is an error here. Before torch is imported; processes that tests start inherit it.
for _name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
    os.environ[_name] = ""

# Several tests run at a time, and threads that wait for one another are slower than none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def digits() -> torch.Tensor:
    """Real images, (1797, 1, 8, 8) uint8."""
    from gaussbias.data.sources import digits

    return digits().images


@pytest.fixture
def power_cut(monkeypatch):
    """`with power_cut(module, step):` training of modules of a class breaks off at a step (RuntimeError)."""

    @contextmanager
    def broken(module, step):
        original = module.training_step

        def break_off(self, batch, batch_idx):
            if batch["step"] == step:
                raise RuntimeError("power cut")
            return original(self, batch, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(module, "training_step", break_off)
            yield

    return broken


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parent.parent
