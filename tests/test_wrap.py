"""Networks in memory as denoisers, against what each kind predicts of images and noise that are known."""

import math
import re

import pytest
import torch

import gaussbias
from gaussbias.denoisers import DiscreteDenoiser, GaussianDenoiser
from gaussbias.moments import estimate
from gaussbias.noise import karras_sigmas
from gaussbias.sampling import sample

ABAR = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)


def pair(seed=0, count=4):
    x0, eps = torch.randn(2, count, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x0, eps


class Knowing:
    """A network that gives what an ideal one of its kind predicts for one clean image, and keeps what it was told.

    It sees x_t and the time alone, and knows x0.
    """

    def __init__(self, x0, predict):
        self.x0, self.predict, self.told = x0, predict, []

    def __call__(self, noisy, told):
        self.told.append(told)
        return self.predict(noisy, told.view(-1, 1, 1, 1), self.x0)


def flow(noisy, t, x0):
    return (noisy - (1 - t) * x0) / t - x0


def backwards(noisy, t, x0):
    return x0 - (noisy - t * x0) / (1 - t)


def preserving(predict):
    """Of steps with `ABAR`."""

    def of_step(noisy, t, x0):
        a = ABAR[t.long()].sqrt()
        b = (1 - ABAR[t.long()]).sqrt()
        return predict(a, b, x0, (noisy - a * x0) / b)

    return of_step


KINDS = {
    "flow": (flow, {}),
    "flow, backwards": (backwards, {"clean_at": 1}),
    "epsilon": (preserving(lambda a, b, x0, eps: eps), {"alphas_cumprod": ABAR}),
    "v": (preserving(lambda a, b, x0, eps: a * eps - b * x0), {"alphas_cumprod": ABAR}),
    "x0": (preserving(lambda a, b, x0, eps: x0), {"alphas_cumprod": ABAR}),
    "denoiser": (lambda noisy, sigma, x0: x0, {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_network_that_knows_the_image_denoises_to_it(name):
    """In float64, at noise levels that steps have: D = x0, and what the network saw is x_t of its own process."""
    predict, arguments = KINDS[name]
    x0, eps = pair()
    denoiser = gaussbias.wrap(Knowing(x0, predict), name.split(",")[0], **arguments)
    for step in (5, 300, 700):
        sigma = float(((1 - ABAR[step]) / ABAR[step]).sqrt())
        torch.testing.assert_close(denoiser(x0 + sigma * eps, sigma), x0, rtol=0, atol=1e-9 * max(1, sigma))


@pytest.mark.parametrize("clean_at", [0, 1])
def test_what_a_flow_is_given_is_a_point_of_its_path(clean_at):
    x0, eps = pair()
    seen = []
    denoiser = gaussbias.wrap(
        lambda x, t: seen.append((x, t)) or torch.zeros_like(x), "flow", clean_at=clean_at, scale=1000
    )
    denoiser(x0 + 3 * eps, 3.0)
    torch.testing.assert_close(seen[0][0], 0.25 * x0 + 0.75 * eps)
    torch.testing.assert_close(seen[0][1], torch.full((4,), 250.0 if clean_at else 750.0, dtype=torch.float64))
    assert denoiser.effective_sigma(3.0) == 3.0
    assert denoiser.effective_sigma(80.0) == pytest.approx(80.0, rel=1e-5)
    assert denoiser.sigma_range == (0.0, math.inf)


def test_the_velocity_of_a_gaussian_is_its_denoiser():
    """The exact velocity field of normal data, from conditional means of the path itself, gives D_G.

    For x0 ~ N(mu, S), x_t = (1 - t) x0 + t eps: E[eps - x0 | x_t] = (t - (1 - t) S) (x_t - (1 - t) mu) / v - mu with
    v = (1 - t)^2 S + t^2, in one dimension for each pixel.
    """
    scale = torch.linspace(0.2, 2, 32, dtype=torch.float64).view(2, 4, 4)
    mean = torch.linspace(-1, 1, 32, dtype=torch.float64).view(2, 4, 4)

    def velocity(x, t):
        t = t.view(-1, 1, 1, 1)
        total = (1 - t) ** 2 * scale**2 + t**2
        return (t - (1 - t) * scale**2) * (x - (1 - t) * mean) / total - mean

    denoiser = gaussbias.wrap(velocity, "flow")
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for sigma in (0.002, 0.5, 80.0):
        expected = mean + scale**2 / (scale**2 + sigma**2) * (x - mean)
        torch.testing.assert_close(denoiser(x, sigma), expected, rtol=1e-9, atol=1e-9)


def test_time_may_be_any_function_of_the_noise_level():
    """As v-diffusion tells it: t = 2 atan(sigma) / pi, with a = cos, b = sin."""
    x0, eps = pair()

    def v(noisy, t, x0):
        a, b = (t * math.pi / 2).cos(), (t * math.pi / 2).sin()
        return a * (noisy - a * x0) / b - b * x0

    denoiser = gaussbias.wrap(Knowing(x0, v), "v", time=lambda sigma: sigma.atan() * 2 / math.pi)
    for sigma in (0.01, 1.0, 50.0):
        torch.testing.assert_close(denoiser(x0 + sigma * eps, sigma), x0, rtol=0, atol=1e-9 * max(1, sigma))


def test_edm_is_what_load_denoiser_makes_of_it():
    torch.manual_seed(0)
    network = torch.nn.Conv2d(2, 2, 3, padding=1)
    denoiser = gaussbias.wrap(lambda x, t: network(x) * (1 + t.view(-1, 1, 1, 1)), "edm", sigma_data=0.3)
    x = torch.randn(2, 2, 4, 4)
    total = 0.7**2 + 0.3**2
    raw = network(x / math.sqrt(total)) * (1 + math.log(0.7) / 4)
    torch.testing.assert_close(denoiser(x, 0.7), 0.09 / total * x + 0.7 * 0.3 / math.sqrt(total) * raw)


class Steps(torch.nn.Module):
    """A wrapper of numbered steps as k-diffusion has them: D itself, with its noise levels as `sigmas`."""

    def __init__(self, network, quantize):
        super().__init__()
        self.network, self.quantize = network, quantize
        self.register_buffer("sigmas", ((1 - ABAR) / ABAR).sqrt().float())

    def forward(self, x, sigma):
        distances = sigma.log() - self.sigmas.log()[:, None]
        if self.quantize:
            step = distances.abs().argmin(0)
        else:
            low = distances.ge(0).cumsum(0).argmax(0).clamp(max=998)
            between = self.sigmas.log()[low], self.sigmas.log()[low + 1]
            step = low + (sigma.log() - between[0]) / (between[1] - between[0])
        sides = sigma.view(-1, 1, 1, 1)
        return x - sides * self.network(x / (sides**2 + 1).sqrt(), step)


@pytest.mark.parametrize("quantize", [False, True])
def test_wrappers_of_numbered_steps_have_their_levels(quantize):
    """The range is that of the steps; those that round say to which level, as k-diffusion's do in the logarithm."""
    sigmas = ((1 - ABAR) / ABAR).sqrt()
    denoiser = gaussbias.wrap(Steps(lambda x, t: 0.1 * x + t.view(-1, 1, 1, 1), quantize), "denoiser")
    plain = DiscreteDenoiser(Adding(), ABAR)
    assert denoiser.sigma_range == pytest.approx((float(sigmas[0]), float(sigmas[-1])), rel=1e-6)
    with pytest.raises(ValueError, match="Expected `sigma` from"):
        denoiser(torch.zeros(1, 2, 4, 4), 0.002)
    x = torch.randn(2, 2, 4, 4)
    between = float((sigmas[400] * sigmas[401]).sqrt()) * 1.0001
    told = denoiser.effective_sigma(between)
    assert told == pytest.approx(float(sigmas[401]) if quantize else between, rel=1e-6)
    if not quantize:
        torch.testing.assert_close(denoiser(x, between), plain(x, between), rtol=1e-4, atol=1e-3)


class Adding(torch.nn.Module):
    def forward(self, x, t):
        return 0.1 * x + t.view(-1, 1, 1, 1)


class Labelled(torch.nn.Module):
    """Says which labels it was called with."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, x, sigma, labels):
        return self.weight * labels.view(-1, 1, 1, 1).to(x.dtype).expand_as(x)


def test_labels_reach_the_network_as_numbers():
    """-1 is no class, which this network calls 3; one that has no such label asks for labels."""
    x = torch.zeros(3, 1, 2, 2)
    denoiser = gaussbias.wrap(Labelled(), "denoiser", classes=3, null_label=3)
    given = denoiser.given(torch.tensor([2, 0, -1]))(x, 1.0)
    assert given[:, 0, 0, 0].tolist() == [2, 0, 3]
    assert denoiser(x, 1.0)[:, 0, 0, 0].tolist() == [3, 3, 3]
    other = gaussbias.wrap(Labelled(), "denoiser", classes=3)
    with pytest.raises(ValueError, match="Expected `labels` from 0 to 2"):
        other.given(-1)
    with pytest.raises(ValueError, match="Expected `labels`, from 0 to 2"):
        other(x, 1.0)
    with pytest.raises(ValueError, match="Expected `labels` from 0 to 2"):
        other(x, 1.0, torch.tensor([1, 5, -1]))
    guided = sample(denoiser, torch.randn(2, 1, 2, 2), [2.0, 1.0], labels=torch.tensor([1, 2]), guidance=2.0)
    torch.testing.assert_close(guided[:, 0, 0, 0], torch.tensor([-1.0, 1.0]))  # 3 + 2 (label - 3), the last step's D


def test_a_network_of_bfloat16_is_called_in_it_and_the_rest_is_not():
    network = torch.nn.Conv2d(1, 1, 1).to(torch.bfloat16)
    denoiser = gaussbias.wrap(lambda x, t: network(x.bfloat16()), "flow")
    module = gaussbias.wrap(OnlyImages(network), "flow")
    x = torch.randn(2, 1, 4, 4)
    assert module(x, 0.5).dtype == torch.float32
    torch.testing.assert_close(module(x, 0.5), denoiser(x, 0.5))


class OnlyImages(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, t):
        assert t.dtype == torch.float32  # bfloat16 has two digits, too few for a time
        return self.network(x)


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("rectified", {}, "Expected `kind` to be one of flow, epsilon, v, x0, edm, denoiser but got rectified."),
        ("v", {}, "Expected `alphas_cumprod` or `time` with kind v but got neither."),
        ("v", {"alphas_cumprod": ABAR, "time": torch.log}, "but got both."),
        ("flow", {"alphas_cumprod": ABAR}, "Expected no `alphas_cumprod` with kind flow"),
        ("edm", {"scale": 1000}, "Expected no `scale` with kind edm"),
        ("flow", {"sigma_data": 1.0}, "Expected no `sigma_data` with kind flow"),
        ("flow", {"clean_at": 2}, "Expected `clean_at` to be 0 or 1 but got 2."),
        ("edm", {"null_label": 3}, "Expected no `null_label` with a network without classes"),
        ("epsilon", {"alphas_cumprod": ABAR.flip(0)}, "Expected `alphas_cumprod` to descend"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(kind, arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        gaussbias.wrap(lambda x, t: x, kind, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [(80.0, 0.002), (1e-4, 1.0), (1.0, 1000.0)])
def test_a_range_of_noise_levels_lies_within_those_of_the_steps(given):
    with pytest.raises(ValueError, match=r"`sigma_range` to be two noise levels, ascending, from 0\.01 to 157"):
        gaussbias.wrap(lambda x, t: x, "epsilon", alphas_cumprod=ABAR, sigma_range=given)
    assert gaussbias.wrap(lambda x, t: x, "flow", sigma_range=(0.01, 50.0)).sigma_range == (0.01, 50.0)


def test_a_ruler_says_before_it_measures_what_cannot_be():
    images = torch.zeros(10, 1, 2, 2).uniform_()
    ruler = gaussbias.Ruler(images, images, draws=32, sigmas=[1.0], samples=16)
    called = []
    denoiser = gaussbias.wrap(lambda x, t: called.append(1) or x, "epsilon", alphas_cumprod=ABAR)
    with pytest.raises(ValueError, match=r"takes noise levels of 0.01 to 157.* give `sigmas` and `sampler_sigmas`"):
        ruler(denoiser)
    assert not called


def test_times_of_half_precision_keep_their_digits():
    """Also with images in float64: 820 is the nearest number of bfloat16 to 818.7."""
    network = OnlyImages(torch.nn.Conv2d(1, 1, 1).to(torch.bfloat16))
    told = []
    network.register_forward_pre_hook(lambda module, given: told.append(given[1]))
    gaussbias.wrap(network, "epsilon", alphas_cumprod=ABAR)(torch.zeros(1, 1, 4, 4, dtype=torch.float64), 30.0)
    assert told[0].dtype == torch.float32
    assert float(told[0]) != 820


def test_steps_follow_a_network_to_another_device():
    """On the meta device, as on a GPU: the noise levels of the steps go where the images are."""
    denoiser = gaussbias.wrap(lambda x, t: x, "epsilon", alphas_cumprod=ABAR)
    assert denoiser.time(torch.ones(3, device="meta")).device.type == "meta"


def test_an_output_of_another_shape_is_said():
    for output in (torch.zeros(2, 1, 4, 3), torch.zeros(2), (torch.zeros(2, 1, 4, 4),)):
        with pytest.raises(ValueError, match="Expected the network to give a tensor of shape"):
            gaussbias.wrap(lambda x, t, output=output: output, "flow")(torch.zeros(2, 1, 4, 4), 1.0)


def test_a_wrapped_flow_is_measured_like_any_denoiser():
    """A Ruler's values of D_G, written as a flow, are those of D_G."""
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    gaussian = GaussianDenoiser(estimate(images))

    def velocity(x, t):
        t = t.view(-1, 1, 1, 1)
        denoised = gaussian(x / (1 - t), (t / (1 - t)).flatten())
        return (x - denoised) / t

    ruler = gaussbias.Ruler(images[:30], images[30:], draws=32, sigmas=karras_sigmas(4, 0.02, 20), samples=16)
    flow, plain = ruler(gaussbias.wrap(velocity, "flow")), ruler(gaussian)
    names = ("denoising/mse/heldout", "generalization/gl_score", "gaussian/rmse/train", "samples/gaussian_cosine")
    for name in names:
        assert flow.row[name] == pytest.approx(plain.row[name], rel=1e-4, abs=1e-5), name
