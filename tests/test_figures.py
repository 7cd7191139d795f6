import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from PIL import Image
from safetensors.numpy import save_file

from gaussbias.figures import draw, draw_curves, draw_ladder, draw_ladder_times, draw_samples, newest_samples
from gaussbias.figures.__main__ import main
from gaussbias.figures.curves import PANELS
from gaussbias.figures.samples import PATH_ROWS, ROWS, read_samples
from gaussbias.figures.style import COLOURS, look, names
from gaussbias.history import FORMAT, last, quantile
from gaussbias.loggers import HistoryLogger
from gaussbias.tables.summary import summary


def made(folder, values=3, samples=True, shape=(1, 8, 8), ladder=False, prefix=""):
    """A run folder as a run leaves it."""
    folder.mkdir(parents=True)
    logger = HistoryLogger(folder / "history.csv")
    for i in range(values):
        logger.log_metrics({"kimg": float(i), "epoch": float(i), "train/loss": 1 / (1 + i)})
        keys = [line.key for panel in PANELS for line in panel.lines if line.key != "train/loss"]
        keys += [key for panel in PANELS for key in panel.band or ()]
        logger.log_metrics({"kimg": float(i), "epoch": float(i), **dict.fromkeys(keys, 0.1 * i)})
    if ladder:
        for kimg in range(values):
            write_ladder(folder / "probes" / f"{kimg}.safetensors", kimg, prefix)
    if samples:
        (folder / "samples").mkdir()
        random = np.random.default_rng(0)
        for kimg in ("0", "2", "10.5"):
            tensors = {key: random.integers(0, 256, (10, *shape), np.uint8) for key, _ in ROWS}
            tensors |= {key: random.integers(0, 256, (18, 2, *shape), np.uint8) for key, _ in PATH_ROWS}
            about = {"kimg": kimg, "sigmas": json.dumps(np.geomspace(80, 0.002, 18).tolist())}
            save_file(tensors, folder / "samples" / f"{kimg}.safetensors", about)
    return folder


def write_ladder(file, kimg, prefix=""):
    """A measurement of two levels, whose parts are known; at 1 kimg `affine` is negative."""
    file.parent.mkdir(exist_ok=True)
    affine = -0.01 if kimg == 1 else 0.1 * (kimg + 1)
    values = {"ladder/affine": affine, "ladder/total": affine + 0.2, "denoising/mse": 0.3, "ladder/r2": 0.9}
    values |= {"denoising/gaussian_mse": 0.25, "linearity/affine_cosine": 0.95, "gaussian/rmse": 0.5}
    keys = {
        f"{prefix}{name}/{pool}{end}": (pool, value)
        for name, value in values.items()
        for pool in ("train", "heldout")
        for end in ("", "/sigma_2", "/sigma_0p5")
    }
    blocks = {key: np.array([value - 0.01, value + 0.01] * 8) for key, (_, value) in keys.items()}
    about = {"format": FORMAT, "kimg": str(kimg), "sigmas": "[2.0, 0.5]", "hashes": "{}"}
    about |= {"values": json.dumps({key: value for key, (_, value) in keys.items()})}
    save_file(blocks, file, about | {"pools": json.dumps({key: pool for key, (pool, _) in keys.items()})})


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)


def lines_drawn(monkeypatch, runs, path):
    """The data of the lines of each panel, as matplotlib has them when it saves."""
    seen = {}

    def keep(figure, path):
        for axes in figure.axes:
            lines = [line for line in axes.lines if len(line.get_xdata())]
            seen[axes.get_title(loc="left")] = [(line.get_color(), line.get_xydata().tolist()) for line in lines]
        return path

    monkeypatch.setattr("gaussbias.figures.curves.save", keep)
    draw_curves(runs, path)
    return seen


def test_a_folder_may_have_any_name(tmp_path):
    """Bytes that are no characters, and what matplotlib reads as mathematics."""
    assert names([tmp_path / os.fsdecode(b"b\xff"), tmp_path / "$x$"]) == [r"b\udcff", r"\$x\$"]


def test_curves_are_the_logged_values_one_colour_a_run(tmp_path, monkeypatch):
    seen = lines_drawn(monkeypatch, [made(tmp_path / "a"), made(tmp_path / "b", values=2)], tmp_path / "c.png")
    assert set(seen) == {panel.title for panel in PANELS}
    first, second = COLOURS[:2]
    points = [[0, 0], [1, 0.1], [2, 0.2]]
    assert seen["Memorised samples"] == [(first, points), (second, points[:2])]
    assert seen["GL score"] == [(first, points)] * 3 + [(second, points[:2])] * 3
    assert seen["Training loss"][0] == (first, [[0, 1], [1, 1 / 2], [2, 1 / 3]])


def test_every_panel_has_axes_with_units_and_logged_names(root):
    text = (root / "docs" / "metrics.md").read_text()
    for panel in PANELS:
        assert panel.axis
        for key in [line.key for line in panel.lines] + list(panel.band or ()):
            assert f"`{key.removesuffix('/heldout').removesuffix('/train')}`" in text, key


def test_the_command_draws_one_run_into_its_folder_and_several_elsewhere(tmp_path, capsys, monkeypatch):
    a, _ = made(tmp_path / "a"), made(tmp_path / "b", shape=(3, 8, 8))
    assert main([str(a)]) == 0
    assert capsys.readouterr().out.split() == [str(a / "figures" / name) for name in ("curves.png", "samples.png")]
    monkeypatch.chdir(tmp_path)
    assert main(["a", "b"]) == 0
    assert main(["a", "b", "--out", "c"]) == 0
    for folder in ("figures", "c"):
        for name in ("curves.png", "samples.png"):
            picture = pixels(tmp_path / folder / name)
            assert picture.shape[1] > 1000
            assert picture[..., :3].std() > 10
    one, two = (pixels(folder / "samples.png") for folder in (a / "figures", tmp_path / "c"))
    assert len(two) == 2 * len(one)


def test_the_newest_samples_are_the_ones_of_the_largest_kimg(tmp_path):
    assert newest_samples(made(tmp_path / "a")).name == "10.5.safetensors"
    assert newest_samples(made(tmp_path / "b", samples=False)) is None
    assert [path.name for path in draw([tmp_path / "b"], tmp_path / "c")] == ["curves.png"]


def test_a_run_that_has_just_begun_can_be_drawn(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    HistoryLogger(folder / "history.csv").log_metrics({"kimg": 0.0, "epoch": 0.0, "generalization/gl_score": 1.0})
    assert main([str(folder)]) == 0


def test_pictures_show_the_samples_that_were_stored(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("gaussbias.figures.samples.draw_tiles", lambda axes, rows, labels: seen.append((rows, labels)))
    run = made(tmp_path / "a")
    draw_samples([run / "samples" / "2.safetensors"], tmp_path / "x.png")
    *_, tensors = read_samples(run / "samples" / "2.safetensors")
    (rows, labels), (paths, _) = seen
    assert labels[0] == "network"
    assert all(np.array_equal(row, tensors[key]) for row, (key, _) in zip(rows, ROWS, strict=True))
    assert len(paths) == 6
    assert np.array_equal(paths[3], tensors["network_path"][[0, 2, 4, 6, 8, 9, 11, 13, 15, 17], 1])


def test_what_is_not_a_number_is_a_gap(tmp_path, monkeypatch):
    run = made(tmp_path / "a")
    logger = HistoryLogger(run / "history.csv", from_kimg=2.0)
    for kimg, value in ((3.0, math.nan), (4.0, 0.5)):
        logger.log_metrics({"kimg": kimg, "epoch": kimg, "generalization/gl_score": value})
    points = lines_drawn(monkeypatch, [run], tmp_path / "c.png")["GL score"][0][1]
    assert [x for x, _ in points] == [0, 1, 2, 3, 4]
    assert math.isnan(points[3][1])
    assert points[4][1] == 0.5
    assert last(run)["generalization/gl_score"] == 0.5
    logger.log_metrics({"kimg": 5.0, "epoch": 5.0, "generalization/gl_score": math.nan})
    assert re.search(r"samples at 5 kimg.*\n  GL score +nan", summary(run))


def test_every_run_looks_different():
    looks = [tuple(look(number).items()) for number in range(56)]
    assert len(set(looks)) == 56


def test_names_and_channels_of_all_kinds_can_be_drawn(tmp_path, capsys):
    for name, shape in (("$x^$", (1, 8, 8)), ("日本 run", (4, 8, 8)), ("two", (2, 8, 8))):
        assert main([str(made(tmp_path / name, shape=shape))]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", ["nowhere", "damaged", "history", "binary", "kimg", "keys", "shapes", "empty"])
def test_mistakes_are_one_line(wrong, tmp_path, capsys):
    folder = tmp_path / wrong
    if wrong != "nowhere":
        made(folder)
    if wrong == "damaged":
        (folder / "samples" / "11.safetensors").write_bytes(b"x")
    if wrong == "keys":
        save_file({"network": np.zeros(3)}, folder / "samples" / "11.safetensors")
    if wrong == "shapes":
        tensors = {key: np.zeros((2, 1, 8, 8), np.uint8) for key, _ in (*ROWS, *PATH_ROWS)}
        save_file(tensors, folder / "samples" / "11.safetensors", {"kimg": "11", "sigmas": "[1, 2]"})
    contents = {"history": b"kimg,a\n1,hello\n", "binary": bytes(range(256)) + b"\n", "kimg": b"a,b\n1,2\n"}
    if wrong in contents:
        (folder / "history.csv").write_bytes(contents[wrong])
    if wrong == "empty":
        (folder / "history.csv").write_text("kimg,epoch\n")
        assert main([str(folder)]) == 0
        return
    assert main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gaussbias.figures: expected ")
    assert error.count("\n") == 1


def test_figures_need_no_torch():
    code = "import sys, gaussbias.figures; print(sorted({'torch', 'lightning', 'wandb'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("prefix", ["", "raw/"])  # a run that measures raw weights alone is drawn as well
def test_the_parts_over_time_are_those_that_were_measured(prefix, tmp_path, monkeypatch):
    run, seen = made(tmp_path / "a", ladder=True, prefix=prefix), {}

    def keep(figure, path):
        for axes in figure.axes:
            bars = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
            seen[axes.get_title(loc="left")] = (axes.lines, axes.collections, bars)
        return path

    monkeypatch.setattr("gaussbias.figures.ladder.save", keep)
    draw_ladder_times([run], tmp_path / "x.png")
    assert set(seen) == {"a, train", "a, heldout"}
    lines, areas, bars = seen["a, heldout"]
    points = [[0, 0.3], [1, 0.19], [2, 0.5]]
    total = next(line for line in lines if line.get_label().startswith("both"))
    assert np.allclose(total.get_xydata(), points)
    corners = areas[0].get_paths()[0].vertices
    assert [1, -0.01] in corners.round(9).tolist()  # a negative part stays below 0
    half = quantile(16) * np.std([-0.01, 0.01] * 8, ddof=1) / 4
    (low, high) = bars[-1].get_segments()[0]
    assert (high[1] - low[1]) / 2 == pytest.approx(half)


def test_a_measurement_is_drawn_against_sigma(tmp_path, monkeypatch):
    run, seen = made(tmp_path / "a", ladder=True), []
    monkeypatch.setattr("gaussbias.figures.ladder.save", lambda figure, path: seen.append(figure) or path)
    draw_ladder([run / "probes" / "2.safetensors"], tmp_path / "x.png")
    (figure,) = seen
    assert len(figure.axes) == 8
    parts, errors, linearity, distances = figure.axes[:4]
    assert parts.get_title(loc="left") == "a, 2 kimg, train"
    assert [text.get_text() for text in parts.get_legend().get_texts()] == [
        "affine part",
        "nonlinear part",
        "both: $D$ to $D_G$",
        "error of $D_G$",
    ]
    assert {text.get_text() for text in errors.get_legend().get_texts()} == {"network", "$D_G$", "affine part"}
    assert {text.get_text() for text in linearity.get_legend().get_texts()} == {
        "cosine about the mean",
        "$R^2$ of the affine fit",
    }
    assert np.allclose(distances.lines[0].get_xydata(), [[2, 0.5], [0.5, 0.5]])
    assert all(axes.get_xscale() == "log" for axes in figure.axes)


def test_the_command_draws_ladders_where_they_were_measured(tmp_path, capsys):
    run = made(tmp_path / "a", ladder=True)
    assert main([str(run)]) == 0
    names = ("curves.png", "samples.png", "ladder.png", "ladder_kimg.png")
    assert capsys.readouterr().out.split() == [str(run / "figures" / name) for name in names]
    assert all(pixels(run / "figures" / name)[..., :3].std() > 10 for name in names)
    (run / "probes" / "3.safetensors").write_bytes(b"x")
    assert main([str(run)]) == 2
    assert "expected a measurement at" in capsys.readouterr().err


def test_curves_have_the_bands_of_their_errors(tmp_path, monkeypatch):
    run, seen = made(tmp_path / "a", values=0), {}
    logger = HistoryLogger(run / "history.csv")
    key = "samples/gaussian_cosine"
    for kimg in (0.0, 1.0):
        logger.log_metrics({"kimg": kimg, "epoch": 0.0, key: 0.5, f"{key}_se": 0.1, "probes/blocks": 16.0})
    monkeypatch.setattr("gaussbias.figures.curves.save", lambda figure, path: seen.update(figure=figure) or path)
    draw_curves([run], tmp_path / "x.png")
    axes = next(a for a in seen["figure"].axes if a.get_title(loc="left").startswith("Samples against"))
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.5 - 0.1 * quantile(16), 0.5 + 0.1 * quantile(16)))
