"""The linear surrogate and the Gaussian baseline under the Trainer, by the real command."""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import gaussbias
from gaussbias.catalogue import known_entry
from gaussbias.checkpoints import load_linear, save_linear
from gaussbias.denoisers import Denoiser, EmpiricalDenoiser, GaussianDenoiser, LinearDenoiser
from gaussbias.figures.__main__ import main as figures
from gaussbias.fit import main
from gaussbias.history import load, series
from gaussbias.measure import main as measure
from gaussbias.modules import GaussianModule, LinearModule, exact
from gaussbias.moments import Eigenmoments, estimate
from gaussbias.system.errors import UserError

SMALL = ["probes.draws=32", "probes.samples=8", "run.wandb=disabled", "run.pictures=none", "train.accelerator=cpu"]
NETWORK = [
    *SMALL,
    "probes.sampler_steps=4",
    "model.backbone=mlp",
    "model.channels=16",
    "data.n_train=300",
    "train.kimg=3",
    "train.batch_size=32",
    "probes.first_kimg=9",
]
LEVELS = [20.0, 2.0, 0.5, 0.05]
LINEAR = ["module.kind=linear", *SMALL, f"probes.sigmas={LEVELS}".replace(" ", ""), "train.batch_size=32"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The run of a small network on 300 digits."""
    root = tmp_path_factory.mktemp("teacher")
    assert main([*NETWORK, f"run.root={root}", "run.name=net"]) == 0
    return root / "net"


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    """A configuration without images: they are the teacher's."""
    file = tmp_path_factory.mktemp("config") / "linear.yaml"
    file.write_text("module:\n  kind: linear\n")
    return ["--config", str(file)]


@pytest.fixture(scope="module")
def fitted(teacher, configuration, tmp_path_factory):
    """The run of its surrogate, 640 draws a level."""
    root = tmp_path_factory.mktemp("fitted")
    keys = [*configuration, *LINEAR, f"linear.teacher={teacher}", "linear.draws=640", f"run.root={root}"]
    assert main([*keys, "run.name=x"]) == 0
    return root / "x"


def surrogate_of(run):
    return load_linear(run / "linear.safetensors")[0]


def test_a_surrogate_is_fitted_logged_exported_and_drawn(teacher, configuration, tmp_path, capsys, root):
    keys = [*LINEAR, f"linear.teacher={teacher}", "linear.draws=300", f"run.root={tmp_path}"]
    assert main([*configuration, *keys, "run.pictures=end", "run.name=x"]) == 0
    shown, run = capsys.readouterr().out, tmp_path / "x"
    assert f"300 training and 397 held-out images of 1 x 8 x 8, a surrogate of {teacher} by exact, 320 draws" in shown
    begun = shown.index("   sigma      draws")
    lines = [line.split() for line in shown[begun:].splitlines()[1 : 1 + len(LEVELS)]]
    assert [float(line[0]) for line in lines] == LEVELS
    assert {line[1] for line in lines} == {"320"}  # ten batches of 32

    # what is exported is the surrogate of each level, near its teacher
    found, about = load_linear(run / "linear.safetensors")
    network, loaded = gaussbias.load_denoiser(teacher), gaussbias.load_denoiser(run)
    assert isinstance(loaded, LinearDenoiser)
    assert [level["sigma"] for level in about["levels"]] == LEVELS
    assert about["pool"] == "train"
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for sigma in LEVELS:
        assert torch.equal(loaded(x, sigma), found(x, sigma))
    with pytest.raises(ValueError, match="one of the stored levels"):
        loaded(x, 1.0)

    # it was measured by the same callbacks, and so was the distance to its teacher
    history = load(run)
    last = {key: column[-1] for key, column in history.items() if key != "run"}
    for pool in ("train", "heldout"):
        assert last[f"linearity/affine_cosine/{pool}"] == pytest.approx(1, abs=1e-6)
        assert last[f"ladder/r2/{pool}"] == pytest.approx(1, abs=0.05)
        assert last[f"teacher/linear_rmse/{pool}"] < last[f"teacher/gaussian_rmse/{pool}"]
    assert last["generalization/gl_score"] > 0
    page = (root / "docs" / "metrics.md").read_text()
    for key in history.keys() - {"run"}:
        name = key.removesuffix("_se").partition("/sigma_")[0]
        for pool in ("/train", "/heldout"):
            name = name.removesuffix(pool)
        if known_entry(name) is not None:  # one of many, with a number
            name = known_entry(name).name
        assert f"`{name}`" in page or f"`{name}/sigma_<s>`" in page, key
    rows = [i for i, value in enumerate(history["surrogate/draws/sigma_2"]) if not math.isnan(value)]
    assert len(rows) == 1
    assert history["surrogate/weight_error/sigma_2"][rows[0]] == about["levels"][1]["weight_error"]

    # distances on the run's own draws are those to the exported map
    with torch.no_grad():
        eps = torch.randn(4000, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        x = 0.5 * eps  # pure noise: any points do
        assert (found(x, 0.5) - network(x, 0.5)).square().mean() < x.square().mean()

    (stored,) = (run / "samples").glob("*.safetensors")
    with safe_open(stored, "pt") as opened:
        assert opened.metadata()["label"] == "surrogate $D_L$"
    pictures = run / "figures"
    for name in ("surrogate.png", "surrogate_paths.png", "samples.png", "ladder.png"):
        assert (pictures / name).stat().st_size > 10_000
        (pictures / name).unlink()
    assert figures(["--surrogate", str(run)]) == 0
    assert sorted(f.name for f in pictures.glob("surro*")) == ["surrogate.png", "surrogate_paths.png"]
    assert figures(["--surrogate", str(teacher)]) == 2
    assert "expected the run of a finished linear surrogate" in capsys.readouterr().err

    # it is measured by the other command as well
    assert measure([str(run), "probes.draws=32"]) == 0
    assert list((run / "measured").glob("*.csv"))
    assert measure([str(run), "probes.draws=32", "probes.sigmas=[3,1]"]) == 2
    assert "cannot denoise images of 1 x 8 x 8 at sigma 3" in capsys.readouterr().err

    # a file of a run stands for the run: its images are the teacher's
    keys = [*LINEAR, "linear.draws=64", f"run.root={tmp_path}", "run.name=y", "probes.sigmas=[2,0.5]"]
    assert main([*keys, f"linear.teacher={teacher}/checkpoints/last.ckpt"]) == 0  # without a configuration of its own
    assert "300 training and 397 held-out images" in capsys.readouterr().out

    # and it is a reference for other runs
    keys = [*NETWORK, "train.kimg=0.1", f"run.root={tmp_path}", f"probes.surrogate={run}"]
    assert main([*keys, "run.name=other", f"probes.sigmas={LEVELS[:3]}".replace(" ", "")]) == 0
    values = series(tmp_path / "other")
    assert values["linear/rmse/heldout"][1][0] > 0
    assert "linear/rmse/train/sigma_0p5_se" in values
    assert main([*keys, "run.name=missing", "probes.sigmas=[2,1]"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "probes.surrogate" in error
    assert "at sigma 1 (Expected `sigma` to be one of the stored levels 20, 2, 0.5, 0.05" in error


def test_a_surrogate_of_an_affine_teacher_is_its_teacher(teacher, configuration, tmp_path, capsys):
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(len(LEVELS), 64, 64, generator=random) / 8
    affine = LinearDenoiser(torch.tensor(LEVELS), weights, torch.randn(len(LEVELS), 64, generator=random), (1, 8, 8))
    (tmp_path / "affine").mkdir()
    file = save_linear(affine, tmp_path / "affine")
    for number, options in enumerate((["linear.shrink=false", "linear.pool=heldout"], ["linear.draws=400"])):
        keys = [*LINEAR, f"linear.teacher={file}", "linear.draws=256", f"run.root={tmp_path}", *options]
        assert main(["--config", str(configuration_with_data(tmp_path)), *keys, f"run.name={number}"]) == 0
        found = surrogate_of(tmp_path / str(number))
        for place in range(len(LEVELS)):
            gap = (found.weights[place] - weights[place]).norm() / weights[place].norm()
            assert float(gap) < 2e-6, options  # the teacher computes in float32
        assert torch.allclose(found.biases, affine.biases, atol=1e-4)
    text = capsys.readouterr().out
    assert "nan" not in text


def configuration_with_data(folder):
    file = folder / "data.yaml"
    file.write_text("data:\n  n_train: 300\n  n_heldout: 397\n")
    return file


def test_a_surrogate_goes_on_where_it_broke_off(teacher, configuration, tmp_path, power_cut, capsys):
    keys = [*configuration, *LINEAR, f"linear.teacher={teacher}", "linear.draws=256", f"run.root={tmp_path}"]
    keys += ["train.checkpoint_every_kimg=0.1"]
    assert main([*keys, "run.name=whole"]) == 0
    with (
        power_cut(LinearModule, 11),
        pytest.raises(RuntimeError, match="power cut"),
    ):  # the last checkpoint is in the middle of a level
        main([*keys, "run.name=broken"])
    with pytest.raises(UserError, match=r"for --resume of a run of module.kind=linear"):
        gaussbias.load_denoiser(tmp_path / "broken")
    capsys.readouterr()
    assert main([*keys, "run.name=broken", "--resume"]) == 0
    assert "continued at 0.288 kimg" in capsys.readouterr().out
    whole, broken = (surrogate_of(tmp_path / name) for name in ("whole", "broken"))
    assert torch.equal(whole.weights, broken.weights)
    assert torch.equal(whole.biases, broken.biases)
    columns = [load(tmp_path / name) for name in ("whole", "broken")]
    for key, values in columns[0].items():
        if key not in ("run", "probes/seconds", "probes/share"):
            assert repr(values) == repr(columns[1][key]), key


def test_a_level_ends_once_its_error_is_small_enough(teacher, configuration, tmp_path):
    keys = [*configuration, *LINEAR, f"linear.teacher={teacher}", f"run.root={tmp_path}", "linear.draws=20000"]
    assert main([*keys, "run.name=x", "linear.target_error=0.02"]) == 0
    _, about = load_linear(tmp_path / "x" / "linear.safetensors")
    drawn = [level["draws"] for level in about["levels"]]
    assert all(n < 20000 for n in drawn)
    assert len(set(drawn)) > 1  # each level as many as it takes
    for level in about["levels"]:
        assert level["weight_error"] + 2 * level["weight_error_se"] <= 0.02
    files = [tmp_path / "x" / name for name in ("linear.safetensors", "linear.json", "history.csv")]
    before = [file.read_bytes() for file in files]
    assert main([*keys, "run.name=x", "linear.target_error=0.02", "--resume"]) == 0  # it is finished
    assert [file.read_bytes() for file in files] == before


@pytest.mark.long
def test_the_gradient_goes_the_papers_way(teacher, fitted, configuration, tmp_path):
    """Adam from 0 comes to the same map, with many more evaluations."""
    keys = [*configuration, *LINEAR, f"linear.teacher={teacher}", f"run.root={tmp_path}", "probes.sigmas=[2,0.5]"]
    gradient = [*keys, "linear.method=gradient", "linear.lr=[0.02,0.05]", "train.checkpoint_every_kimg=7"]
    assert main([*gradient, "run.name=gradient", "linear.draws=16000"]) == 0
    exact, adam = surrogate_of(fitted), surrogate_of(tmp_path / "gradient")
    for place in range(2):
        gap = (adam.weights[place] - exact.weights[1 + place]).square().sum()
        assert float(gap / exact.weights[1 + place].square().sum()) < 0.1  # 1 is what 0 has
    rates = [rate for rate in load(tmp_path / "gradient")["train/lr"] if not math.isnan(rate)]
    assert sorted(set(rates)) == [0.02, 0.05]
    assert rates == sorted(rates)
    _, about = load_linear(tmp_path / "gradient" / "linear.safetensors")
    assert {"sigma", "draws", "heldout_error", "weight_nmse"} == set(about["levels"][0])


@pytest.mark.long
def test_two_devices_equal_one(teacher, configuration, tmp_path):
    environment = {**os.environ, "SLURM_PROCID": "0"}

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "gaussbias.fit", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    linear = [*configuration, *LINEAR, f"linear.teacher={teacher}", f"run.root={tmp_path}", "linear.draws=512"]
    linear += ["probes.sigmas=[2,0.5]", "linear.target_error=0.05"]
    gaussian = [*SMALL, "module.kind=gaussian", "train.batch_size=64", f"run.root={tmp_path}", "data.flip=true"]
    for keys, kind in (([*linear], "linear"), ([*gaussian, "data.n_train=333"], "gaussian")):
        assert main([*keys, "train.devices=1", f"run.name={kind}1"]) == 0
        command(*keys, "train.devices=2", f"run.name={kind}2")
    one, two = (surrogate_of(tmp_path / f"linear{devices}") for devices in (1, 2))
    assert torch.allclose(one.weights, two.weights, atol=1e-5)  # the teacher is evaluated in other batches, in float32
    assert torch.allclose(one.biases, two.biases, atol=1e-5)
    first, second = (Eigenmoments.load(tmp_path / f"gaussian{devices}" / "moments.safetensors") for devices in (1, 2))
    assert torch.equal(first.mean, second.mean)  # sums are exact; the eigendecomposition depends on threads
    covariances = [(m.eigenvectors * m.eigenvalues) @ m.eigenvectors.T for m in (first, second)]
    assert torch.allclose(*covariances, atol=1e-13)
    for kind in ("linear", "gaussian"):
        a, b = (load(tmp_path / f"{kind}{devices}") for devices in (1, 2))
        assert a.keys() == b.keys()
        for key in a:
            if key in ("run", "probes/seconds", "probes/share") or key.split("/")[0] in ("gap", "freedom", "novelty"):
                continue  # of an affine map these are round-off, over sigma or over their errors, and counts
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-5, nan_ok=True), key


def test_the_gaussian_is_estimated_in_one_pass_and_measured(tmp_path, digits, capsys, power_cut, root):
    keys = [*SMALL, "module.kind=gaussian", "train.batch_size=64", f"run.root={tmp_path}", "data.n_train=300"]
    keys += ["probes.sampler_steps=4", "probes.first_kimg=0.1", "train.checkpoint_every_kimg=0.1", "data.flip=true"]
    with power_cut(GaussianModule, 3), pytest.raises(RuntimeError, match="power cut"):
        main([*keys, "run.name=x"])
    assert main([*keys, "run.name=x", "--resume", "run.pictures=end"]) == 0
    assert "mean and covariance in one pass" in capsys.readouterr().out
    run = tmp_path / "x"
    history = load(run)
    last = {key: column[-1] for key, column in history.items() if key != "run"}
    assert last["kimg"] == 0.32  # five batches of 64; the last 20 images of which are the next pass
    moments = Eigenmoments.load(run / "moments.safetensors")
    assert last["spectrum/count"] == moments.count == 600
    # the pass of the module is that of `estimate`, which the baselines are made of
    assert last["gaussian/rmse/train"] < 1e-7
    assert last["linearity/affine_cosine/heldout"] == pytest.approx(1, abs=1e-6)
    assert last["spectrum/effective_rank"] == pytest.approx(moments.effective_rank, rel=1e-12)
    for sigma in ("80", "0p47", "0p002"):
        assert last[f"spectrum/gaussian_mse/sigma_{sigma}"] == pytest.approx(
            last[f"denoising/gaussian_mse/train/sigma_{sigma}"], rel=1e-9
        )
    measured = [v for v in history["spectrum/count"] if not math.isnan(v)]
    assert measured == sorted(measured)
    assert len(measured) == 3  # at 0.128, 0.192 and 0.32 kimg
    page = (root / "docs" / "metrics.md").read_text()
    assert all(f"`{name}`" in page for name in ("spectrum/count", "spectrum/effective_rank", "spectrum/eigenvalue_<i>"))
    denoiser = gaussbias.load_denoiser(run)
    assert isinstance(denoiser, GaussianDenoiser)
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(denoiser(x, 0.5), GaussianDenoiser(moments)(x, 0.5))
    assert (run / "figures" / "spectrum.png").stat().st_size > 10_000
    assert json.loads((run / "gaussian.json").read_text())["kimg"] == 0.32
    before = [(run / name).read_bytes() for name in ("gaussian.json", "moments.safetensors", "history.csv")]
    assert main([*keys, "run.name=x", "--resume"]) == 0  # it is finished
    assert [(run / name).read_bytes() for name in ("gaussian.json", "moments.safetensors", "history.csv")] == before


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ("linear.teacher=null", "linear.teacher: expected a run folder, a checkpoint or an exported denoiser"),
        ("linear.teacher={run}/history.csv", "is damaged, or another program wrote it"),
        ("linear.teacher=nowhere", "linear.teacher: expected a run folder, a checkpoint or an exported denoiser at"),
        (
            "linear.draws=7",
            "linear.draws: expected `draws` to be at least 8 for 64 dimensions with shrinkage but got 7",
        ),
        ("linear.draws=191 linear.shrink=false", "at least 192 for 64 dimensions without shrinkage but got 191"),
        ("linear.draws=0", "linear.draws: expected a number above 0, got 0"),
        ("data.n_train=200", "was trained on other images than data.* gives here"),
        ("data.resolution=4 linear.teacher={file}", "denoises images of 1 x 8 x 8, but those of data.* are 1 x 4 x 4"),
        ("probes.sigmas=[2,1] linear.teacher={levels}", "cannot denoise images of 1 x 8 x 8 at sigma 2 (Expected"),
        ("probes.sigmas=[2]", "probes.sigmas: expected 2 or more noise levels in descending order"),
        ("probes.sigmas=[1,2]", "probes.sigmas: expected 2 or more noise levels in descending order"),
        ("linear.lr=[0.1]", "linear.lr: expected 4 learning rates, one for each noise level, got [0.1]"),
        ("linear.method=gradient linear.target_error=0.1", "linear.target_error: expected null"),
        ("linear.method=gradient linear.shrink=false", "linear.shrink: expected its default"),
        ("linear.method=magic", "linear.method: expected one of exact, gradient, got 'magic'"),
        ("probes.surrogate={file}", "probes.surrogate: expected a linear surrogate at"),
        (
            "data.source=array data.path={same} data.n_train=20 data.n_heldout=9 linear.teacher={file}",
            "data.path: expected images that differ, but all 20 training images are the same",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(overrides, text, teacher, configuration, tmp_path, capsys):
    import numpy as np

    np.save(tmp_path / "same.npy", np.full((40, 1, 8, 8), 7, np.uint8))
    one = LinearDenoiser(torch.tensor([1.0]), torch.eye(64)[None], torch.zeros(1, 64), (1, 8, 8))
    levels = save_linear(one, tmp_path)
    (tmp_path / "alone").mkdir()  # a file that no run says the images of
    for name in ("denoiser.safetensors", "denoiser.json"):
        shutil.copy(teacher / name, tmp_path / "alone")
    places = {"run": teacher, "file": tmp_path / "alone" / "denoiser.safetensors", "levels": levels}
    given = overrides.format(same=tmp_path / "same.npy", **places).split()
    root = tmp_path / "runs"
    keys = [*LINEAR, f"linear.teacher={teacher}", "linear.draws=256", f"run.root={root}", "run.name=x"]
    assert main([*configuration, *keys, *given]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not root.exists()


def test_damaged_surrogates_are_refused(tmp_path):
    one = LinearDenoiser(torch.tensor([1.0]), torch.eye(4)[None], torch.zeros(1, 4), (1, 2, 2))
    file = save_linear(one, tmp_path)
    assert torch.equal(gaussbias.load_denoiser(file)(torch.ones(1, 1, 2, 2), 1.0), torch.ones(1, 1, 2, 2))
    description = json.loads(file.with_suffix(".json").read_text())
    file.with_suffix(".json").write_text(json.dumps({**description, "shape": [1, 3, 3]}))
    with pytest.raises(UserError, match="cannot read the surrogate"):
        gaussbias.load_denoiser(file)
    file.with_suffix(".json").write_text(json.dumps(description))
    one.weights[0, 0, 0] = torch.nan
    save_linear(one, tmp_path)
    with pytest.raises(UserError, match="values that are not finite in weights"):
        gaussbias.load_denoiser(file)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot read the surrogate"):
        gaussbias.load_denoiser(file)


def test_the_memoriser_is_a_teacher_whose_surrogate_is_the_gaussian(digits):
    """Any `Denoiser` can be distilled in Python: here D_M, of which the surrogate on its images is D_G."""
    import lightning.pytorch as pl

    from gaussbias.modules import ImageDataModule
    from gaussbias.probes import ProbeBank

    images = digits[:200]
    moments, sigmas = estimate(images), [3.0, 0.4]
    memoriser: Denoiser = EmpiricalDenoiser(images)
    module = LinearModule(memoriser, moments, sigmas, draws=6400, batch_size=64)
    data = ImageDataModule(images, digits[200:300], ProbeBank({"train": images}, 32, sigmas), 64, replace=True)
    trainer = pl.Trainer(
        max_steps=2 * module.steps_per_level,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, datamodule=data)
    assert [known["sigma"] for known in module.fits] == sigmas
    for known in module.fits:
        assert abs(known["weight_nmse"]) < 4 * known["weight_nmse_se"] < 0.01


def test_a_teacher_that_is_not_finite_ends_the_run_in_one_line(teacher, configuration, tmp_path, capsys):
    tensors = load_file(teacher / "denoiser.safetensors")
    name = next(iter(tensors))
    (tmp_path / "nan").mkdir()
    save_file({**tensors, name: tensors[name] * torch.nan}, tmp_path / "nan" / "denoiser.safetensors")
    shutil.copy(teacher / "denoiser.json", tmp_path / "nan")
    keys = [*LINEAR, f"linear.teacher={tmp_path}/nan/denoiser.safetensors", "linear.draws=64", f"run.root={tmp_path}"]
    assert main(["--config", str(configuration_with_data(tmp_path)), *keys, "run.name=x"]) == 1
    error = capsys.readouterr().err
    assert "a value of the teacher at sigma 20 is not finite" in error


@pytest.mark.parametrize("batch_size", [3, 7, 8])
def test_quarters_fill_evenly(batch_size, digits):
    moments = estimate(digits[:100])
    module = LinearModule(GaussianDenoiser(moments), moments, [3.0], draws=200, batch_size=batch_size)
    x0 = digits[:1].repeat(batch_size, 1, 1, 1)
    for step in range(10):
        exact.add(module.sums, module.pool, *module._draw({"images": x0, "step": step}, 3.0), module.drawn)
        module.drawn += batch_size
    counts = module.sums.count
    assert float(counts.sum()) == 10 * batch_size
    assert float(counts.max() - counts.min()) <= 1


def test_another_teacher_under_the_same_name_is_noticed(teacher, configuration, tmp_path, power_cut, capsys):
    shutil.copytree(teacher, tmp_path / "net", ignore=shutil.ignore_patterns("*.ckpt"))
    keys = [*configuration, *LINEAR, f"linear.teacher={tmp_path}/net", "linear.draws=256", f"run.root={tmp_path}"]
    keys += ["run.name=x", "train.checkpoint_every_kimg=0.1"]
    with power_cut(LinearModule, 11), pytest.raises(RuntimeError, match="power cut"):
        main(keys)
    tensors = load_file(tmp_path / "net" / "denoiser.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] + 1}, tmp_path / "net" / "denoiser.safetensors")
    capsys.readouterr()
    assert main([*keys, "--resume"]) == 2
    assert "linear.teacher: the surrogate was begun with other weights" in capsys.readouterr().err


@pytest.mark.long
def test_the_benchmark_counts_evaluations_of_both_ways(teacher, root):
    command = [sys.executable, "-m", "benchmarks.surrogate", str(teacher), "--sigmas", "0.5", "--target", "0.2"]
    done = subprocess.run(
        [*command, "--scale", "0.25"], capture_output=True, text=True, check=True, cwd=root, timeout=200
    )
    (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("     0.5")]
    ours, theirs = int(line[2].replace(",", "")), int(line[4].replace(",", ""))
    assert 15 * ours < theirs
