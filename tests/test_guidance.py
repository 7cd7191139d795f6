"""Classifier-free guidance, its linear term, and the posterior mixture of classes."""

import csv

import numpy as np
import pytest
import torch
from runs import SMALL
from scipy.stats import multivariate_normal
from test_labels import ByTable, data_of, measured

from gaussbias import backbones
from gaussbias.catalogue import GL_SCORE, guided_entry
from gaussbias.config import ModelConfig
from gaussbias.denoisers import (
    Denoiser,
    EDMDenoiser,
    GaussianDenoiser,
    GuidedDenoiser,
    MixedClasses,
    guided,
    unlabelled,
)
from gaussbias.denoisers.theories import mixture_of
from gaussbias.fit import main
from gaussbias.metrics.guidance import GuidanceTerm
from gaussbias.moments import estimate
from gaussbias.probes import build
from gaussbias.probes.compared import compared
from gaussbias.probes.cost import evaluations
from gaussbias.tables.guidance import guidance_rows


class Shifted(Denoiser):
    """`x / 2 + label`, and `x / 3` for none."""

    classes = 5

    def forward(self, x, sigma, labels=None):
        labels = torch.full((len(x),), -1) if labels is None else labels
        known = (labels >= 0)[:, None, None, None]
        return torch.where(known, x / 2 + labels[:, None, None, None], x / 3)


def test_guidance_is_its_formula_and_one_and_zero_are_its_ends():
    x, labels = torch.randn(4, 1, 3, 3), torch.tensor([0, 3, 4, 1])
    denoiser = Shifted()
    conditional, none = denoiser.given(labels)(x, 1.0), denoiser.given(-1)(x, 1.0)
    for weight in (0.0, 1.0, 2.5, -1.0):
        value = GuidedDenoiser(denoiser, weight).given(labels)(x, 1.0)
        assert torch.allclose(value, none + weight * (conditional - none), atol=1e-6)
    assert torch.equal(GuidedDenoiser(denoiser, 1).given(labels)(x, 1.0), conditional)
    assert torch.equal(GuidedDenoiser(denoiser, 0).given(labels)(x, 1.0), none)
    chosen = denoiser.given(2)
    assert torch.equal(guided(chosen, 1.0)(x, 1.0), chosen(x, 1.0))
    assert torch.equal(unlabelled(chosen)(x, 1.0), none)
    other = GaussianDenoiser(estimate(torch.randn(30, 1, 3, 3)))
    value = GuidedDenoiser(denoiser, 3, other).given(labels)(x, 1.0)
    assert torch.allclose(value, other(x, 1.0) + 3 * (conditional - other(x, 1.0)), atol=1e-5)
    denoiser.knows_none = False
    with pytest.raises(ValueError, match="cannot be told no class"):
        GuidedDenoiser(denoiser, 2)
    with pytest.raises(ValueError, match="from 0 to 4 but got -1"):
        denoiser.given(-1)


def test_the_mixture_of_classes_is_a_loop_over_them(digits):
    labels = torch.arange(300) % 3
    images = digits[:300, :, 2:5, 2:5]  # 9 numbers
    mixture = mixture_of(images, labels)
    denoiser = Shifted()
    mixed = MixedClasses(denoiser, mixture, [0, 2, 4])
    x, sigma = torch.randn(6, 1, 3, 3, dtype=torch.float64), torch.tensor([0.1, 0.3, 1.0, 3.0, 0.5, 10.0])
    for i in range(6):
        logits = []
        for c in range(3):
            basis = mixture.eigenvectors[c]
            covariance = (basis * mixture.eigenvalues[c]) @ basis.T + float(sigma[i]) ** 2 * torch.eye(9)
            density = multivariate_normal(mixture.means[c].numpy(), covariance.numpy())
            logits.append(np.log(float(mixture.weights[c])) + density.logpdf(x[i].flatten().numpy()))
        weights = np.exp(logits - np.max(logits))
        weights /= weights.sum()
        assert torch.allclose(mixture.posterior(x, sigma)[i], torch.from_numpy(weights), atol=1e-9)
        each = [denoiser.given(c)(x[i : i + 1], float(sigma[i]))[0] for c in (0, 2, 4)]
        by_hand = sum(w * value for w, value in zip(weights, each, strict=True))
        assert torch.allclose(mixed(x, sigma)[i], by_hand, atol=1e-6)


def test_the_mixture_of_the_gaussians_of_classes_is_that_of_one_gaussian_mixture(digits):
    labels = torch.arange(300) % 2
    images = digits[:300, :, 1:7, 1:7]
    mixture = mixture_of(images, labels)

    class Component(Denoiser):
        def __init__(self, place):
            super().__init__()
            self.place = place

        def forward(self, x, sigma):
            lam, basis = mixture.eigenvalues[self.place], mixture.eigenvectors[self.place]
            along = (x.flatten(1).double() - mixture.means[self.place]) @ basis
            clean = mixture.means[self.place] + (along * lam / (lam + float(sigma) ** 2)) @ basis.T
            return clean.view_as(x).to(x.dtype)

    table = ByScalar([Component(place) for place in range(2)])
    x = torch.randn(5, 1, 6, 6)
    for sigma in (0.1, 1.0, 20.0):
        assert torch.allclose(MixedClasses(table, mixture, [0, 1])(x, sigma), mixture(x, sigma), atol=1e-5)
    with pytest.raises(ValueError, match="Expected 2 `classes` but got 3"):
        MixedClasses(table, mixture, [0, 1, 2])


class ByScalar(ByTable):
    """A denoiser for each class, at one noise level."""

    def forward(self, x, sigma, labels):
        return self.members[int(labels[0])](x, sigma)


class Gaussians(ByTable):
    """The Gaussian of each class, and for none that of all images."""

    def forward(self, x, sigma, labels):
        each = torch.stack([member(x, sigma) for member in self.members])
        return each[labels, torch.arange(len(x))]  # the last one is none


@pytest.fixture(scope="module")
def labels():
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().target).long()


def gaussians(data):
    members = [GaussianDenoiser(estimate(data.images[data.labels == label])) for label in range(10)]
    table = Gaussians([*members, GaussianDenoiser(estimate(data.images))])
    table.classes = 10
    return table


def test_gaussians_explain_all_of_their_own_guidance(digits, labels):
    data = data_of(digits, labels, [2, 5], samples=8)
    table = gaussians(data)
    instruments = compared(data.set, estimate(data.images)).instruments(
        lambda references: {"ema": build(references, guidance=[1.0, 0.0, 2.0])}
    )
    values = measured(instruments, table)
    for pool in ("train", "heldout"):
        assert values[f"guidance/explained/{pool}"].value == pytest.approx(1, abs=1e-6)
        parts = [values[f"guidance/{part}/{pool}"].value for part in ("shift", "positive", "negative")]
        assert sum(parts) == pytest.approx(1, abs=1e-5)
        assert min(parts) > 0
    # by hand, at one level
    sigma = data.bank.sigmas[2]
    squares, shifts, positive = [], [], []
    for label, bank in data.bank.banks.items():
        own, whole = table.members[label], table.members[10]
        filters = [
            (g.eigenvectors * (g.eigenvalues / (g.eigenvalues + sigma**2))) @ g.eigenvectors.T for g in (own, whole)
        ]
        eigenvalues, basis = torch.linalg.eigh((filters[0] - filters[1]).double())
        kept = (basis * eigenvalues.clamp(min=0)) @ basis.T
        for number in range(bank.blocks):
            x0, eps = bank.draw("train", number)
            x = (x0 + sigma * eps).flatten(1).double()
            g = (own((x0 + sigma * eps), sigma) - whole((x0 + sigma * eps), sigma)).flatten(1).double()
            squares.append((label, g.square().mean()))
            shift = own.mean.double() - whole.mean - filters[1].double() @ (own.mean - whole.mean).double()
            shifts.append((label, (g * shift).mean()))
            positive.append((label, (g * ((x - own.mean) @ kept)).mean()))
    end = f"train/sigma_{sigma:.3g}".replace(".", "p")
    share = data.bank.shares

    def over(values):
        return {label: sum(v for c, v in values if c == label) for label in share}

    for name, part in (("shift", shifts), ("positive", positive)):
        by_hand = sum(share[c] * float(over(part)[c] / over(squares)[c]) for c in share)
        assert values[f"guidance/{name}/{end}"].value == pytest.approx(by_hand, rel=1e-4)
    # w = 1 is no guidance, bit for bit; D_G's guided samples are those of the table
    row = values.row
    same = ("gl_score", "memorized_fraction_high")
    for name in (*(f"generalization/{name}" for name in same), "samples/frechet_pca", "novelty/train_share"):
        assert row[f"guided_1/{name}"] == row[name]
    for weight in (0, 1, 2):
        assert row[f"guided_{weight}/samples/gaussian_rmse"] < 1e-4
    assert row["guided_2/generalization/gl_score"] != row["generalization/gl_score"]


def test_what_is_given_to_a_guided_network_is_counted(digits, labels):
    """Beforehand by a formula, and while it is measured."""
    data = data_of(digits, labels, [1, 7], samples=20, points=["trajectory"])
    denoiser = EDMDenoiser(backbones.build(ModelConfig(channels=8), (1, 8, 8), 10), 0.5, 10)
    given = []
    denoiser.register_forward_hook(lambda module, x, _: given.append(len(x[0])))
    for weights in ((), (0.0, 1.0, 3.0)):
        given.clear()
        instruments = compared(data.set, estimate(data.images)).instruments(
            lambda references, weights=weights: {"ema": build(references, guidance=weights)}
        )
        measured(instruments, denoiser)
        assert sum(given) == evaluations(data.bank, guidance=weights)


def test_a_term_without_size_has_no_shares():
    metric = GuidanceTerm(3, 2)
    random = torch.Generator().manual_seed(0)
    parts = {name: torch.randn(2, 1, 4, generator=random) for name in ("shift", "positive", "negative")}
    for block in range(3):
        term = torch.randn(2, 5, 4, generator=random)
        term[0] = 0
        metric.update(term, parts, block)
    metric.compute()
    assert metric.estimates["explained"].defined.tolist() == [False, True]
    assert metric.estimates["norm"].defined.tolist() == [True, True]


def test_guided_samples_are_a_row_each():
    entries = [guided_entry(GL_SCORE, weight) for weight in (4.0, 0.5)]
    assert [entry.name for entry in entries] == [
        "guided_4/generalization/gl_score",
        "guided_0p5/generalization/gl_score",
    ]
    values = {"generalization/gl_score": 0.6, **{entry.name: 0.7 for entry in entries}}
    head, rows = guidance_rows(entries, lambda name: str(values.get(name, "")))
    assert head == ["guidance", "GL score"]
    assert rows == [["w = 0.5", "0.7"], ["w = 1", "0.6"], ["w = 4", "0.7"]]
    assert guidance_rows([GL_SCORE], str) == ([], [])


def test_a_run_with_guidance_logs_it(tmp_path, capsys):
    keys = [*SMALL, "data.n_train=120", "data.labels=true", "data.classes=[2,5]"]
    keys += ["model.label_dropout=0.2", "probes.guidance=[0,3]", "data.n_heldout=60"]
    keys += ["train.kimg=0.32", "probes.first_kimg=0.32", f"run.root={tmp_path}", "run.name=a", "run.pictures=end"]
    assert main(keys) == 0
    said = capsys.readouterr().out
    assert "w = 3" in said
    assert "guidance on held-out images" in said
    with (tmp_path / "a" / "history.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["guided_3/generalization/gl_score"]) > 0
    assert float(row["guidance/norm/heldout"]) >= 0
    assert (tmp_path / "a" / "figures" / "samples.png").exists()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["probes.guidance=[2]"], "probes.guidance: expected none with data.labels=false"),
        (["data.labels=true", "probes.guidance=[2]"], "probes.guidance: expected model.label_dropout above 0"),
        (["data.labels=true", "probes.guidance=[2,2]"], "probes.guidance: expected different finite weights"),
    ],
)
def test_mistakes_are_one_line(keys, text, tmp_path, capsys):
    assert main([*SMALL, f"run.root={tmp_path}", "run.name=a", *keys]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1
