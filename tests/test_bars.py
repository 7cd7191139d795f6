"""How far a measurement is, off a terminal."""

import re

from gaussbias.system import bars


def test_a_line_a_minute_with_the_time_that_is_left(monkeypatch, capsys):
    """At a steady 10 images a second, of which the first 50 were done when the first word came."""
    now = [1000.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    with bars.bars() as advance:
        for done in range(50, 2001, 50):
            now[0] += 5
            advance("x", done, 2000)
    said = [
        re.fullmatch(r"x: (\d+)% measured, about (\d+) (s|min) left", line)
        for line in capsys.readouterr().err.splitlines()
    ]
    assert [int(line[1]) for line in said] == [30, 60, 90]
    assert [f"{line[2]} {line[3]}" for line in said] == ["2 min", "80 s", "20 s"]
