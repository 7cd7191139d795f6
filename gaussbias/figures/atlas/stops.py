"""What early stopping would have chosen, against training to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from gaussbias import catalogue
from gaussbias.analysis import RULES, Chosen, Study, Value
from gaussbias.analysis.studies import value_of
from gaussbias.figures.atlas.axes import against_sizes, draw_study_figure, finish, line, logarithmic, panels
from gaussbias.figures.style import COLOURS

VALUES = (
    ("kimg", "Kept", "kimg"),
    (catalogue.GL_SCORE.name, "GL score", "distance to nearest\ntraining image / norm"),
    (catalogue.MEMORIZED_FRACTION.name, "Memorised samples", "fraction"),
    (catalogue.MSE.on("heldout"), "Error, held-out", "mean square, data units"),
)
STYLES = ("-", "--", "-.", ":", "-", "--")
Choices = Mapping[str, Sequence[Chosen]]
"""What rules choose in each run, by its name."""


def draw_stops(study: Study, chosen: Choices, folder: Path) -> list[Path]:
    """Draw what each rule would have kept, against N."""
    return draw_study_figure(stops_figure(study, chosen), folder, f"stopping_{study.name}")


def kept(study: Study, chosen: Choices, rule: str, key: str, images: int, channels: int) -> Value:
    """The mean of a value at what a rule keeps, over runs of one size and capacity."""
    runs = study.ended(images, channels)
    return value_of([choice.row for run in runs for choice in chosen.get(run.name, ()) if choice.rule == rule], key)


def stops_figure(study: Study, chosen: Choices) -> Figure:
    """When each rule keeps the weights, and their GL score, memorised samples and error, at the main capacity."""
    width = study.main_width()
    sizes = study.ended_sizes(width)
    figure, grid = panels(len(VALUES))
    for (key, title, label), axes in zip(VALUES, grid, strict=True):
        for place, rule in enumerate(RULES):
            values = [kept(study, chosen, rule, key, size, width) for size in sizes]
            line(axes, sizes, values, COLOURS[place], rule, STYLES[place], place)
        against_sizes(axes, sizes)
        finish(axes, title, label, legend=key == "kimg")
        if key == "kimg":
            logarithmic(axes)
    figure.suptitle(f"{study.title}, {width} channels: the weights that each rule keeps", fontsize=10)
    return figure
