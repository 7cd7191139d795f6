import re

import torch
from torch import nn

from gaussbias.config import Config, load, to_container


def block(root, marker, language):
    text = (root / "README.md").read_text()
    found = re.search(rf"<!-- {marker} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found, marker
    return found.group(1)


def test_the_readme_measures_a_users_own_module(root, digits, tmp_path, monkeypatch):
    class MyNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x, c_noise):
            return self.layer(x.flatten(1)).view_as(x)

    monkeypatch.chdir(tmp_path)
    code = block(root, "own module", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    code = code.replace("max_steps=100", "max_steps=3, logger=rows, enable_progress_bar=False, accelerator='cpu'")
    code = code.replace("{0, 50, 100}", "{0, 3}").replace("draws=256", "draws=64")
    from lightning.pytorch.loggers.logger import DummyLogger

    seen = []
    rows = DummyLogger()
    rows.log_metrics = lambda metrics, step=None: seen.append((step, metrics))
    space = {"MyNetwork": MyNetwork, "images": digits[:300], "heldout": digits[300:400], "rows": rows}
    exec(code, space)
    assert [step for step, _ in seen] == [0, 3]
    assert 0 < seen[1][1]["linearity/affine_cosine/heldout"] <= 1


def test_the_test_command_is_the_one_that_ci_runs(root):
    assert "-m pytest" in block(root, "tests", "bash")
    assert "<!-- tests -->" in (root / ".ci" / "run").read_text()


def test_the_interface_lists_every_key_with_its_default(root):
    text = (root / "docs" / "interface.md").read_text()
    for section, keys in to_container(Config()).items():
        for key, value in keys.items():
            shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            assert f"| `{section}.{key}` | `{shown}` |" in text, f"{section}.{key} = {shown}"


def test_the_interface_lists_every_logged_name(root):
    from gaussbias.metrics import agreement, linearity

    text = (root / "docs" / "interface.md").read_text()
    names = [f"linearity/{name}" for name in linearity.QUANTITIES]
    names += [*agreement.QUANTITIES, *agreement.SAMPLE_QUANTITIES, "denoising/gaussian_mse"]
    for name in names:
        assert f"`{name}`" in text, name


def test_the_default_configuration_is_what_the_documentation_says(root):
    assert load().data.source == "digits"
    assert torch.__version__.split("+")[0] in (root / "constraints.txt").read_text()
