from pathlib import Path

import pytest

from gaussbias.atlas import read_plan
from gaussbias.config import load

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))
ATLASES = [file for file in FILES if file.stem.startswith("atlas_")]
CONFIGS = [file for file in FILES if file not in ATLASES]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_every_shipped_configuration_loads_and_opens_with_what_it_shows(file):
    needed = {"digits.yaml": [], "linear_tiny.yaml": ["linear.teacher=RUN"]}
    assert load(file, needed.get(file.name, ["data.path=PATH/TO/cifar10-32x32.zip"])).run.name == file.stem
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert len(header) >= 5


@pytest.mark.parametrize(
    ("name", "count"), [("atlas_tiny", 32), ("atlas_small", 22), ("atlas_labels", 30), ("atlas_cpu32", 4)]
)
def test_every_shipped_atlas_has_its_cells_and_opens_with_what_it_shows(name, count):
    (file,) = (file for file in ATLASES if file.stem == name)
    plan = read_plan(file, ["data.path=PATH/TO/cifar10-32x32.zip"])
    assert (plan.name, len(plan.cells)) == (name, count)
    header = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert len(header) >= 5
    assert f"python -m gaussbias.atlas --config configs/{name}.yaml" in "".join(header)
