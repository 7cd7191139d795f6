from pathlib import Path

import pytest

from gaussbias.config import load

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_configuration_loads_and_opens_with_what_it_shows(file):
    needed = {"digits.yaml": [], "linear_tiny.yaml": ["linear.teacher=RUN"]}
    assert load(file, needed.get(file.name, ["data.path=PATH/TO/cifar10-32x32.zip"])).run.name == file.stem
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert len(header) >= 5
