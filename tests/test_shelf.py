"""Values of theories in files: found again, and made again where they are no longer right."""

import pytest
import torch

from gaussbias.denoisers.base import Denoiser
from gaussbias.moments import estimate
from gaussbias.probes import ProbeBank, References, evaluate
from gaussbias.probes import references as module
from gaussbias.probes.shelf import Shelf, clear

SIGMAS = [1.5, 0.47]


class Counted(Denoiser):
    """Halves an image, and counts how many it was given."""

    def __init__(self, share=0.5):
        super().__init__()
        self.share, self.seen = share, 0

    def forward(self, x, sigma):
        self.seen += len(x)
        return self.share * x


def look(digits, folder, theory, draws=64, most=None, images=None):
    """All values of a theory, or the first ones, and how often it was asked for one."""
    images = digits[:50] if images is None else images
    bank = ProbeBank({"train": digits[:50], "heldout": digits[50:90]}, draws, SIGMAS)
    references = References(bank, images, others={"half": theory}, folder=folder)
    batches = [evaluate(theory, bank.batch(pool, block)) for pool in bank.names for block in bank.numbers(pool, 0, 1)]
    theory.seen, batches = 0, batches[:most]
    return [references.at("half", batch).clone() for batch in batches for _ in range(2)], theory.seen


@pytest.fixture(autouse=True)
def no_memory(monkeypatch):
    monkeypatch.setattr(module, "CACHE_BYTES", 0)


def test_what_does_not_fit_in_memory_is_made_once(digits, tmp_path):
    everything = 64 * len(SIGMAS) * 2
    made, seen = look(digits, tmp_path / "x", Counted())
    assert seen == everything
    again, seen = look(digits, tmp_path / "x", Counted())
    assert seen == len(SIGMAS)  # whether it is what it was is tried on one draw
    assert all(torch.equal(a, b) for a, b in zip(made, again, strict=True))
    clear(tmp_path / "x")
    assert not (tmp_path / "x").exists()
    assert look(digits, tmp_path / "x", Counted())[1] == everything


def test_a_theory_is_evaluated_at_many_draws_at_once(digits, monkeypatch):
    monkeypatch.setattr(module, "CACHE_BYTES", 2**20)
    theory = Counted()
    calls = []
    theory.register_forward_pre_hook(lambda one, given: calls.append(len(given[0])))
    look(digits, None, theory)
    # what the bank's own evaluation asks for, and then all 64 draws of a pool at each level
    assert calls[-4:] == [64] * 4


def test_another_theory_of_the_same_name_is_made_anew(digits, tmp_path):
    before, everything = look(digits, tmp_path, Counted())
    after, seen = look(digits, tmp_path, Counted(0.4))
    assert seen == everything + len(SIGMAS)
    assert all(torch.allclose(0.8 * a, b) for a, b in zip(before, after, strict=True))
    assert look(digits, tmp_path, Counted(0.4))[1] == len(SIGMAS)


def test_files_of_another_theory_are_removed_whole(digits, tmp_path, monkeypatch):
    """Else a second interruption would leave files of both, and the first one would speak for all."""
    _, everything = look(digits, tmp_path, Counted())
    monkeypatch.setattr(module, "AHEAD", 4)
    look(digits, tmp_path, Counted(0.4), most=1)
    assert len(list(tmp_path.iterdir())) == 1
    found, seen = look(digits, tmp_path, Counted(0.4))
    assert all(torch.allclose(0.8 * a, b) for a, b in zip(look(digits, None, Counted())[0], found, strict=True))
    assert seen <= everything + len(SIGMAS)


def test_values_of_other_training_images_are_not_taken(digits, tmp_path):
    _, everything = look(digits, tmp_path, Counted())
    assert look(digits, tmp_path, Counted(), images=digits[100:150])[1] == everything


def test_what_else_lies_in_the_folder_stays(tmp_path):
    (tmp_path / "page.html").touch()
    clear(tmp_path)
    assert (tmp_path / "page.html").exists()
    clear(tmp_path / "none")


def test_values_on_other_draws_are_not_taken(digits, tmp_path):
    _, everything = look(digits, tmp_path, Counted())
    found, seen = look(digits, tmp_path, Counted(), draws=32)
    assert seen == everything // 2
    assert found[0].shape == (2, 2, 1, 8, 8)


def test_files_that_cannot_be_read_or_written_cost_time_alone(digits, tmp_path, caplog):
    made, everything = look(digits, tmp_path, Counted())
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    again, seen = look(digits, tmp_path, Counted())
    assert seen == everything
    assert all(torch.equal(a, b) for a, b in zip(made, again, strict=True))
    (tmp_path / "file").touch()
    assert look(digits, tmp_path / "file", Counted())[1] < 2 * everything  # some were made ahead, before it was known
    (said,) = [record.message for record in caplog.records]
    assert "could not be written" in said


def test_names_may_have_any_characters(digits, tmp_path):
    bank = ProbeBank({"train": digits[:50]}, 32, SIGMAS)
    batch = evaluate(Counted(), bank.batch("train", 0))
    shelf = Shelf(tmp_path, bank, estimate(digits[:50]))
    shelf.keep("a/../b c", batch, batch.output)
    values = shelf.find("a/../b c", batch, lambda: batch.output[:, :1])
    assert torch.equal(values, batch.output)
    assert [file.name for file in tmp_path.iterdir()] == ["a%2F..%2Fb%20c-train-0.values.safetensors"]
