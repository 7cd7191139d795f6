"""Measuring in a loop of one's own."""

import math
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from gaussbias import Ruler
from gaussbias.data.images import to_unit
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.history import compare, load
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas

SMALL = {"draws": 32, "sigmas": [10.0, 1.0, 0.3], "samples": 20, "sampler_sigmas": karras_sigmas(4)}


@pytest.fixture(scope="module")
def ruler(digits):
    return Ruler(digits[:200], digits[200:260], **SMALL)


class Half(nn.Module):
    """Half of the image; more of it in training mode."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dropout(0.5)
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, sigma):
        return self.inner(torch.ones_like(x)) * self.share * x


def test_the_gaussian_is_at_no_distance_from_itself(ruler, digits):
    measured = ruler(GaussianDenoiser(estimate(digits[:200])))
    assert float(measured["gaussian/rmse/heldout"]) < 1e-6
    assert str(measured["linearity/affine_cosine/train"]) == "1"
    assert measured["samples/gaussian_cosine"].value == pytest.approx(1, abs=1e-5)
    # a value of known expectation, and its error
    error = measured["denoising/mse/heldout"]
    expected = measured["denoising/gaussian_mse/heldout"]
    assert math.isnan(expected.se)
    assert error.value == pytest.approx(expected.value, rel=1e-5)
    assert set(measured.row) == {*measured, *(f"{name}_se" for name in measured if not math.isnan(measured[name].se))}


def test_functions_and_modules_are_measured_alike_and_modules_stay_in_their_mode(ruler):
    module = Half().train()
    module.inner.eval()  # as somebody who freezes a part has it
    of_module = ruler(module, kimg=3.0)
    assert module.training
    assert not module.inner.training
    of_function = ruler(lambda x, sigma: 0.5 * x)
    assert of_module.row == of_function.row
    assert of_module.kimg == 3.0
    assert of_module.name == "3_32"


def test_a_module_is_in_its_mode_again_after_an_error(ruler):
    module = Half()
    module.forward = lambda x, sigma: 1 / 0
    with pytest.raises(ZeroDivisionError):
        ruler(module)
    assert module.training
    assert module.inner.training
    assert float(ruler(lambda x, sigma: 0 * x)["gaussian/rmse/train"]) > 0.1  # and the next measurement is whole


def test_differences_on_the_same_draws_have_smaller_errors(ruler, tmp_path):
    a, b = ruler(lambda x, sigma: 0.5 * x), ruler(lambda x, sigma: 0.51 * x)
    change = (a - b)["gaussian/rmse/heldout"]
    both = a["gaussian/rmse/heldout"], b["gaussian/rmse/heldout"]
    assert change.difference == pytest.approx(both[0].value - both[1].value, rel=1e-9)
    assert change.se < 0.5 * both[0].se
    a.write(tmp_path / "a.safetensors")
    b.write(tmp_path / "b.safetensors")
    assert compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "gaussian/rmse/heldout") == change
    # the share that is linear means nothing at some levels of one of the two: its mean is one over other levels
    gaussian = ruler(ruler.references["gaussian"])
    assert "ladder/r2/heldout" in a.keys() & gaussian.keys() - (a - gaussian).keys()
    assert "gaussian/rmse/heldout" in (a - gaussian)
    elsewhere = Ruler(ruler.references.images[:100], ruler.references.heldout[:50], **SMALL)
    shared = a - elsewhere(lambda x, sigma: x)  # other images: the latents of samples are all that is the same
    assert {name.partition("/")[0] for name in shared} == {"samples", "generalization", "spectrum"}


def test_rows_go_to_a_table_and_to_whatever_logs(ruler, tmp_path):
    class Run:
        rows = []  # noqa: RUF012

        def log(self, row):
            self.rows.append(row)

    run = Run()
    for kimg in (0.0, 1.0):
        ruler.log(ruler(lambda x, sigma: 0.5 * x, kimg=kimg), tmp_path / "history.csv", run)
    table = load(tmp_path)
    assert table["kimg"] == [0.0, 1.0]
    assert [row["kimg"] for row in run.rows] == [0.0, 1.0]
    assert table["gaussian/rmse/heldout"] == [row["gaussian/rmse/heldout"] for row in run.rows]
    Ruler(ruler.references.images, ruler.references.heldout, **SMALL).log(
        ruler(lambda x, s: x, 2.0), tmp_path / "history.csv"
    )
    assert load(tmp_path)["kimg"] == [0.0, 1.0, 2.0]  # a loop that is begun again adds to it


def test_rows_without_a_time_are_added_to_as_well(ruler, tmp_path):
    measured = ruler(lambda x, sigma: 0.5 * x)
    for _ in range(2):  # as a notebook that is begun again
        Ruler(ruler.references.images, ruler.references.heldout, **SMALL).log(measured, tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3


def test_functions_are_measured_where_the_last_module_was(digits):
    ruler = Ruler(digits[:50], digits[50:60], draws=32, sigmas=[1.0], samples=0)
    ruler(Half().to("cpu"))
    ruler._last = torch.device("meta")  # as of a module on a card
    with pytest.raises(Exception, match="meta"):
        ruler(lambda x, sigma: x)
    given = Ruler(digits[:50], digits[50:60], draws=32, sigmas=[1.0], samples=0, device="cpu")
    given._last = torch.device("meta")
    given(lambda x, sigma: x)


def test_names_of_what_is_always_compared_with_are_taken(digits):
    with pytest.raises(ValueError, match="other names than gaussian and empirical for `others` but got gaussian"):
        Ruler(digits[:50], digits[50:60], theories={"gaussian": lambda *_: GaussianDenoiser(estimate(digits[:50]))})


def test_floating_point_images_no_samples_and_one_pool(digits):
    images, heldout = to_unit(digits[:100]), to_unit(digits[100:150])
    as_floats = Ruler(images, heldout, draws=32, sigmas=[1.0], samples=0, pools=["heldout"])
    as_pixels = Ruler(digits[:100], digits[100:150], draws=32, sigmas=[1.0], samples=0, pools=["heldout"])
    rows = [ruler(lambda x, sigma: 0.5 * x).row for ruler in (as_floats, as_pixels)]
    assert rows[0] == pytest.approx(rows[1], rel=1e-5, abs=1e-8)
    assert not [name for name in rows[0] if name.startswith(("samples/", "generalization/")) or "/train" in name]


def test_all_pools_and_flips(digits):
    ruler = Ruler(digits[:100], digits[100:150], **SMALL, flip=True, pools=["train", "heldout", "trajectory", "noise"])
    row = ruler(lambda x, sigma: 0.5 * x).row
    assert {"linearity/cosine/trajectory", "ladder/affine/noise", "gaussian/rmse/trajectory"} <= row.keys()
    assert ruler.references.moments.count == 200


@pytest.mark.parametrize("shape", [(20, 8, 8), (1, 1, 8, 8), (20, 1, 4, 4)])
def test_images_of_other_shapes_are_refused(shape, digits):
    with pytest.raises(ValueError, match=r"Expected `heldout` of a shape \(N, C, H, W\), at least 2"):
        Ruler(digits[:100], torch.zeros(shape, dtype=torch.uint8))


class Normed(nn.Module):
    """A network with buffers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x, sigma):
        return self.norm(x)


def _share(rank, folder, images):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    ruler = Ruler(images[:200], images[200:260], **SMALL)
    for _ in range(2):  # what is kept of the first measurement serves the second one
        measured = ruler(lambda x, sigma: torch.tanh(x))
    # ranks have unequal numbers of blocks, and this wrapper has them meet at each call
    of_wrapped = ruler(nn.parallel.DistributedDataParallel(Normed()))
    torch.save((measured.row, of_wrapped.row), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_processes_share_out_the_blocks(digits, ruler):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_share, (folder, digits), nprocs=2)
        rows = [torch.load(Path(folder) / f"{rank}.pt") for rank in (0, 1)]
    assert rows[0] == rows[1] == (ruler(lambda x, sigma: torch.tanh(x)).row, ruler(Normed()).row)
