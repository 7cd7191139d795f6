"""What things cost, in counts: evaluations, passes over the images, bytes. Times are for benchmarks/."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gaussbias.backbones import flops
from gaussbias.config import ModelConfig
from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.denoisers.base import Denoiser
from gaussbias.denoisers.theories import chunks
from gaussbias.metrics import neighbours
from gaussbias.metrics.neighbours import NearestImages
from gaussbias.moments import Moments, estimate
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample, sample_gaussian


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that is made; what an operation is given and returns is not made."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {part.untyped_storage().data_ptr() for part in args if isinstance(part, torch.Tensor)}
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_a_covariance_needs_no_second_matrix_of_its_size(fast, flip, monkeypatch, random):
    monkeypatch.setattr("gaussbias.numerics.integers.are_fast", lambda device: fast)
    d = 3 * 36 * 36
    images = torch.randint(0, 256, (1100, 3, 36, 36), generator=random, dtype=torch.uint8)
    moments = Moments((3, 36, 36), pixels=True)
    with Largest() as made:
        moments.update(images)
        mean, covariance = moments._mean_and_covariance(moments.outer, flip)
    assert covariance.data_ptr() == moments.outer.data_ptr()
    assert made.nbytes < 0.2 * 8 * d**2  # blocks of its columns, and a chunk of images
    some = torch.randperm(d, generator=random)[:50]
    values = to_unit(torch.cat([images, mirror(images)]) if flip else images, torch.float64).flatten(1)
    exact = (values[:, some].T @ values) / len(values) - torch.outer(values[:, some].mean(0), values.mean(0))
    assert (covariance[some] - exact).abs().max() < 1e-13
    assert (mean - values.mean(0)).abs().max() < 1e-14


@pytest.mark.parametrize("kind", ["Numbers", "Pixels"])
def test_the_memoriser_multiplies_each_image_twice_whatever_the_levels(kind, monkeypatch, random):
    images = torch.randint(0, 256, (4500, 1, 4, 4), generator=random, dtype=torch.uint8)
    monkeypatch.setattr("gaussbias.numerics.integers.are_fast", lambda device: kind == "Pixels")
    products = []
    multiply = getattr(chunks, kind)._multiply

    def counted(self, part):
        products.append(len(self.vectors) * len(part))
        return multiply(self, part)

    monkeypatch.setattr(getattr(chunks, kind), "_multiply", counted)
    x0, eps = (torch.randn(6, 1, 4, 4, generator=random) for _ in range(2))
    EmpiricalDenoiser(images).forward_grid(x0, eps, karras_sigmas(10))
    assert sum(products) == 2 * 6 * 4500


def test_the_gaussian_projects_twice_and_samples_with_two_products(digits, random):
    class Products(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "mm" in str(func):
                Products.rows += args[0].shape[0]
            return func(*args, **(kwargs or {}))

    gaussian = GaussianDenoiser(estimate(digits))
    x0, eps = (torch.randn(5, 1, 8, 8, generator=random) for _ in range(2))
    with Products():
        gaussian.forward_grid(x0, eps, karras_sigmas(10))
    assert Products.rows == (2 + 10) * 5
    Products.rows = 0
    with Products():
        sample_gaussian(gaussian, eps, karras_sigmas(18))
    assert Products.rows == 2 * 5


class Counted(Denoiser):
    def __init__(self):
        super().__init__()
        self.images = 0

    def forward(self, x, sigma):
        self.images += len(x)
        return 0.5 * x


@pytest.mark.parametrize(("method", "evaluations"), [("heun", 35), ("euler", 18)])
def test_evaluations_of_a_sample(method, evaluations, random):
    denoiser = Counted()
    sample(denoiser, torch.randn(7, 1, 2, 2, generator=random), karras_sigmas(18), method)
    assert denoiser.images == 7 * evaluations


@pytest.mark.parametrize("structure", [True, False])
def test_few_distances_to_images_are_measured_one_by_one(structure, monkeypatch, random):
    """By the bound of a few directions where images have structure; where they have none, by products with all."""
    d, count = 3 * 16 * 16, 3000
    fields = torch.randn(count + 50, d, generator=random)
    if structure:
        fields = fields * (1 / torch.arange(1, d + 1))
    images = (128 + 40 * fields / fields.std()).round().clamp(0, 255).to(torch.uint8).view(-1, 3, 16, 16)
    measured, measure = [], neighbours._Found.measure
    monkeypatch.setattr(
        neighbours._Found, "measure", lambda self, row, place: measured.append(len(row)) or measure(self, row, place)
    )
    x = to_unit(images[count:], torch.float64)
    found = NearestImages(images[:count], directions=32)(x)
    distances = (x.flatten(1)[:, None] - to_unit(images[:count], torch.float64).flatten(1)).norm(dim=-1)
    assert (found.first - distances.min(1).values).abs().max() < 1e-12
    assert measured[:-1] == [50 * neighbours.FIRST] * (1 if structure else 2)
    assert measured[-1] <= (neighbours.LOOSE * 50 * count if structure else 50 * 3)


def test_flops_of_a_network_are_counted_without_running_it():
    model = ModelConfig(backbone="mlp", channels=20, layers_per_block=3)
    embedding, d = 32, 3 * 4 * 4
    assert flops(model, (3, 4, 4)) == 2 * (2 * d * 20 + 3 * (2 * 20 * 20 + embedding * 20))
