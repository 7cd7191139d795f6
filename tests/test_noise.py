import pytest
import torch

from gaussbias.noise import check_sigmas, in_band, karras_sigmas, sigma_name, training_sigmas

GRID = [80, 42.415189, 21.108677, 9.723201, 4.066124, 1.501742, 0.469979, 0.116639, 0.020435, 0.002]
NAMES = ["80", "42p4", "21p1", "9p72", "4p07", "1p5", "0p47", "0p117", "0p0204", "0p002"]


def test_the_grid_is_edms():
    assert karras_sigmas(10) == pytest.approx(GRID, rel=1e-4)
    assert [sigma_name(sigma) for sigma in karras_sigmas(10)] == NAMES


def test_the_intermediate_band_is_from_a_tenth_to_twenty():
    assert in_band(karras_sigmas(10)) == [3, 4, 5, 6, 7]
    assert in_band([0.01, 50.0]) == []


def test_training_sigmas_are_log_normal():
    assert training_sigmas(torch.tensor([0.0, 1.0, -2.0]), -1.2, 0.5).log().tolist() == pytest.approx(
        [-1.2, -0.7, -2.2]
    )


def test_levels_with_one_name_are_refused():
    check_sigmas(karras_sigmas(40))
    for bad in ([1.0, 1.001], [1.0, 1.0], [0.0], [-1.0], [float("inf")]):
        with pytest.raises(ValueError, match="expected"):
            check_sigmas(bad)
