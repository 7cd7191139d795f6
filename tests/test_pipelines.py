"""diffusers' folders as denoisers, against values by hand from the U-Net's output."""

import json
import shutil

import diffusers
import pytest
import torch
from diffusers import (
    CMStochasticIterativeScheduler,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    LCMScheduler,
    ScoreSdeVeScheduler,
    TCDScheduler,
    UnCLIPScheduler,
    UNet2DModel,
)

import gaussbias
from gaussbias.checkpoints import load
from gaussbias.checkpoints.diffusers_networks import ImageNetwork
from gaussbias.checkpoints.pipelines import SCHEDULERS
from gaussbias.denoisers.discrete import DiscreteDenoiser
from gaussbias.system.errors import UserError

SIZES = {"sample_size": 8, "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
BLOCKS = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}


def unet(channels=1, **more):
    torch.manual_seed(0)
    network = UNet2DModel(
        **SIZES, **BLOCKS, attention_head_dim=8, **({"in_channels": channels, "out_channels": channels} | more)
    )
    return network.eval()


def save(folder, scheduler, network=None):
    network = unet() if network is None else network
    DDPMPipeline(unet=network, scheduler=scheduler).save_pretrained(folder)
    return network


def by_hand(network, scheduler, prediction, x, t, **more):
    """D at the noise level of step t, as Ho et al. and Salimans and Ho have it; x is x0 + sigma eps."""
    abar = scheduler.alphas_cumprod[t].double()
    noisy = abar.sqrt() * x.double()
    with torch.no_grad():
        raw = network(noisy.float(), torch.full((len(x),), t), **more).sample[:, : x.shape[1]].double()
    if prediction == "epsilon":
        return (noisy - (1 - abar).sqrt() * raw) / abar.sqrt()
    return abar.sqrt() * noisy - (1 - abar).sqrt() * raw if prediction == "v_prediction" else raw


@pytest.mark.parametrize("betas", ["linear", "squaredcos_cap_v2"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_a_pipeline_is_what_its_network_says_at_its_steps(prediction, betas, tmp_path):
    """To float32's round-off, which `x - sigma eps` multiplies by sigma."""
    scheduler = DDPMScheduler(prediction_type=prediction, beta_schedule=betas)
    network = save(tmp_path / "x", scheduler)
    denoiser = gaussbias.load_denoiser(tmp_path / "x")
    abar = scheduler.alphas_cumprod.double()
    for t in (0, 1, 400, 999 if betas == "linear" else 990):
        sigma = ((1 - abar[t]) / abar[t]).sqrt()
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(t)) * float(sigma)
        expected = by_hand(network, scheduler, prediction, x, t)
        error = (denoiser(x, float(sigma)).double() - expected).norm() / (expected.norm() + sigma)
        assert error < 2e-6, (t, float(sigma))
        assert denoiser.effective_sigma(float(sigma)) == pytest.approx(float(sigma), rel=1e-6)
    assert denoiser.sigma_range == pytest.approx(tuple(float(s) for s in ((1 - abar) / abar).sqrt()[[0, -1]]))


def test_between_two_steps_time_is_interpolated_in_the_logarithm_of_sigma():
    scheduler = DDPMScheduler()
    denoiser = DiscreteDenoiser(torch.nn.Identity(), scheduler.alphas_cumprod)
    sigmas = ((1 - scheduler.alphas_cumprod.double()) / scheduler.alphas_cumprod.double()).sqrt()
    assert denoiser.time(sigmas).tolist() == pytest.approx(list(range(1000)), abs=1e-9)
    middle = (sigmas[500] * sigmas[501]).sqrt()
    assert float(denoiser.time(middle)) == pytest.approx(500.5)
    assert denoiser.effective_sigma(float(middle)) == pytest.approx(float(middle), rel=1e-6)
    for sigma in (float(sigmas[0]) * 0.99, float(sigmas[-1]) * 1.01):
        with pytest.raises(ValueError, match="Expected `sigma` from"):
            denoiser(torch.zeros(1, 1, 2, 2), sigma)


def test_steps_without_a_signal_are_left_out(tmp_path):
    scheduler = DDPMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True)
    assert scheduler.alphas_cumprod[-1] < 1e-7
    save(tmp_path / "x", scheduler)
    low, high = gaussbias.load_denoiser(tmp_path / "x").sigma_range
    assert 0 < low < high < 1e9


@pytest.mark.parametrize("kind", [DDIMScheduler, EulerDiscreteScheduler])
def test_other_schedulers_with_the_same_noise_give_the_same(kind, tmp_path):
    network = save(tmp_path / "a", DDPMScheduler())
    save(tmp_path / "b", kind(beta_start=1e-4, beta_end=0.02, beta_schedule="linear"), network)
    x = torch.randn(2, 1, 8, 8)
    one, other = (gaussbias.load_denoiser(tmp_path / name)(x, 0.7) for name in "ab")
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_edm_schedulers_are_edm_preconditioning(prediction, tmp_path):
    """The scheduler's own functions are the oracle."""
    scheduler = EDMEulerScheduler(prediction_type=prediction, sigma_data=0.4)
    network = save(tmp_path / "x", scheduler)
    denoiser = gaussbias.load_denoiser(tmp_path / "x")
    x = torch.randn(2, 1, 8, 8)
    for sigma in (0.002, 0.5, 80.0):
        time = scheduler.precondition_noise(torch.tensor(sigma))
        with torch.no_grad():
            raw = network(scheduler.precondition_inputs(x, sigma), time.expand(2)).sample
        assert torch.allclose(denoiser(x, sigma), scheduler.precondition_outputs(x, raw, sigma), atol=1e-5)
    assert denoiser.sigma_range == (0.002, 80.0)


def test_a_unet_takes_the_scheduler_beside_it_and_variances_are_left_out(tmp_path):
    network = save(tmp_path / "x", DDPMScheduler(variance_type="learned_range"), unet(out_channels=2))
    x, t = torch.randn(2, 1, 8, 8), 300
    scheduler = DDPMScheduler()
    sigma = float(((1 - scheduler.alphas_cumprod[t].double()) / scheduler.alphas_cumprod[t].double()).sqrt())
    expected = by_hand(network, scheduler, "epsilon", x, t)
    for path in ("x", "x/unet", "x/unet/diffusion_pytorch_model.safetensors"):
        found = load(tmp_path / path)
        assert torch.allclose(found.denoiser(x, sigma).double(), expected, atol=1e-5)
        assert found.shape == (1, 8, 8)
        assert any("variance" in note for note in found.notes)


def test_classes_are_asked_for(tmp_path):
    network = save(tmp_path / "x", DDPMScheduler(), unet(num_class_embeds=3))
    x, t = torch.randn(2, 1, 8, 8), 300
    scheduler = DDPMScheduler()
    sigma = float(((1 - scheduler.alphas_cumprod[t].double()) / scheduler.alphas_cumprod[t].double()).sqrt())
    each = [by_hand(network, scheduler, "epsilon", x, t, class_labels=torch.full((2,), label)) for label in range(3)]
    one = gaussbias.load_denoiser(tmp_path / "x", labels=1)(x, sigma).double()
    mean = gaussbias.load_denoiser(tmp_path / "x", labels="average")(x, sigma).double()
    assert torch.allclose(one, each[1], atol=1e-5)
    assert torch.allclose(mean, sum(each) / 3, atol=1e-5)
    for labels in (None, "none", 3):
        with pytest.raises(UserError, match="class-conditional, with 3 classes"):
            gaussbias.load_denoiser(tmp_path / "x", labels=labels)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy's, about diffusers
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_each_scheduler_tells_its_network_what_it_is_told_here(kind, tmp_path):
    """At the noise of each step that the scheduler takes itself."""
    scheduler = getattr(diffusers, kind)()
    save(tmp_path / "x", scheduler)
    denoiser = gaussbias.load_denoiser(tmp_path / "x")
    told = []
    denoiser.backbone.network.register_forward_pre_hook(lambda module, given: told.append(float(given[1][0])))
    scheduler.set_timesteps(5)
    abar = scheduler.alphas_cumprod.double()
    steps = [float(t) for t in scheduler.timesteps if float(t) == int(t)]
    for t in steps:
        denoiser(torch.zeros(1, 1, 8, 8), float(((1 - abar[int(t)]) / abar[int(t)]).sqrt()))
    assert told == pytest.approx(steps, abs=2e-3)
    assert len(steps) >= 2


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (
            EulerDiscreteScheduler(timestep_type="continuous", prediction_type="v_prediction"),
            "timestep_type=continuous",
        ),
        (FlowMatchEulerDiscreteScheduler(invert_sigmas=True), "invert_sigmas=True"),
        (DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction"), "use_flow_sigmas=True"),
        (LCMScheduler(), "found LCMScheduler"),
        (TCDScheduler(), "found TCDScheduler"),
        (CMStochasticIterativeScheduler(), "found CMStochasticIterativeScheduler"),
        (UnCLIPScheduler(), "found UnCLIPScheduler"),
    ],
)
def test_schedulers_whose_networks_are_told_or_predict_something_else_are_refused(scheduler, said, tmp_path):
    save(tmp_path / "x", DDPMScheduler())
    scheduler.save_pretrained(tmp_path / "x" / "scheduler")
    with pytest.raises(UserError) as caught:
        gaussbias.load_denoiser(tmp_path / "x")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def flow_step(network, scheduler, time, x0, eps, *labels):
    """x0 by diffusers' own arithmetic: a step of its sampler from `time` to 0; and x."""
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        scheduler.set_timesteps(sigmas=[time / (scheduler.config.shift - (scheduler.config.shift - 1) * time)])
    else:
        scheduler.set_timesteps(1)
    told = scheduler.timesteps[:1]
    assert float(scheduler.sigmas[0]) == pytest.approx(time, rel=1e-6)
    noisy = scheduler.scale_noise(x0, told, eps)
    with torch.no_grad():
        velocity = network(noisy, told.expand(len(x0)), *labels).sample[:, : x0.shape[1]]
    return scheduler.step(velocity, told[0], noisy).prev_sample, x0 + time / (1 - time) * eps


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_flow_is_a_step_of_diffusers_sampler(shift, tmp_path):
    """D is what diffusers' sampler makes of x_t in a single step to t = 0."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    network = save(tmp_path / "x", scheduler)
    loaded = load(tmp_path / "x")
    assert loaded.kind == "diffusers, UNet2DModel with FlowMatchEulerDiscreteScheduler (velocity)"
    x0, eps = torch.randn(2, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for time in (0.004, 0.1, 0.5, 0.9, 0.99):
        expected, x = flow_step(network, FlowMatchEulerDiscreteScheduler(shift=shift), time, x0, eps)
        sigma = time / (1 - time)
        assert (loaded.denoiser(x, sigma) - expected).norm() < 1e-5 * expected.norm(), time
        assert loaded.denoiser.effective_sigma(sigma) == pytest.approx(sigma, rel=1e-5)
    least, most = loaded.denoiser.sigma_range
    assert least == pytest.approx(shift / 999, rel=1e-5)  # shifted times are those of sigma times the shift
    assert most == pytest.approx(shift * 999, rel=1e-3)


def test_heuns_flow_scheduler_is_eulers(tmp_path):
    for name, scheduler in (("e", FlowMatchEulerDiscreteScheduler()), ("h", FlowMatchHeunDiscreteScheduler())):
        save(tmp_path / name, scheduler)
    euler, heun = (gaussbias.load_denoiser(tmp_path / name) for name in "eh")
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(euler(x, 0.7), heun(x, 0.7), rtol=0, atol=0)
    assert euler.sigma_range == heun.sigma_range


def transformer(**more):
    torch.manual_seed(1)
    network = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=3,
        **more,
    )
    return network.eval()


def save_transformer(folder, network, scheduler):
    """As a DiTPipeline lies in its folder; its autoencoder is not needed."""
    network.save_pretrained(folder / "transformer")
    scheduler.save_pretrained(folder / "scheduler")
    (folder / "vae").mkdir()
    (folder / "vae" / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL", "scaling_factor": 0.18215}))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "DiTPipeline"}))
    return network


def test_a_transformer_of_latents_is_diffusers_own_arithmetic(tmp_path):
    """D is `pred_original_sample` of DDIM's step; -1 is the transformer's label for no class, the number of classes."""
    scheduler = DDIMScheduler(clip_sample=False)
    network = save_transformer(tmp_path / "x", transformer(out_channels=8), scheduler)
    loaded = load(tmp_path / "x", labels="data")
    assert loaded.shape == (4, 8, 8)
    assert loaded.notes[0] == "latents, what its autoencoder gives times 0.18215"
    assert loaded.denoiser.classes == 3
    x0, eps = torch.randn(2, 4, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, -1])
    scheduler.set_timesteps(1000)
    for t in (0, 300, 700):
        noisy = scheduler.add_noise(x0, eps, torch.tensor([t]))
        with torch.no_grad():
            raw = network(noisy, torch.full((4,), t), torch.tensor([0, 2, 1, 3])).sample[:, :4]
        expected = scheduler.step(raw, t, noisy).pred_original_sample
        abar = scheduler.alphas_cumprod[t].double()
        sigma = float(((1 - abar) / abar).sqrt())
        result = loaded.denoiser.given(labels)(x0 + sigma * eps, sigma)
        assert (result - expected).norm() < 1e-5 * expected.norm(), t
    one = gaussbias.load_denoiser(tmp_path / "x", labels=2)
    none = gaussbias.load_denoiser(tmp_path / "x", labels="none")
    x = x0 + eps
    torch.testing.assert_close(one(x, 0.5), loaded.denoiser.given(2)(x, 0.5))
    torch.testing.assert_close(none(x, 0.5), loaded.denoiser.given(-1)(x, 0.5))


def test_a_transformer_of_a_flow(tmp_path):
    """As SiT (Ma et al. 2024) has it, with diffusers' parts."""
    network = save_transformer(tmp_path / "x", transformer(), FlowMatchEulerDiscreteScheduler())
    denoiser = gaussbias.load_denoiser(tmp_path / "x", labels="data")
    x0, eps = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 3])
    expected, x = flow_step(network, FlowMatchEulerDiscreteScheduler(), 0.3, x0, eps, labels)
    result = denoiser.given(torch.tensor([1, -1]))(x, 0.3 / 0.7)
    assert (result - expected).norm() < 1e-5 * expected.norm()


def test_a_transformer_that_always_knew_its_class_cannot_be_told_none():
    network = transformer()
    for block in network.transformer_blocks:  # as diffusers makes it where no label is dropped
        table = block.norm1.emb.class_embedder.embedding_table
        table.weight = torch.nn.Parameter(table.weight[:3])
    assert ImageNetwork(network).null_label is None


def test_a_network_of_classes_that_knows_no_others_asks_for_them(tmp_path):
    save(tmp_path / "x", DDPMScheduler(), unet(num_class_embeds=3))
    denoiser = gaussbias.load_denoiser(tmp_path / "x", labels="data")
    with pytest.raises(ValueError, match="Expected `labels`, from 0 to 2"):
        denoiser(torch.zeros(1, 1, 8, 8), 1.0)


def test_a_flat_folder_is_its_pipeline(tmp_path):
    """As many small DDPMs are published: everything lies beside model_index.json."""
    save(tmp_path / "x", DDPMScheduler())
    flat = tmp_path / "flat"
    flat.mkdir()
    for place in ("", "unet", "scheduler"):
        for file in (tmp_path / "x" / place).iterdir():
            if file.is_file():
                shutil.copy(file, flat / file.name)
    x = torch.randn(2, 1, 8, 8)
    found = gaussbias.load_denoiser(flat)
    assert torch.equal(found(x, 0.7), gaussbias.load_denoiser(tmp_path / "x")(x, 0.7))
    assert DDPMPipeline.from_pretrained(flat).scheduler.config.num_train_timesteps == 1000
    (flat / "scheduler_config.json").unlink()
    with pytest.raises(UserError, match=r"cannot read .*scheduler_config\.json"):
        gaussbias.load_denoiser(flat)


def test_weights_of_a_variant_are_taken_where_there_are_no_others(tmp_path):
    network = save(tmp_path / "x", DDPMScheduler())
    x = torch.randn(2, 1, 8, 8)
    whole = load(tmp_path / "x")
    network.half().save_pretrained(tmp_path / "x" / "unet", variant="fp16")
    both = load(tmp_path / "x")
    assert torch.equal(both.denoiser(x, 0.7), whole.denoiser(x, 0.7))
    (tmp_path / "x" / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    half = load(tmp_path / "x")
    assert "weights of the variant fp16" in half.notes
    assert half.denoiser(x, 0.7).dtype == torch.float32
    assert torch.allclose(half.denoiser(x, 0.7), whole.denoiser(x, 0.7), atol=5e-3)
    assert not torch.equal(half.denoiser(x, 0.7), whole.denoiser(x, 0.7))
    network.save_pretrained(tmp_path / "x" / "unet", variant="bf16")
    with pytest.raises(UserError, match=r"expected weights of one variant, found .*bf16.*fp16"):
        load(tmp_path / "x")


def test_a_sharded_network_is_read_with_and_without_a_variant(tmp_path):
    for variant in (None, "fp16"):
        folder = tmp_path / str(variant)
        network = save(folder, DDPMScheduler())
        shutil.rmtree(folder / "unet")
        network.save_pretrained(folder / "unet", variant=variant, max_shard_size="20KB")
        assert len(list((folder / "unet").glob("*.safetensors"))) > 1
        x = torch.randn(2, 1, 8, 8)
        assert gaussbias.load_denoiser(folder)(x, 0.7).isfinite().all()


@pytest.mark.parametrize("embedding", ["learned", "fourier"])
def test_embeddings_that_do_not_take_any_time_step_are_refused(embedding, tmp_path):
    """A learned one knows whole steps alone, and Fourier's is not a number at step 0."""
    save(tmp_path / "x", DDPMScheduler(), unet(time_embedding_type=embedding, num_train_timesteps=1000))
    with pytest.raises(UserError, match=rf"expected time_embedding_type=positional, .*, found {embedding}"):
        gaussbias.load_denoiser(tmp_path / "x")


def edit(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_what_cannot_be_measured_is_one_line(tmp_path):
    save(tmp_path / "x", DDPMScheduler())
    x = tmp_path / "x"

    def change(name, act):
        shutil.copytree(x, tmp_path / name)
        act(tmp_path / name)
        return tmp_path / name

    weights = "unet/diffusion_pytorch_model.safetensors"
    cases = {
        "expected weights as safetensors, found pytorch_model.bin": change(
            "bin", lambda f: (f / weights).rename(f / "unet/pytorch_model.bin")
        ),
        "expected a pipeline that denoises images of none or of numbered classes": change(
            "text", lambda f: edit(f / "model_index.json", _class_name="StableDiffusionPipeline")
        ),
        "expected one of UNet2DModel, DiTTransformer2DModel, found UNet2DConditionModel": change(
            "conditioned", lambda f: edit(f / "unet/config.json", _class_name="UNet2DConditionModel")
        ),
        "or one of EDM or of flow matching, found Path": change(
            "path", lambda f: edit(f / "scheduler/scheduler_config.json", _class_name="Path")
        ),
        "or one of EDM or of flow matching, found ScoreSdeVeScheduler": change(
            "karras", lambda f: ScoreSdeVeScheduler().save_pretrained(f / "scheduler")
        ),
        "expected 2 to 1,000,000 steps": change(
            "long", lambda f: edit(f / "scheduler/scheduler_config.json", num_train_timesteps=10**12)
        ),
        "`prediction` to be one of": change(
            "flow", lambda f: edit(f / "scheduler/scheduler_config.json", prediction_type="flow")
        ),
        "the weights are not those": change("more", lambda f: edit(f / "unet/config.json", num_class_embeds=3)),
        "found quantization_config": change(
            "quantised", lambda f: edit(f / "unet/config.json", quantization_config={"quant_method": "torchao"})
        ),
        "expected weights as safetensors, found w.bin": change(
            "shards",
            lambda f: (f / "unet/diffusion_pytorch_model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": {"conv_in.weight": "w.bin"}})
            ),
        ),
        "too few for the layers": change("deep", lambda f: edit(f / "unet/config.json", layers_per_block=10**6)),
        "expected the size of its images": change("size", lambda f: edit(f / "unet/config.json", sample_size=None)),
        "cannot read": change("cut", lambda f: (f / weights).write_bytes((f / weights).read_bytes()[:1000])),
        "expected scheduler_config.json": change("alone", lambda f: shutil.rmtree(f / "scheduler")) / "unet",
    }
    for said, folder in cases.items():
        with pytest.raises(UserError) as caught:
            gaussbias.load_denoiser(folder)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
