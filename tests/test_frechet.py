import math
import sys

import pytest
import torch

from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import GaussianDenoiser
from gaussbias.fit import main
from gaussbias.history import last
from gaussbias.metrics.frechet import FrechetDistance, frechet_distance, normal_of_images
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.probes import FrechetProbe, Instruments, ProbeBank, References, SampleValues
from gaussbias.probes.frechet import load_features
from gaussbias.sampling import sample_gaussian
from gaussbias.system.errors import UserError

DOUBLE = torch.float64


def covariance(size, random, rank=None):
    root = torch.randn(size, rank or size, generator=random, dtype=DOUBLE)
    return root @ root.T


def test_commuting_covariances_have_a_closed_distance(random):
    """`sum (sqrt a - sqrt b)^2 + ||m||^2` in a common eigenbasis."""
    basis = torch.linalg.qr(torch.randn(20, 20, generator=random, dtype=DOUBLE)).Q
    a, b = torch.rand(2, 20, generator=random, dtype=DOUBLE)
    m = torch.randn(20, generator=random, dtype=DOUBLE)
    got = frechet_distance(m, basis * a @ basis.T, 0 * m, basis * b @ basis.T)
    assert got == pytest.approx(float((a.sqrt() - b.sqrt()).square().sum() + m.square().sum()), rel=1e-12)


def test_distance_is_that_of_the_optimal_map(random):
    """`E||x - T x||^2` with the optimal T = B^1/2 (B^1/2 A B^1/2)^-1/2 B^1/2, for covariances that do not commute."""
    a, b, zero = covariance(6, random), covariance(6, random), torch.zeros(6, dtype=DOUBLE)

    def power(matrix, exponent):
        values, vectors = torch.linalg.eig(matrix)
        return (vectors * values**exponent @ torch.linalg.inv(vectors)).real

    root = power(b, 0.5)
    optimal = root @ power(root @ a @ root, -0.5) @ root
    assert torch.allclose(optimal @ a @ optimal.T, b, rtol=1e-9)  # it does carry a to b
    gap = torch.eye(6, dtype=DOUBLE) - optimal
    expected = float((gap @ a @ gap.T).trace())
    assert frechet_distance(zero, a, zero, b) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(zero, b, zero, a) == pytest.approx(expected, rel=1e-9)


def test_distance_of_a_set_to_itself_is_zero_even_if_it_is_flat(random):
    flat, mean = covariance(30, random, rank=3), torch.randn(30, generator=random, dtype=DOUBLE)
    assert 0 <= frechet_distance(mean, flat, mean, flat) < 1e-12 * float(flat.trace())
    assert frechet_distance(mean, flat, mean, 0 * flat) == pytest.approx(float(flat.trace()), rel=1e-12)


@pytest.mark.parametrize("rank", [5, 20])
def test_a_shift_of_a_flat_set_is_all_there_is(rank, random):
    """Of rank 20 in 256 dimensions: a square root of round-off in each of the others would hide the shift."""
    flat, shift = covariance(256, random, rank), torch.zeros(256, dtype=DOUBLE)
    shift[0] = 1e-2
    assert frechet_distance(shift, flat, 0 * shift, flat) == pytest.approx(1e-4, rel=1e-6)


def test_what_is_not_finite_has_no_distance(random):
    good, mean = covariance(16, random), torch.zeros(16, dtype=DOUBLE)
    for bad in (torch.nan, torch.inf):
        assert frechet_distance(mean, good * bad, mean, good).isnan()
        assert frechet_distance(mean + bad, good, mean, good).isnan()


def test_the_metric_is_the_distance_of_the_moments(digits, random):
    x, y = to_unit(digits[:300], DOUBLE), to_unit(digits[300:800], DOUBLE)
    pixels = lambda images: images.flatten(1)  # noqa: E731
    metric = FrechetDistance(pixels, 64, 300, normal_of_images(pixels, y.split(90)))
    for start in (70, 0, 210, 140, 280):
        metric.update(x[start : start + 70], start)
    expected = frechet_distance(x.flatten(1).mean(0), x.flatten(1).T.cov(), y.flatten(1).mean(0), y.flatten(1).T.cov())
    # pixels that are 0 in all digits make the covariances flat: 1e-8 is the root of round-off
    assert metric.compute() == pytest.approx(float(expected), rel=1e-7)
    # and in principal components of all directions it is the same: they are a rotation
    gaussian = GaussianDenoiser(estimate(digits), DOUBLE)
    turn = lambda images: (images.flatten(1) - gaussian.mean) @ gaussian.eigenvectors  # noqa: E731
    rotated = FrechetDistance(turn, 64, 300, normal_of_images(turn, [y]))
    rotated.update(x)
    assert rotated.compute() == pytest.approx(float(expected), rel=1e-7)


def test_the_metric_says_what_it_needs(digits):
    pixels = lambda images: images.flatten(1)  # noqa: E731
    metric = FrechetDistance(pixels, 64, 2, normal_of_images(pixels, [to_unit(digits)]))
    metric.update(to_unit(digits[:1]))
    with pytest.raises(ValueError, match="at least 2 images"):
        metric.compute()
    metric.update(to_unit(digits[:2]))
    with pytest.raises(ValueError, match="some of them twice"):
        metric.compute()
    bank = ProbeBank({"train": digits}, 8, [1.0], block=8, samples=1, sampler_sigmas=karras_sigmas(2))
    with pytest.raises(ValueError, match="at least 2 `samples`"):
        FrechetProbe(References(bank, digits, heldout=digits))


def test_a_feature_network_of_ones_own_gives_fid(tmp_path, monkeypatch, digits):
    """With the principal directions for features it is `frechet_pca`: 1,400 digits, 64 pixels, all directions."""
    (tmp_path / "own_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('turn', torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64)).Q)\n"
        "    def forward(self, x):\n"
        "        return x.double().flatten(1) @ self.turn\n"
        "def number(): return 3\n"
        "def flat(): return lambda x: x.flatten()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    keys = ["model.backbone=mlp", "model.channels=8", "train.kimg=0.05", "probes.draws=32"]
    keys += [
        "probes.samples=64",
        "probes.sampler_steps=3",
        "run.wandb=disabled",
        "run.pictures=none",
        f"run.root={tmp_path}",
    ]
    assert main([*keys, "probes.features=own_net:Net", "run.name=x"]) == 0
    values = last(tmp_path / "x")
    for suffix in ("", "_gaussian", "_train"):
        # a rotation in float64 of samples in float32
        assert values[f"samples/fid{suffix}"] == pytest.approx(values[f"samples/frechet_pca{suffix}"], rel=1e-6)
    assert values["samples/frechet_pca_train"] < values["samples/frechet_pca"]
    assert "Frechet distance (features)" in sys.modules["gaussbias.tables.summary"].summary(tmp_path / "x")
    for name, got in (("number", "3"), ("flat", r"\(128,\)")):
        with pytest.raises(
            UserError, match=rf"expected own_net:{name}\(\) to give features \(B, F\) of images, got {got}"
        ):
            load_features(f"own_net:{name}", digits[:5])
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(load_features("own_net:Net", digits, 1)(x), load_features("own_net:Net", digits, 1)(x))
    assert not torch.equal(load_features("own_net:Net", digits, 1)(x), load_features("own_net:Net", digits, 2)(x))


@pytest.mark.parametrize("flip", [False, True])
def test_the_callback_compares_samples_and_both_references_with_the_held_out_images(flip, digits):
    """Against covariances of NumPy's kind, in the leading directions by a decomposition of its own."""
    images, heldout, samples = digits[:500], digits[500:800], digits[800:840]
    every = torch.cat([images, mirror(images)]) if flip else images
    x = to_unit(every, DOUBLE).flatten(1)
    against = torch.cat([heldout, mirror(heldout)]) if flip else heldout
    training = torch.where(torch.arange(40)[:, None, None, None] % 2 == 0, images[:40], mirror(images[:40]))
    basis = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:64].T

    def distance(these):
        parts = [to_unit(part, DOUBLE).flatten(1) @ basis for part in (these, against)]
        return float(frechet_distance(*(f(part) for part in parts for f in (lambda p: p.mean(0), lambda p: p.T.cov()))))

    bank = ProbeBank({"train": images}, 8, [1.0], block=8, samples=40, sampler_sigmas=karras_sigmas(3), flip=flip)
    references = References(bank, images, heldout=heldout)
    instruments = Instruments(references, {"ema": [FrechetProbe(references)]})
    instruments.to(torch.device("cpu"))
    batch = bank.batch("samples", 0)

    def measured(found):
        instruments.reset()
        instruments.update(SampleValues(**vars(batch), samples=found, path=torch.empty(0)), None)
        return instruments.result().row

    row = measured(to_unit(samples))
    drawn = sample_gaussian(references.gaussian, batch.latents, batch.sigmas.tolist(), "heun")
    assert (
        {key: value for key, value in row.items() if not key.endswith("_se")}
        == {
            "samples/frechet_pca": pytest.approx(distance(samples), rel=1e-5),  # D_G's basis is float32
            "samples/frechet_pca_train": pytest.approx(distance(training if flip else images[:40]), rel=1e-5),
            "samples/frechet_pca_gaussian": pytest.approx(distance(drawn), rel=1e-5),
        }
    )
    assert len(set(row.values())) == 6
    # samples of a network that is lost are not numbers, and neither is their distance
    assert math.isnan(measured(to_unit(samples) * torch.nan)["samples/frechet_pca"])
