import threading

import numpy as np
import pytest
import torch

from gaussbias.data.images import fingerprint, mirror, to_unit
from gaussbias.data.sources import gaussian, gaussian_moments
from gaussbias.fit import main
from gaussbias.moments import Eigenmoments, Moments, estimate, project, read_or_estimate

EPS = 2.3e-16


def pixels(n, shape, random):
    """Images with a spectrum, and with the extreme values 0 and 255."""
    d = int(np.prod(shape))
    mix = torch.randn(d, d, generator=random) / d**0.5
    images = (torch.randn(n, d, generator=random) @ mix * 60 + 120).round().clamp(0, 255).to(torch.uint8)
    images[0, :2], images[1, :2] = 0, 255
    return images.view(n, *shape)


def integer_moments(images):
    """Mean and covariance from exact integer sums, in Python's integers and fractions of them."""
    values = images.flatten(1).numpy().astype(np.int64)
    n, total, outer = len(values), values.sum(0), values.T @ values
    covariance = (n * outer - np.outer(total, total)).astype(object)
    mean = np.array([float(t) / n / 127.5 - 1 for t in total])
    return mean, np.array([[int(c) / n**2 / 127.5**2 for c in row] for row in covariance])


def dense(moments):
    return (moments.eigenvectors * moments.eigenvalues) @ moments.eigenvectors.T


@pytest.mark.parametrize("n", [3000, 1025])
def test_sums_over_pixels_are_exact(n, random):
    images = pixels(n, (3, 4, 4), random)
    images[:1100] = torch.where(torch.rand(images[:1100].shape, generator=random) < 0.9, 0, images[:1100])
    moments = Moments((3, 4, 4), pixels=True)
    for batch in images.split(700):
        moments.update(batch)
    values = images.flatten(1).long() - 128
    assert torch.equal(moments.outer, (values.T @ values).double())
    assert torch.equal(moments.total, values.sum(0).double())


def test_sums_by_blocks_of_columns_are_exact(random):
    """1,617 pixels: two whole blocks and a narrow one; the lower triangle is the mirror of the upper."""
    images = torch.randint(0, 256, (1500, 3, 7, 77), generator=random, dtype=torch.uint8)
    images[:700] = 255
    moments = Moments((3, 7, 77), pixels=True)
    for batch in images.split(900):
        moments.update(batch)
    values = images.flatten(1).double() - 128  # sums of 1,500 products of 2^14 are exact in float64
    assert torch.equal(moments.outer.triu(), (values.T @ values).triu())
    _, covariance = moments.compute()
    assert torch.equal(covariance, covariance.T)
    expected = (values.T @ values / 1500 - torch.outer(values.mean(0), values.mean(0))) / 127.5**2
    assert (covariance - expected).abs().max() < 8 * EPS
    assert torch.equal(moments.compute()[1], covariance)  # computing changes nothing


def test_more_than_1024_images_at_once_are_exact():
    # (1 - 128)^2 = 16,129 is odd: 1,501 of them have a sum above 2^24 that float32 does not have
    moments = Moments((1, 1, 1), pixels=True)
    moments.update(torch.ones(1501, 1, 1, 1, dtype=torch.uint8))
    assert moments.outer.item() == 1501 * 127**2


def test_mean_and_covariance_match_integer_arithmetic(random):
    images = pixels(3000, (3, 4, 4), random)
    mean, covariance = integer_moments(images)
    metric = Moments((3, 4, 4), pixels=True)
    metric.update(images)
    got_mean, got_covariance = metric.compute()
    # one rounding for each of a few operations on numbers up to 1
    assert np.abs(got_mean.numpy() - mean).max() < 8 * EPS
    assert np.abs(got_covariance.numpy() - covariance).max() < 8 * EPS


def test_floating_point_images_match_numpy(random):
    images = torch.randn(500, 1, 4, 5, generator=random).double() * 3 + 1
    moments = estimate(images)
    values = images.flatten(1).numpy()
    assert np.allclose(moments.mean.numpy(), values.mean(0), rtol=0, atol=1e-14)
    assert np.allclose(dense(moments).numpy(), np.cov(values.T, bias=True), rtol=0, atol=1e-13)


def test_moments_of_two_halves_add_up_to_those_of_the_whole(random):
    images = pixels(900, (1, 5, 4), random)
    parts = [Moments((1, 5, 4), pixels=True) for _ in range(3)]
    for part, some in zip(parts, (images, images[:311], images[311:]), strict=True):
        part.update(some)
    whole, first, second = parts
    for state in ("count", "total", "outer"):
        assert torch.equal(getattr(whole, state), getattr(first, state) + getattr(second, state))


def test_an_iterable_of_batches_gives_the_same_as_a_tensor(random):
    images = pixels(300, (1, 4, 4), random)
    assert torch.equal(estimate(images.split(77)).eigenvalues, estimate(images).eigenvalues)


@pytest.mark.parametrize("n", [2, 20, 47, 48])
def test_fewer_images_than_pixels_give_the_same_covariance_by_the_gram_matrix(n, random):
    images = pixels(n, (3, 4, 4), random)
    moments = estimate(images)
    _, covariance = integer_moments(images)
    assert moments.eigenvalues.shape == (n - 1,)
    assert np.abs(dense(moments).numpy() - covariance).max() < 1e-14
    identity = moments.eigenvectors.T @ moments.eigenvectors
    assert (identity - torch.eye(n - 1)).abs().max() < 1e-13
    assert (moments.eigenvalues.diff() <= 0).all()


def test_duplicates_lower_the_rank(random):
    images = pixels(10, (1, 4, 4), random)
    assert estimate(torch.cat([images, images[:3]])).eigenvalues.shape == (9,)


@pytest.mark.parametrize("n", [9, 400])
def test_mirrored_copies_count_as_images(n, random):
    images = pixels(n, (2, 3, 4), random)
    flipped, both = estimate(images, flip=True), estimate(torch.cat([images, mirror(images)]))
    assert flipped.count == both.count == 2 * n
    assert (flipped.mean - both.mean).abs().max() < 4 * EPS
    assert (dense(flipped) - dense(both)).abs().max() < 1e-14


def test_no_variance_is_negative_and_constant_pixels_are_fine(digits):
    moments = estimate(digits)
    assert (moments.eigenvalues >= 0).all()
    assert moments.eigenvalues.shape == (64,)
    assert moments.eigenvalues[-1] < 1e-12  # some pixels at the border never change
    assert moments.effective_rank == pytest.approx(
        float(moments.eigenvalues.sum() ** 2 / (moments.eigenvalues**2).sum()), rel=1e-12
    )


def test_the_gaussian_source_has_its_known_moments():
    mean, eigenvalues, eigenvectors = gaussian_moments()
    images = gaussian().images
    moments = estimate(images)
    assert (eigenvectors.T @ eigenvectors - torch.eye(192)).abs().max() < 1e-13
    # standard error of a mean: sqrt(lam/n); of a variance: lam sqrt(2/n)
    along = (moments.mean - mean) @ eigenvectors
    assert (along / (eigenvalues / len(images)).sqrt()).abs().max() < 4.5
    variances = ((images.flatten(1).double() - mean) @ eigenvectors).square().mean(0)
    assert ((variances / eigenvalues - 1) / (2 / len(images)) ** 0.5).abs().max() < 4.5


def test_saved_moments_are_used_only_for_the_same_images(tmp_path, digits, random):
    path = tmp_path / "moments.safetensors"
    name = fingerprint(digits[:100], False)
    again = read_or_estimate(path, digits[:100], False, name)
    assert not path.exists()
    assert torch.equal(again.eigenvalues, estimate(digits[:100]).eigenvalues)
    again.save(path, name)
    assert (again.count, again.shape) == (100, (1, 8, 8))
    assert Eigenmoments.load(path, fingerprint(digits[:100], True)) is None
    assert Eigenmoments.load(path, fingerprint(digits[1:101], False)) is None
    marked = Eigenmoments(again.mean, again.eigenvalues * 2, again.eigenvectors, 100, (1, 8, 8))
    marked.save(path, name)
    assert torch.equal(read_or_estimate(path, digits[:100], False, name).eigenvalues, marked.eigenvalues)  # it is read
    assert read_or_estimate(path, digits[:70], False, fingerprint(digits[:70], False)).count == 70
    assert Eigenmoments.load(path).count == 100
    path.write_bytes(path.read_bytes()[:100])
    assert Eigenmoments.load(path) is None


def test_projection_has_the_pools_second_moments(digits):
    for train in (digits[:1000], digits[:30]):  # full rank and not
        moments, pool = estimate(train), to_unit(digits[1000:1400].flatten(1), torch.float64)
        seen = project(moments, digits[1000:1400])
        basis, covariance = moments.eigenvectors, torch.from_numpy(np.cov(pool.numpy().T, bias=True))
        assert torch.allclose(seen.variances, (basis.T @ covariance @ basis).diagonal(), atol=1e-13)
        assert torch.allclose(seen.offset, basis.T @ (pool.mean(0) - moments.mean), atol=1e-13)
        outside = torch.eye(64, dtype=torch.float64) - basis @ basis.T
        assert seen.variance_outside == pytest.approx(float((outside @ covariance).trace()), abs=1e-12)
        assert seen.offset_outside == pytest.approx(
            float((outside @ (pool.mean(0) - moments.mean)).square().sum()), abs=1e-12
        )


@pytest.mark.parametrize("n", [1000, 20])
def test_projection_counts_mirrored_copies(n, digits):
    moments = estimate(digits[:n], flip=True)
    flipped, both = project(moments, digits[1000:1200], flip=True), digits[1000:1200]
    both = project(moments, torch.cat([both, mirror(both)]))
    assert torch.allclose(flipped.variances, both.variances, atol=1e-14)
    assert torch.allclose(flipped.offset, both.offset, atol=1e-14)
    assert flipped.variance_outside == pytest.approx(both.variance_outside, abs=1e-12)


def test_wrong_images_are_refused(digits):
    moments = Moments((1, 8, 8), pixels=True)
    with pytest.raises(ValueError, match=r"Expected uint8 images of shape \(1, 8, 8\)"):
        moments.update(digits.float())
    with pytest.raises(ValueError, match="at least 2"):
        estimate(digits[:1])
    with pytest.raises(ValueError, match="at least 2"):
        estimate([])


def test_matrices_that_no_library_decomposes_are_refused(digits, monkeypatch):
    monkeypatch.setattr("gaussbias.moments.LARGEST_MATRIX", 63)
    assert len(estimate(digits[:63]).eigenvalues) <= 62  # by products of images
    with pytest.raises(ValueError, match=r"Expected at most 63 images, or numbers in an image, .* but got 64 of 64"):
        estimate(digits[:64])
    with pytest.raises(ValueError, match="but got 64 of 64"):
        estimate(digits[:32], flip=True)


def test_ranks_wait_for_the_one_that_estimates(digits, tmp_path, monkeypatch):
    """And estimate themselves if it does not come to that."""
    file, expected = tmp_path / "moments.safetensors", estimate(digits[:100])
    threading.Timer(0.5, lambda: expected.save(file, "these")).start()
    with monkeypatch.context() as patch:
        patch.setattr("gaussbias.moments.estimate", None)
        found = read_or_estimate(file, digits[:100], False, "these", wait=True)
    assert torch.equal(found.eigenvalues, expected.eigenvalues)
    monkeypatch.setattr("gaussbias.moments.PATIENCE", 0.3)
    found = read_or_estimate(file, digits[:100], False, "others", wait=True)
    assert torch.equal(found.eigenvalues, expected.eigenvalues)


def test_modules_that_have_matrices_of_pixels_refuse_images_that_are_too_large(tmp_path, capsys, monkeypatch):
    for module in ("modules", "data.images"):
        monkeypatch.setattr(f"gaussbias.{module}.LARGEST_MATRIX", 63)
    assert main(["module.kind=gaussian", "run.wandb=disabled", "run.pictures=none", f"run.root={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "data.resolution: expected images of at most 63 numbers for module.kind=gaussian" in said
    assert "got 64; set data.resolution=7 or less" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*/config.yaml"))


def test_sums_that_were_used_up_begin_again(digits):
    moments = Moments((1, 8, 8), pixels=True)
    for images in (digits[:100], digits[100:300]):
        moments.update(images)
        assert torch.equal(moments.eigenmoments().eigenvalues, estimate([images]).eigenvalues)
    with pytest.raises(ValueError, match="Expected images before"):
        moments.compute()
