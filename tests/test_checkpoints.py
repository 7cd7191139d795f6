import json

import pytest
import torch

import gaussbias
from gaussbias import backbones
from gaussbias.checkpoints import save_denoiser
from gaussbias.config import load, to_container
from gaussbias.denoisers import EDMDenoiser
from gaussbias.system.errors import UserError


@pytest.mark.parametrize("backbone", ["unet", "mlp"])
def test_an_exported_denoiser_comes_back(backbone, tmp_path, random):
    config = load(None, [f"model.backbone={backbone}", "model.channels=8", "model.sigma_data=0.4"])
    denoiser = EDMDenoiser(backbones.build(config.model, (1, 8, 8)), 0.4).eval()
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    path = save_denoiser(denoiser, to_container(config)["model"], (1, 8, 8), tmp_path, kimg=3.0, weights="ema")
    x = torch.randn(2, 1, 8, 8, generator=random)
    for place in (path, tmp_path):
        again = gaussbias.load_denoiser(place)
        assert torch.equal(again(x, 0.7), denoiser(x, 0.7))
        assert not again.training
    about = json.loads((tmp_path / "denoiser.json").read_text())
    assert about["kimg"] == 3
    assert about["model"]["sigma_data"] == 0.4


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    def refused(text, path):
        with pytest.raises(UserError, match=text) as caught:
            gaussbias.load_denoiser(path)
        assert "\n" not in str(caught.value)

    refused("found nothing", tmp_path / "none")
    refused("found none", tmp_path)
    (tmp_path / "a.ckpt").write_bytes(b"not a checkpoint")
    refused("expected a checkpoint of gaussbias", tmp_path / "a.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "b.ckpt")
    refused("expected a checkpoint of gaussbias", tmp_path / "b.ckpt")
    (tmp_path / "denoiser.safetensors").write_bytes(b"short")
    refused("cannot read the denoiser", tmp_path)
    config = load(None, ["model.backbone=mlp", "model.channels=8"])
    denoiser = EDMDenoiser(backbones.build(config.model, (1, 8, 8)))
    model = {**to_container(config)["model"], "channels": 16}
    save_denoiser(denoiser, model, (1, 8, 8), tmp_path)
    refused("are not those of its model", tmp_path)
    for text in (
        "[]",
        "{}",
        '{"format": "gaussbias.denoiser/1"}',
        '{"format": "gaussbias.denoiser/1", "model": {"a": 1}}',
    ):
        (tmp_path / "denoiser.json").write_text(text)
        refused("description of format|are not those of its model", tmp_path)


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"hyper_parameters": {"config": Evil()}}, tmp_path / "evil.ckpt")
    with pytest.raises(UserError, match="expected a checkpoint"):
        gaussbias.load_denoiser(tmp_path / "evil.ckpt")
    assert not (tmp_path / "ran").exists()
