"""All logged values are in the catalogue, and none is spelled anywhere else."""

import ast
from pathlib import Path

import pytest
from runs import SMALL

import gaussbias
from gaussbias import catalogue
from gaussbias.catalogue import ENTRIES, OF_CLASSES, POOLS, known_entry, take_apart
from gaussbias.fit import main as fit
from gaussbias.history import load
from gaussbias.probes import PROBES, PicturesProbe, SurrogateProbe, TeacherProbe

PACKAGE = Path(gaussbias.__file__).parent


def strings(file):
    """The texts in a file's code, documentation apart."""
    tree = ast.parse(file.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def test_no_logged_name_is_spelled_beside_the_catalogue():
    groups = {name.partition("/")[0] for name in ENTRIES} | {"theory"}
    metrics = {name.partition("/")[2] for name in ENTRIES if "<" not in name}
    assert len(ENTRIES) > 60
    seen = 0
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        for line, text in strings(file):
            seen += 1
            if name == "catalogue.py":
                continue
            group, slash, rest = text.partition("/")
            spelled = slash and group in groups and (not rest or any(rest.startswith(metric) for metric in metrics))
            assert not spelled or text == "probes/", f"{name}:{line} spells {text!r}"
    assert seen > 3000


def test_it_is_free_of_torch():
    imported = {
        node.module
        for node in ast.walk(ast.parse((PACKAGE / "catalogue.py").read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    assert {name.partition(".")[0] for name in imported} <= {
        "__future__",
        "collections",
        "dataclasses",
        "functools",
        "pathlib",
        "typing",
        "gaussbias",
    }


def test_references_and_names_are_there():
    for entry in ENTRIES.values():
        assert entry.title
        assert entry.meaning
        assert set(entry.pools) <= set(POOLS)
        for other in (entry.gaussian, entry.ideal, entry.null):
            if isinstance(other, str):
                assert other in ENTRIES
                assert set(ENTRIES[other].pools) >= set(entry.pools)
    titles = [entry.title for entry in ENTRIES.values()]
    assert len(set(titles)) == len(titles)


def test_each_probe_says_what_it_measures():
    probes = [*PROBES, SurrogateProbe, TeacherProbe]
    named = [entry.name for probe in probes for entry in probe.entries]
    assert len(set(named)) == len(named)
    assert set(named) <= set(ENTRIES)
    assert not PicturesProbe.entries


def test_a_run_logs_what_the_catalogue_has_and_where(tmp_path):
    """On all pools, of both weights, with rules; and each entry of a pool on all of its pools."""
    keys = [*SMALL, "probes.pools=[train,heldout,trajectory,noise]", "probes.weights=[ema,raw]", "train.kimg=0.2"]
    keys += [
        "probes.first_kimg=0.1",
        "stop.gaussian_gap=mark",
        "stop.memorization=mark",
        "stop.gap=mark",
        "stop.novelty=mark",
    ]
    assert fit([*keys, f"run.root={tmp_path}", "run.name=x", "run.pictures=none", "probes.samples=16"]) == 0
    columns = [key for key in load(tmp_path / "x") if key not in ("run", "kimg", "epoch")]
    seen = {}
    for key in columns:
        name = take_apart(key)
        entry = known_entry(name.entry)
        assert (name.pool in entry.pools) if entry.pools else not name.pool, key
        assert bool(name.level) <= entry.levels
        assert not (name.raw and entry.reference and name.pool != "trajectory"), key
        seen.setdefault(entry.name, set()).add(name.pool)
    for probe in PROBES:
        for entry in set(probe.entries) - set(OF_CLASSES):
            assert seen[entry.name] == (set(entry.pools) or {""}), entry.name
    assert not (tmp_path / "x" / "catalogue.json").exists()
    assert not (tmp_path / "x" / "figures").exists()


@pytest.mark.parametrize("key", ["raw/ladder/r2/heldout/sigma_0p47_se", "generalization/memorized_fraction_low"])
def test_names_are_taken_apart_and_put_together(key):
    name = take_apart(key)
    entry = ENTRIES[name.entry]
    again = entry.on(name.pool, 0.47) if name.pool else entry.name
    assert (catalogue.RAW if name.raw else "") + again + (catalogue.SE if name.error else "") == key


def test_extra_entries_come_back_from_a_run_folder(tmp_path):
    own = catalogue.theory_entries("x")
    catalogue.write_extra(tmp_path, [*own, catalogue.MSE])
    assert catalogue.read_extra(tmp_path, tmp_path / "none") == list(own)
    (tmp_path / catalogue.FILE).write_text('[{"name": 3}]')
    assert catalogue.read_extra(tmp_path) == []
