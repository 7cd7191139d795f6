import itertools
import pickle
import shutil
from dataclasses import replace
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from gaussbias.backbones.mlp import MLP
from gaussbias.callbacks import (
    Checkpoints,
    GaussianCallback,
    LinearityCallback,
    MeasurementSchedule,
    ProbeCallback,
    TrainingLog,
)
from gaussbias.data.images import mirror, to_unit
from gaussbias.denoisers import EmpiricalDenoiser, GaussianDenoiser
from gaussbias.history import read_measurement, write_measurement
from gaussbias.metrics.blocks import jackknife
from gaussbias.metrics.errors import gaussian_mse
from gaussbias.metrics.linearity import linearity
from gaussbias.modules import EDMModule, ImageDataModule, evaluate
from gaussbias.moments import estimate, project
from gaussbias.noise import karras_sigmas, sigma_name
from gaussbias.probes import (
    AgreementProbe,
    ErrorsProbe,
    GeneralizationProbe,
    Instruments,
    LadderProbe,
    LinearityProbe,
    PicturesProbe,
    ProbeBank,
    References,
    SampleAgreementProbe,
)
from gaussbias.probes.base import by_level
from gaussbias.probes.registry import build
from gaussbias.system.errors import TrainingError, UserError
from gaussbias.system.signals import Stopped


class Frozen(pl.LightningModule):
    """Any module: a denoiser, a validation step, and something to train."""

    def __init__(self, denoiser):
        super().__init__()
        self.denoiser = denoiser
        self.weight = nn.Parameter(torch.zeros(()))
        self.losses = [1.0]

    def training_step(self, batch, batch_idx):
        return self.weight**2 + self.losses[min(batch["step"], len(self.losses) - 1)]

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        return evaluate(self.denoiser, batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Rows(pl.loggers.logger.DummyLogger):
    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append(metrics)


def trained(denoiser, callbacks, data, folder, steps=4, module=None, **kwargs):
    rows = Rows()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        val_check_interval=1,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=kwargs.pop("num_sanity_val_steps", 0),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=rows,
        callbacks=list(callbacks),  # Lightning adds its own to the list
        default_root_dir=folder,
        **kwargs,
    )
    trainer.fit(module or Frozen(denoiser), datamodule=data)
    return rows.rows


@pytest.fixture
def setting(digits):
    images, heldout = digits[:200], digits[200:300]
    bank = ProbeBank(
        {"train": images, "heldout": heldout},
        draws=64,
        sigmas=karras_sigmas(10),
        samples=20,
        sampler_sigmas=karras_sigmas(10),
    )
    references = References(bank, images, heldout=heldout)
    kinds = LinearityProbe, AgreementProbe, LadderProbe, ErrorsProbe, GeneralizationProbe, SampleAgreementProbe
    callbacks = [ProbeCallback(references, [kind(references) for kind in kinds]), MeasurementSchedule({0, 3})]
    return images, callbacks, ImageDataModule(images, heldout, bank, batch_size=50), references.gaussian


def test_the_gaussian_measured_as_a_network_is_the_gaussian(setting, tmp_path):
    images, callbacks, data, _gaussian = setting
    first, second = trained(GaussianDenoiser(estimate(images)), callbacks, data, tmp_path)
    assert (first["kimg"], second["kimg"]) == (0.0, 0.15)
    assert second["epoch"] == pytest.approx(150 / 200)
    for row in (first, second):
        for pool in ("train", "heldout"):
            assert row[f"gaussian/rmse/{pool}"] < 1e-6
            assert row[f"gaussian/nmse/{pool}/sigma_80"] < 1e-5
            assert row[f"linearity/affine_cosine/{pool}"] == pytest.approx(1, abs=1e-6)
            assert row[f"linearity/affine_nmse/{pool}"] < 1e-5
            # it is its own reference line
            for name in ("cosine", "cosine_signed", "nmse"):
                for level in ("", "/sigma_80", "/sigma_0p47"):
                    assert row[f"linearity/{name}/{pool}{level}"] == pytest.approx(
                        row[f"linearity/gaussian_{name}/{pool}{level}"], abs=2e-6
                    )
            # closed form, exactly, and against 32 draws
            seen = project(estimate(images), data.bank.pools[pool])
            for level, error in zip(
                karras_sigmas(10), gaussian_mse(estimate(images), seen, karras_sigmas(10)), strict=True
            ):
                key = f"denoising/gaussian_mse/{pool}/sigma_{sigma_name(level)}"
                assert row[key] == pytest.approx(float(error), rel=1e-6, abs=1e-12)
            for level in ("80", "1p5", "0p47"):
                assert row[f"denoising/mse/{pool}/sigma_{level}"] == pytest.approx(
                    row[f"denoising/gaussian_mse/{pool}/sigma_{level}"], rel=0.25
                )
        assert row["samples/gaussian_cosine"] == pytest.approx(1, abs=1e-5)
        assert row["samples/gaussian_rmse"] < 1e-4
        assert row["generalization/gl_score"] == pytest.approx(row["generalization/gl_score_gaussian"], abs=1e-5)
        assert 0.2 < row["generalization/gl_score_heldout"] < 0.6
        assert row["probes/seconds"] > 0
        assert 0 < row["probes/share"] <= 1
    assert {k: v for k, v in first.items() if k.split("/")[0] not in ("kimg", "epoch", "probes")} == {
        k: v for k, v in second.items() if k.split("/")[0] not in ("kimg", "epoch", "probes")
    }


def test_the_memoriser_measured_as_a_network_is_the_memoriser(setting, tmp_path):
    images, callbacks, data, _ = setting
    row = trained(EmpiricalDenoiser(images), callbacks, data, tmp_path)[-1]
    assert row["empirical/rmse/train"] < 1e-6
    assert row["generalization/gl_score"] < 1e-2
    assert row["generalization/memorized_fraction"] == 1
    assert row["generalization/memorized_fraction_low"] < 1
    assert row["gaussian/rmse/heldout/sigma_0p47"] > 0.1
    assert row["denoising/mse/train"] == pytest.approx(row["denoising/empirical_mse/train"], rel=1e-5)


def test_mirrored_copies_belong_to_every_baseline(digits, tmp_path):
    images, heldout = digits[:60], digits[200:300]
    both = torch.cat([images, mirror(images)])
    bank = ProbeBank(
        {"train": images, "heldout": heldout},
        draws=32,
        sigmas=[2.0, 0.3],
        block=16,
        flip=True,
        samples=20,
        sampler_sigmas=karras_sigmas(10),
    )
    references = References(bank, images, heldout=heldout)
    kinds = AgreementProbe, LadderProbe, ErrorsProbe, GeneralizationProbe
    probes = [kind(references) for kind in kinds]
    callbacks = [ProbeCallback(references, probes), MeasurementSchedule({1})]
    data = ImageDataModule(images, heldout, bank, batch_size=20, flip=True)
    (row,) = trained(EmpiricalDenoiser(both), callbacks, data, tmp_path, steps=1)
    assert row["empirical/rmse/train"] < 1e-6
    assert row["empirical/rmse/heldout"] < 1e-6
    assert row["generalization/gl_score"] < 1e-2  # half of the samples are mirrored copies
    assert row["generalization/memorized_fraction"] == 1
    turned = torch.cat([heldout, mirror(heldout)])
    error = gaussian_mse(estimate(both), project(estimate(both), turned), [2.0, 0.3])
    assert row["denoising/gaussian_mse/heldout/sigma_0p3"] == pytest.approx(float(error[1]), rel=1e-6)


def test_linearity_is_measured_about_the_training_mean(setting, tmp_path):
    images, callbacks, data, _ = setting
    denoiser = lambda x, sigma: x.square()  # noqa: E731
    row = trained(denoiser, [LinearityCallback(callbacks[0].references), callbacks[-1]], data, tmp_path)[-1]
    mean = to_unit(images).mean(0)
    values = []
    for block in range(16):
        x0, eps = data.bank.draw("heldout", block)
        x = (x0 + karras_sigmas(10)[6] * eps)[None]
        level = torch.tensor([karras_sigmas(10)[6]])
        values.append(linearity(denoiser, x, denoiser(x, None), level, mean)["affine_nmse"].mean())
    key = "linearity/affine_nmse/heldout/sigma_0p47"
    assert row[key] == pytest.approx(float(sum(values) / 16), rel=1e-5)


def test_the_logged_learning_rate_is_that_of_the_step(digits, tmp_path):
    bank = ProbeBank({"train": digits[:100]}, draws=8, sigmas=[1.0], block=8)
    data = ImageDataModule(digits[:100], digits[100:], bank, batch_size=100)
    module = EDMModule(MLP((1, 8, 8), 8), batch_size=100, lr=0.01, lr_rampup_kimg=1.0)
    rows = trained(None, [TrainingLog({1, 2, 4}), MeasurementSchedule(set())], data, tmp_path, module=module)
    assert [row["train/lr"] for row in rows] == pytest.approx([0.001, 0.002, 0.004])


def test_every_value_has_its_documented_name(setting, tmp_path):
    _, callbacks, data, gaussian = setting
    row = trained(gaussian, callbacks, data, tmp_path)[-1]
    names = [f"linearity/{n}" for n in ("cosine", "cosine_signed", "nmse", "affine_cosine", "affine_nmse")]
    names += [f"linearity/gaussian_{n}" for n in ("cosine", "cosine_signed", "nmse")]
    names += ["gaussian/rmse", "gaussian/nmse", "empirical/rmse", "linear/weight_nmse"]
    names += [f"ladder/{n}" for n in ("total", "affine", "nonlinear", "weight_gap", "r2")]
    names += ["denoising/mse", "denoising/empirical_mse"]
    levels = ["80", "42p4", "21p1", "9p72", "4p07", "1p5", "0p47", "0p117", "0p0204", "0p002"]
    ends = ["", *(f"/sigma_{s}" for s in levels)]
    measured = {f"{n}/{pool}{end}" for n in names for pool in ("train", "heldout") for end in ends}
    # D_G and D_M differ enough at these levels alone
    measured |= {f"ladder/position/train{end}" for end in ["", *(f"/sigma_{s}" for s in levels[5:])]}
    single = "gl_score gl_score_heldout gl_score_gaussian memorized_fraction"
    exact = {f"denoising/gaussian_mse/{pool}{end}" for pool in ("train", "heldout") for end in ends}
    exact |= {f"generalization/{n}" for n in ("memorized_fraction_low", "memorized_fraction_high")}
    measured |= {f"generalization/{n}" for n in single.split()}
    measured |= {"samples/gaussian_cosine", "samples/gaussian_rmse"}
    expected = measured | {f"{key}_se" for key in measured} | exact
    expected |= {"probes/seconds", "probes/share", "probes/blocks", "kimg", "epoch"}
    assert set(row) == expected
    band = [row[f"gaussian/rmse/train/sigma_{s}"] for s in levels[3:8]]
    assert row["gaussian/rmse/train"] == pytest.approx(sum(band) / 5)


def test_the_blocks_behind_the_values_are_stored(setting, tmp_path):
    _, callbacks, data, gaussian = setting
    rows = trained(gaussian, callbacks, data, tmp_path)
    assert sorted(f.name for f in (tmp_path / "probes").iterdir()) == ["0.15.safetensors", "0.safetensors"]
    found = read_measurement(tmp_path / "probes" / "0.15.safetensors")
    assert found.sigmas[0] == 80
    assert found.hashes["heldout"] == data.bank.hash("heldout") != found.hashes["train"]
    assert set(found.hashes) == {"train", "heldout", "samples"}
    key = "gaussian/nmse/heldout/sigma_0p47"
    assert found.blocks[key].shape == (16,)
    assert found.blocks[key].mean() == pytest.approx(rows[-1][key], rel=1e-12)
    assert found.blocks["generalization/gl_score"].shape == (20,)
    errors = {key for key in rows[-1] if f"{key}_se" in rows[-1]} - {"generalization/gl_score_heldout"}
    assert set(found.blocks) == errors
    for key in errors:
        assert found.values[key] == rows[-1][key]
        assert found.se(key) == pytest.approx(rows[-1][f"{key}_se"], rel=1e-9, abs=1e-14)


def test_lightnings_sanity_check_is_no_measurement(digits, tmp_path):
    """It sees one block of two, and nothing of it may stay in values that are computed once."""
    images, heldout = digits[:200], digits[200:300]
    pools = {"train": images, "heldout": heldout}
    rows = []
    for checks in (0, 1):
        bank = ProbeBank(pools, 32, [2.0, 0.3], block=16, samples=200, sampler_sigmas=karras_sigmas(4))
        references = References(bank, images, heldout=heldout)
        measure = [ProbeCallback(references, [LinearityProbe(references), GeneralizationProbe(references)])]
        data = ImageDataModule(images, heldout, bank, batch_size=50)
        callbacks, folder = [*measure, MeasurementSchedule({1})], tmp_path / str(checks)
        (row,) = trained(references.gaussian, callbacks, data, folder, steps=1, num_sanity_val_steps=checks)
        rows.append({key: value for key, value in row.items() if not key.startswith("probes/")})
    assert rows[0] == rows[1]


def test_a_measurement_that_lacks_blocks_is_refused(setting, tmp_path):
    """As of a Trainer that takes some of them; only Lightning's `fast_dev_run`, which logs nothing, may."""
    _, callbacks, data, denoiser = setting
    with pytest.raises(UserError, match=r"expected every block of the probe bank .* but 13 did not come"):
        trained(denoiser, callbacks, data, tmp_path, limit_val_batches=3)
    trained(denoiser.train(), callbacks[:-1], data, tmp_path, fast_dev_run=2)


def test_what_lacks_blocks_is_not_kept_for_the_next_measurement(digits):
    pools = {"train": digits[:100], "heldout": digits[100:150]}
    bank = ProbeBank(pools, 32, [2.0, 0.3], samples=200, sampler_sigmas=karras_sigmas(3))

    def measured(first):
        references = References(bank, digits[:100])
        instruments = Instruments(references, {"ema": build(references)})
        instruments.to(torch.device("cpu"))
        if first:
            for batch in (bank.batch("train", 0), bank.batch("heldout", 0), bank.batch("samples", 0)):
                instruments.update(evaluate(half, batch), half)
            instruments.result()
            assert instruments.missing == 72  # of 200 samples; and 15 of 16 blocks
        for _ in instruments.measure({"ema": half}, torch.device("cpu")):
            pass
        return instruments.result().row

    assert measured(first=True) == measured(first=False)


def test_validation_alone_says_before_it_measures_that_it_lacks_a_time(setting, tmp_path):
    _, callbacks, data, gaussian = setting
    trainer = pl.Trainer(default_root_dir=tmp_path, callbacks=[callbacks[0]], logger=False, barebones=False)
    with pytest.raises(UserError, match="expected a training DataLoader with a batch size"):
        trainer.validate(Frozen(gaussian), data.bank.loaders(), verbose=False)
    assert not (tmp_path / "probes").exists()


def test_a_file_of_an_earlier_training_in_the_same_folder_is_not_added_to(setting, tmp_path):
    _, callbacks, data, gaussian = setting
    file = tmp_path / "probes" / "0.safetensors"
    trained(gaussian, callbacks, data, tmp_path)
    before = read_measurement(file)
    write_measurement(file, replace(before, values={**before.values, "raw/x": 1.0}))
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    trained(gaussian, callbacks, data, tmp_path)
    after = read_measurement(file)
    assert after.values.keys() == before.values.keys()
    assert after.blocks.keys() == before.blocks.keys()


class Failing(LinearityProbe):
    def pictures(self, folder, kimg):
        raise RuntimeError("no\nroom")


def test_pictures_of_one_probe_that_fail_leave_those_of_the_others(digits, tmp_path, caplog):
    bank = ProbeBank({"train": digits[:50]}, 32, [1.0], samples=4, sampler_sigmas=[80.0, 1.0])
    references = References(bank, digits[:50])
    instruments = Instruments(references, {"ema": [Failing(references), PicturesProbe(references)]})
    instruments.to(torch.device("cpu"))
    for _ in instruments.measure({"ema": half}, torch.device("cpu")):
        pass
    assert [picture.path.parent.name for picture in instruments.pictures(tmp_path, 0.0)] == ["samples"]
    assert caplog.messages == ["pictures of Failing could not be written (no room); the run goes on"]


def test_what_waits_for_the_last_pictures(setting):
    """A run that is asked to stop does not, since its checkpoint comes first; nor does a second Ctrl-C."""
    callback, did = ProbeCallback(setting[1][0].references, []), []
    callback._drawer = SimpleNamespace(drawn=lambda wait: did.append(wait) or [], close=lambda: did.append("closed"))
    for error, expected in (
        (Stopped("SIGTERM", 75), []),
        (KeyboardInterrupt(), [False, "closed"]),
        (ValueError(), [True, "closed"]),
    ):
        did.clear()
        callback.on_exception(None, None, error)
        assert did == expected
    did.clear()
    callback.teardown(None, None, "validate")
    assert did == [True, "closed"]


def test_callbacks_can_be_sent_to_other_processes(setting):
    copy = pickle.loads(pickle.dumps(setting[1][0]))
    assert isinstance(copy, ProbeCallback)


def half(x, sigma):
    return 0.5 * x


def test_baselines_are_computed_once_a_batch_and_kept_while_there_is_room(digits):
    bank = ProbeBank({"train": digits[:50]}, 32, [1.0], sampler_sigmas=[80.0, 1.0], points=["trajectory", "noise"])
    for keep, expected in ((True, [3 * 16, 16]), (False, [3 * 16, 3 * 16])):  # the trajectory moves with the network
        references, counts = References(bank, digits[:50], keep=keep), []
        memoriser, calls = references["empirical"], []
        original, grid = memoriser.forward, memoriser.forward_grid
        memoriser.forward = lambda *a, o=original, c=calls: c.append(1) or o(*a)
        memoriser.forward_grid = lambda *a, g=grid, c=calls: c.append(1) or g(*a)
        for _ in range(2):
            before = len(calls)
            for batch in itertools.chain(*bank.loaders()):
                values, others = (evaluate(lambda x, sigma, a=a: a * x, batch) for a in (0.5, 0.6))
                first = references.at("empirical", values)
                assert references.at("empirical", values) is first
                assert references.pairs(values) is references.pairs(values)
                if batch.pool != "trajectory":  # other weights are measured at the same points
                    assert references.at("empirical", others) is first
            counts.append(len(calls) - before)
        assert counts == expected
    assert references.pools["noise"].eigenvectors is references.pools["train"].eigenvectors
    assert references.pairs(replace(values, pool="trajectory")) is None


def test_raw_weights_need_an_average(setting, tmp_path):
    _, callbacks, data, gaussian = setting
    references = callbacks[0].references
    with pytest.raises(ValueError, match="Expected an `EMA` callback"):
        trained(gaussian, [GaussianCallback(references, "raw"), MeasurementSchedule({1})], data, tmp_path, steps=1)
    with pytest.raises(ValueError, match="weights ema or raw but got mean"):
        GaussianCallback(references, "mean")


def test_a_single_level_outside_the_band_has_no_band_mean():
    def logged(sigmas, defined=True):
        rows = torch.rand(16, len(sigmas), 1, dtype=torch.float64)
        estimate = replace(jackknife(rows, lambda m: {"a": m[..., 0]})["a"], defined=torch.tensor(defined))
        return {key: float(found.value) for key, found in by_level("a/b", "train", estimate, sigmas).items()}

    assert logged([50.0], [True]).keys() == {"a/b/train/sigma_50"}
    assert logged([2.0], [True]).keys() == {"a/b/train", "a/b/train/sigma_2"}
    some = logged([50.0, 2.0, 1.0, 0.5], [True, True, False, True])  # no meaning at one level
    assert some.keys() == {"a/b/train", "a/b/train/sigma_50", "a/b/train/sigma_2", "a/b/train/sigma_0p5"}
    assert some["a/b/train"] == pytest.approx((some["a/b/train/sigma_2"] + some["a/b/train/sigma_0p5"]) / 2)


def test_training_values_are_means_since_the_last_row(setting, tmp_path):
    _, _, data, gaussian = setting
    module = Frozen(gaussian)
    module.losses = [1.0, 2.0, 4.0, 8.0]
    rows = trained(gaussian, [TrainingLog({1, 3, 4}), MeasurementSchedule(set())], data, tmp_path, module=module)
    assert [row["train/loss"] for row in rows] == [1.0, 3.0, 8.0]
    assert [row["kimg"] for row in rows] == pytest.approx([0.05, 0.15, 0.2])
    assert all(row["train/images_per_second"] > 0 for row in rows)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_after_the_last_good_checkpoint(bad, setting, tmp_path):
    _, _, data, gaussian = setting
    module = Frozen(gaussian)
    module.losses = [1.0, 1.0, 1.0, bad, 1.0]
    folder = tmp_path / "checkpoints"
    callbacks = [TrainingLog({2, 6}), MeasurementSchedule(set()), Checkpoints(folder, {2, 6}, set())]
    with pytest.raises(TrainingError, match=r"not finite from step 4 \(0\.2 kimg\); stopped at step 6") as caught:
        trained(gaussian, callbacks, data, tmp_path, steps=8, module=module)
    assert "\n" not in str(caught.value)
    assert sorted(f.name for f in folder.iterdir()) == ["00000002.ckpt", "last.ckpt"]


def test_weights_that_are_not_finite_are_never_saved(setting, tmp_path):
    _, _, data, gaussian = setting
    module = Frozen(gaussian)
    module.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match="a weight is not finite after step 2"):
        trained(
            gaussian,
            [MeasurementSchedule(set()), Checkpoints(tmp_path, {2}, set())],
            data,
            tmp_path,
            module=module,
        )
    assert not list(tmp_path.glob("*.ckpt"))


def test_two_checkpoints_are_kept_and_last_is_the_newest(setting, tmp_path):
    _, _, data, gaussian = setting
    trained(gaussian, [MeasurementSchedule(set()), Checkpoints(tmp_path, {1, 2, 3, 4}, set())], data, tmp_path)
    assert sorted(f.name for f in tmp_path.glob("*.ckpt")) == ["00000003.ckpt", "00000004.ckpt", "last.ckpt"]
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 4
