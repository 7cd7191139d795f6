import math

import pytest

from gaussbias.history import load
from gaussbias.loggers import HistoryLogger, TerminalLogger
from gaussbias.system.errors import UserError


def test_rows_come_back_with_every_digit(tmp_path):
    logger = HistoryLogger(tmp_path / "history.csv")
    logger.log_metrics({"kimg": 0.1, "epoch": 1 / 3, "a/b": 1e-17})
    logger.log_metrics({"kimg": 0.2, "epoch": 2 / 3, "c": math.pi})
    logger.log_metrics({"kimg": 0.3, "epoch": 1.0, "a/b": float("nan")})
    history = load(tmp_path)
    assert history["run"] == [tmp_path.name] * 3
    assert history["kimg"] == [0.1, 0.2, 0.3]
    assert history["epoch"] == [1 / 3, 2 / 3, 1.0]
    assert history["a/b"][0] == 1e-17
    assert math.isnan(history["a/b"][1])
    assert math.isnan(history["a/b"][2])
    assert history["c"][1] == math.pi


def test_a_run_that_continues_replaces_the_rows_after_its_checkpoint(tmp_path):
    first = HistoryLogger(tmp_path / "history.csv")
    for kimg in (0.0, 1.0, 2.0, 3.0):
        first.log_metrics({"kimg": kimg, "epoch": kimg, "a": kimg})
    with (tmp_path / "history.csv").open("a") as file:
        file.write("4.0,4,1")  # of 4.0,4.0,1.25: the line that was being written when the power went
    second = HistoryLogger(tmp_path / "history.csv", from_kimg=2.0)
    second.log_metrics({"kimg": 3.0, "epoch": 3.0, "b": 7.0})
    history = load(tmp_path)
    assert history["kimg"] == [0.0, 1.0, 2.0, 3.0]
    assert history["a"][:3] == [0.0, 1.0, 2.0]
    assert math.isnan(history["a"][3])
    assert history["b"][3] == 7.0


def test_many_runs_are_one_table(tmp_path):
    for name, key in (("x", "a"), ("y", "b")):
        (tmp_path / name).mkdir()
        HistoryLogger(tmp_path / name / "history.csv").log_metrics({"kimg": 1.0, "epoch": 1.0, key: 5.0})
    history = load([tmp_path / "x", tmp_path / "y"])
    assert history["run"] == ["x", "y"]
    assert history["a"][0] == 5
    assert math.isnan(history["a"][1])
    assert {len(column) for column in history.values()} == {2}
    with pytest.raises(UserError, match=r"expected a run folder with history\.csv"):
        load(tmp_path / "z")


def test_the_terminal_shows_measurements_only(capsys):
    logger = TerminalLogger()
    logger.log_metrics({"kimg": 1.0, "train/loss": 0.5})
    assert capsys.readouterr().out == ""
    logger.log_metrics({"kimg": 1.0, "generalization/gl_score": 0.25})
    *legend, header, row = capsys.readouterr().out.splitlines()
    assert len(legend) == 2
    assert header.split()[:4] == ["kimg", "loss", "GL", "memorised"]
    assert row.split() == ["1.00", "0.500", "0.250", *["-"] * 6]
    assert len(row) == len(header) <= 80
    logger.log_metrics({"kimg": 2.0, "generalization/gl_score": 0.5})
    assert capsys.readouterr().out.split()[:3] == ["2.00", "0.500", "0.500"]
