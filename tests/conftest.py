from pathlib import Path

import pytest
import torch


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def digits() -> torch.Tensor:
    """Real images, (1797, 1, 8, 8) uint8."""
    from gaussbias.data.sources import digits

    return digits().images


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).parent.parent
