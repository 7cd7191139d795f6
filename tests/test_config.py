import os
import subprocess
import sys

import pytest

from gaussbias.config import Config, differences, load, to_container, to_yaml
from gaussbias.config.roles import Role, keys_with, takes, without_meaning
from gaussbias.system.errors import UserError


def message(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(None, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_embedded_default_is_digits_yaml(root):
    assert load() == load(root / "configs" / "digits.yaml")
    assert load().run.name == "digits"


def test_the_images_of_the_embedded_default_say_nothing_of_others(root):
    """It holds out 397 of 1,797 digits, which may be all of another set."""
    assert load().data.n_heldout == load(None, ["data.source=digits"]).data.n_heldout == 397
    other = load(None, ["data.source=array", "data.path=x.npy"])
    assert other.data.n_heldout is None
    assert other.model == load().model
    named = load(root / "configs" / "digits.yaml", ["data.source=array", "data.path=x.npy"])
    assert named.data.n_heldout == 397


def test_overrides_with_and_without_dashes_and_python_text():
    config = load(None, ["train.kimg=3", "--train.lr=0.5", "--data.n_train=None", "data.flip=True", "train.devices=2"])
    assert (config.train.kimg, config.train.lr, config.data.n_train) == (3.0, 0.5, None)
    assert config.data.flip is True
    assert config.train.devices == 2


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("data.batchsize=3", ["data.batchsize", "Did you mean train.batch_size?"]),
        ("trian.lr=3", ["trian", "Did you mean train.lr?"]),
        ("chanels=3", ["chanels", "Did you mean model.channels?"]),
        ("train.lr=abc", ["train.lr", "expected number", "'abc'"]),
        ("train.batch_size=1.5", ["train.batch_size", "expected whole number", "1.5"]),
        ("data.half=S3", ["data.half", "expected one of S1, S2 or null", "'S3'"]),
        ("train=3", ["train: expected keys", "3"]),
        ("model.channel_mult=[1,1.5]", ["model.channel_mult", "a list of whole numbers", "1.5"]),
        ("probes.sigmas=[1,1.0001]", ["probes.sigmas", "both named 1"]),
        ("probes.sigmas=[1,0]", ["probes.sigmas", "above 0", "0"]),
        ("probes.draws=100 probes.block=64", ["probes.draws", "multiple of probes.block=64", "16 blocks", "1024"]),
        ("probes.draws=51", ["probes.draws", "16 or more blocks", "got 51", "next number that has them is 52"]),
        ("probes.draws=514", ["probes.draws", "got 514", "520"]),
        ("probes.pools=[noise]", ["probes.pools", "train or heldout"]),
        ("probes.block=5", ["probes.block", "even number"]),
        ("probes.weights=[mean]", ["probes.weights", "ema, raw", "mean"]),
        ("probes.weights=[raw] train.ema_halflife_kimg=null", ["probes.weights", "train.ema_halflife_kimg=null"]),
        ("probes.sampler_steps=1", ["probes.sampler_steps", "at least 2"]),
        ("probes.pools=[train,test]", ["probes.pools", "train, heldout, trajectory, noise"]),
        ("data.n_train=1", ["data.n_train", "at least 2"]),
        ("data.source=idx", ["data.path", "null", "data.path=PATH"]),
        ("data.path=x.zip", ["data.path", "data.source=digits reads no file"]),
        ("run.name=a/b", ["run.name", "one folder", "run.root"]),
        ("train.kimg=-1", ["train.kimg", "above 0", "-1"]),
        ("train.kimg=inf", ["train.kimg", "finite"]),
        ("noise.P_mean=nan", ["noise.P_mean", "finite", "nan"]),
        ("run.project=a/b", ["run.project", "'a/b'"]),
        ("train.lr=???", ["train.lr", "got ???"]),
        ("train.lr=${foo}", ["train.lr: expected number, got '${foo}'"]),
        ("foo", ["section.key=value", "'foo'"]),
        ("train.lr=[1", ["train.lr=[1"]),
    ],
)
def test_each_mistake_is_one_line_that_names_the_key(override, parts):
    text = message(*override.split())
    for part in parts:
        assert part in text


@pytest.mark.parametrize("name", ["007", "2024_01", "1e3", "12:30:00", "true", 'it\'s "x"'])
def test_text_stays_text(name, tmp_path):
    assert load(None, [f"run.name={name}"]).run.name == name
    file = tmp_path / "a.yaml"
    file.write_text("run: {name: 7}\n")
    with pytest.raises(UserError, match=r"run\.name: expected text, got 7; put it in quotes"):
        load(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10), ("0100", 100), ("1_000", 1000), ("+7", 7), ("-3", -3), ("'12'", 12), ("!!int 010", 10)]
    + [(text, None) for text in ("0x10", "0o17", "0b11", "1:30", "1e3", "1.0", "yes", "2026-01-01")],
)
def test_whole_numbers_are_decimal_or_refused(text, value, tmp_path):
    """YAML 1.1 reads 010 as 8, and 1:30 as 90."""
    file = tmp_path / "a.yaml"
    file.write_text(f"run: {{seed: {text}}}\n")
    for given in ((None, [f"run.seed={text}"]), (file, [])):
        if value is None:
            with pytest.raises(UserError, match=r"run\.seed: expected whole number, got "):
                load(*given)
        else:
            assert load(*given).run.seed == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", 10.0), ("010.5", 10.5), ("1e1", 10.0), (".5", 0.5), ("5.", 5.0), ("1E-3", 1e-3), ("1_0.5", 10.5)]
    + [(text, None) for text in ("1:30.5", "0x1p3", "0o17", "on", "1,5")],
)
def test_numbers_are_decimal_or_refused(text, value, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"train: {{kimg: '{text}'}}\n" if "," in text else f"train: {{kimg: {text}}}\n")
    for given in ((None, [f"train.kimg={text}"]), (file, [])):
        if value is None:
            with pytest.raises(UserError, match=r"train\.kimg: expected number, got "):
                load(*given)
        else:
            assert load(*given).train.kimg == value


def test_texts_and_switches_are_what_they_look_like(tmp_path):
    """YAML 1.1 reads on, no and 1:30 as true, false and 90; texts come back as they were from what a run stores."""
    file = tmp_path / "a.yaml"
    words = ["on", "no", "010", "1_0", "1:30", "2026-01-01", "0x1f"]
    for word in words:
        file.write_text(f"run: {{group: {word}}}\ndata: {{flip: on}}\n")
        read = load(file, ["run.tags=[" + ",".join(words) + "]"])
        assert (read.run.group, read.run.tags, read.data.flip) == (word, words, True)
        file.write_text(to_yaml(read))
        assert load(file) == read
    assert load(None, ["run.tags=[7,true,1.50]"]).run.tags == ["7", "true", "1.50"]
    assert load(None, ["data.flip=off"]).data.flip is False
    file.write_text("run: {tags: [7]}\n")
    with pytest.raises(UserError, match=r"run\.tags: expected texts, got 7; put it in quotes"):
        load(file)
    assert load(None, ["data.n_train=~", "run.group=None"]).data.n_train is None


def test_files_of_other_encodings_and_kinds_are_one_line(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfrun: {group: \xc3\xbc}\n")  # a byte order mark
    assert load(file).run.group == "ü"
    file.write_bytes(b"run: {group: \xfc}\n")
    with pytest.raises(UserError, match=r"--config: cannot read .*a\.yaml: 'utf-8' codec"):
        load(file)
    file.write_text("7\n")
    with pytest.raises(UserError, match=r"expected sections with keys .*, got 7"):
        load(file)
    file.write_text("data: {n_train: 10, n_train: 20}\n")
    with pytest.raises(UserError, match="duplicate key n_train"):
        load(file)


def test_a_path_that_cannot_be_stored_is_one_line():
    path = os.fsdecode(b"/data/\xe4.npy")
    text = message("data.source=array", f"data.path={path}")
    assert text.startswith(r"data.path: expected text in UTF-8, in which it can be stored, got '/data/\udce4.npy'")
    assert load(None, ["data.source=array", "data.path=/data/ä.npy"]).data.path == "/data/ä.npy"


def test_the_last_of_two_overrides_counts_with_dashes_or_without():
    from gaussbias.fit import _parse

    options = _parse(["--train.lr=1", "train.lr=2", "--train.lr=3", "--resume"])
    assert load(None, options.overrides).train.lr == 3
    assert options.resume


def test_mistakes_in_a_file_name_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: {chanels: 3}\n")
    with pytest.raises(UserError, match=r"mine\.yaml: model\.chanels: .*Did you mean model\.channels"):
        load(file)
    file.write_text("- 1\n")
    with pytest.raises(UserError, match="expected sections"):
        load(file)
    file.write_text("model: {channels: [\n")
    with pytest.raises(UserError, match="not valid YAML"):
        load(file)
    with pytest.raises(UserError, match="found none at"):
        load(tmp_path / "missing.yaml")


def test_what_is_printed_loads_again(tmp_path):
    config = load(None, ["data.n_train=100", "probes.sigmas=[1,0.1]"])
    file = tmp_path / "again.yaml"
    file.write_text(to_yaml(config))
    assert load(file) == config
    assert list(differences(to_container(config), to_container(load(file, ["train.lr=7"])))) == [
        ("train.lr", config.train.lr, 7.0)
    ]


@pytest.mark.parametrize("arguments", [["--help"], ["--print-config", "train.kimg=3"], ["train.kimgs=3"]])
def test_help_configuration_and_mistakes_do_not_import_torch(arguments):
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['fit', *{arguments!r}]\n"
        "try:\n    runpy.run_module('gaussbias.fit', run_name='__main__')\n"
        "except SystemExit as stop:\n    print('exit', stop.code)\n"
        "print(sorted({'torch', 'lightning', 'wandb', 'numpy', 'diffusers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, stop, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert stop == ("exit 2" if "kimgs" in arguments[0] else "exit 0")
    assert "Traceback" not in done.stderr
    if "--print-config" in arguments:
        assert "  kimg: 3.0" in shown
    if "kimgs" in arguments[0]:
        assert done.stderr.count("\n") == 1
        assert "train.kimg" in done.stderr


def test_each_role_of_a_key_is_what_it_was():
    """The lists that commands had before keys carried their roles, written out once more."""
    run = {f"run.{name}" for name in to_container(Config())["run"]} - {"run.seed"}
    assert keys_with(Role.FREE) == run | {
        "data.path",
        "data.heldout_path",
        "data.cache",
        "linear.teacher",
        "train.kimg",
        "train.microbatch",
        "train.accelerator",
        "train.devices",
        "train.num_nodes",
        "train.strategy",
        "train.checkpoint_every_kimg",
        "train.log_every_kimg",
        "train.compile",
        "probes.first_kimg",
        "probes.every_kimg",
        "stop.gaussian_gap",
        "stop.patience",
        "stop.errors",
        "stop.memorization",
        "stop.memorized_fraction",
        "stop.gap",
        "stop.gap_z",
        "stop.novelty",
        "stop.novelty_z",
        "probes.growth",
        "probes.cycles",
        "probes.cycle_sigma",
        "train.checkpoints_kept",
    }
    assert keys_with(Role.FORCED) == {
        "model.dropout",
        "noise.P_mean",
        "noise.P_std",
        "train.lr",
        "train.lr_rampup_kimg",
        "train.ema_rampup_ratio",
        "train.grad_clip",
        "train.precision",
        "probes.samples",
        "probes.sampler",
        "probes.sampler_steps",
        "probes.surrogate",
        "probes.features",
        "probes.theories",
        "probes.theory_samples",
        "probes.also",
        "probes.per_class",
        "probes.guidance",
        "model.label_dropout",
    }
    assert not keys_with(Role.FREE) & keys_with(Role.FORCED)
    assert keys_with(Role.PLACE) == run | {
        "data.path",
        "data.heldout_path",
        "data.cache",
        "train.accelerator",
        "train.devices",
        "train.num_nodes",
        "train.checkpoints_kept",
    }
    assert not keys_with(Role.AXIS) & keys_with(Role.METHOD)
    assert without_meaning("edm") == ("linear.",)
    assert without_meaning("linear") == ("model.", "noise.")
    assert without_meaning("gaussian") == ("model.", "noise.", "linear.")
    assert takes("probes.drawss", Role.MEASURE)  # so that the likely spelling is named
    assert not takes("train.lr", Role.MEASURE)


def test_keys_that_are_no_more_are_left_out_where_they_meant_nothing(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text("linear:\n  antithetic: false\n  symmetrize: false\n")
    assert "antithetic" not in to_yaml(load(file))
    file.write_text("linear:\n  symmetrize: true\n")
    with pytest.raises(UserError, match=r"linear\.symmetrize: expected no such key, since it was removed"):
        load(file)


def test_the_images_of_a_labelled_teacher_are_taken_without_labels(tmp_path):
    """A surrogate has no classes: `linear.labels` says at which one the teacher is asked. What is asked for stands."""
    (tmp_path / "config.yaml").write_text("data: {source: digits, n_train: 75, labels: true}\n")
    keys = ["module.kind=linear", f"linear.teacher={tmp_path}", "linear.labels=3"]
    config = load(None, keys)
    assert (config.data.n_train, config.data.labels) == (75, False)
    assert load(None, [*keys, "data.labels=true"]).data.labels


@pytest.mark.parametrize(("given", "expected"), [("1", 1), ("0.25", 0.25), ("auto", "auto")])
def test_the_size_of_the_data_may_be_a_whole_number(given, expected):
    assert load(None, [f"model.sigma_data={given}"]).model.sigma_data == expected


def test_the_size_of_the_data_is_a_number():
    with pytest.raises(UserError, match=r"model.sigma_data: expected number or auto, got .*large"):
        load(None, ["model.sigma_data=large"])
