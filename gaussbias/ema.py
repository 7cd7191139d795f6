"""`python -m gaussbias.ema RUN`: averages of a run's weights of any length, made afterwards, and what each does."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gaussbias import config as configuration
from gaussbias.catalogue import (
    GAP_Z,
    GAUSSIAN_RMSE,
    GL_SCORE,
    MEMORIZED_FRACTION,
    MEMORIZED_HIGH,
    MEMORIZED_LOW,
    MSE,
    SE,
)
from gaussbias.config.checks.modules import LONGEST, SHORTEST
from gaussbias.config.roles import Role, takes
from gaussbias.config.trust import check_code, own_cache
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import Parser, command, say, with_error
from gaussbias.tables.columns import table

USAGE = "python -m gaussbias.ema RUN [--std LENGTHS] [--kimg T] [--save] [section.key=value ...]"
EPILOG = """\
RUN is a run folder, of a run with train.ema_lengths. The length of an average of weights is the standard deviation of
its profile, how much the weights at each time count, over the time of training (Karras et al. 2024, arXiv 2312.02696).
LENGTHS is a list (0.03,0.05,0.1), or a range with a number of lengths (0.03..0.15:9; 7 of them unless it is said).
Overrides name probes.*, where the images lie (data.path), the device (train.accelerator), or how many images it
evaluates at once (train.microbatch).
Results go to RUN/measured/averages_<kimg>_<draws>.csv and RUN/figures/averages.png; with --save each average goes to
RUN/averages/<kimg>_<length>/denoiser.safetensors.
"""
DEFAULT = "0.03..0.15"
SEVERAL, MOST = 7, 50
"""Lengths of a range, unless it is said, and at most."""
POOR = 1e-2
"""From this distance of a profile to that which it should have it is said."""
COLUMNS = (
    ("error, held-out", MSE.on("heldout")),
    ("error, training", MSE.on("train")),
    ("rmse to D_G", GAUSSIAN_RMSE.on("heldout")),
    ("gap, in errors", GAP_Z.name),
    ("GL", GL_SCORE.name),
    ("memorised", MEMORIZED_FRACTION.name),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return command("gaussbias.ema", lambda: _averages(given), interrupted="what was measured so far is in RUN/measured")


def _averages(arguments: list[str]) -> int:
    options = _parse(arguments)
    folder, lengths = options.run, read_lengths(options.std)
    if not RunFolder(folder).config.exists():
        raise UserError(f"expected a run folder with config.yaml, found none at {folder}")
    given = {override.partition("=")[0]: override for override in options.overrides}
    for key, override in given.items():
        if not takes(key, Role.MEASURE, Role.METHOD):
            raise UserError(
                f"{override}: expected a key of probes., data.path, data.heldout_path, data.source, train.accelerator "
                "or train.microbatch; other keys are those of the run"
            )
    config = configuration.load(RunFolder(folder).config, options.overrides)
    check_code(configuration.dotted(configuration.to_container(config)), given, str(folder))
    config = own_cache(config, given)
    try:
        RunFolder(folder).measured.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {RunFolder(folder).measured}: {error.strerror}") from None
    from gaussbias.figures.averages import draw_averages
    from gaussbias.probes import Measured
    from gaussbias.system.bars import bars
    from gaussbias.training.averaging import kept_in, measure_averages

    kept = sorted({float(average.length) for average in kept_in(folder)})
    found: list[Measured] = []
    values: list[dict[str, float]] = []
    missed: list[float] = []
    places: list[Path] = []
    file = Path()
    with bars() as advance:
        for rebuilt, measured, place in measure_averages(config, folder, lengths, options.kimg, advance, options.save):
            found.append(measured)
            values.append(measured.row)
            missed.append(rebuilt.missed)
            places += [] if place is None else [place]
            assert measured.kimg is not None
            file = RunFolder(folder).measured / f"averages_{measured.name}.csv"
            _write(file, lengths, missed, values)  # what is measured stays, whatever comes after it
    kimg, made_of = found[0].kimg, " and ".join(f"{length:g}" for length in kept)
    say(f"{folder} at {kimg:g} kimg, averages made of those of the lengths {made_of}:")
    rows = [
        [f"{length:.3g}", *_cells(row), f"{miss:.1g}"]
        for length, row, miss in zip(lengths, values, missed, strict=True)
    ]
    say(table([["length", *(title for title, _ in COLUMNS), "profile missed by"], *rows]))
    say(_best(lengths, found))
    for length, miss in zip(lengths, missed, strict=True):
        if miss > POOR:
            say(
                f"warning: of what was kept the length {length:.3g} is made to {miss:.1%} of its profile; write "
                "averages more often (train.ema_every_kimg), or keep a length nearer to it"
            )
    title = f"{folder.absolute().name}, {kimg:g} kimg"
    picture = draw_averages(lengths, values, kept, title, RunFolder(folder).figures / "averages.png")
    say("\n".join(map(str, (file, picture, *places))))
    return 0


def _write(
    file: Path, lengths: Sequence[float], missed: Sequence[float], values: Sequence[Mapping[str, float]]
) -> None:
    """A row for each length that was measured so far, on as many draws."""
    from gaussbias.system.files import write_rows

    found = {}
    if file.exists():  # of other lengths, by a command before
        with file.open(newline="") as opened:
            found = {float(row["length"]): row for row in csv.DictReader(opened)}
    for length, miss, row in zip(lengths, missed, values, strict=False):
        found[length] = {"length": repr(length), "missed": repr(miss), **{name: repr(row[name]) for name in row}}
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    write_rows(file, names, [[found[length].get(name, "") for name in names] for length in sorted(found)])


def read_lengths(text: str) -> list[float]:
    """Lengths of averages from `0.03,0.05` or `0.03..0.15:9`, ascending; those of a range have equal ratios.

    >>> [round(length, 3) for length in read_lengths("0.05..0.2:3")]
    [0.05, 0.1, 0.2]

    Raises:
        UserError: For anything else.
    """
    expected = f"--std: expected lengths from {SHORTEST:g} to {LONGEST:g}, such as 0.05,0.1 or 0.03..0.15:9, got {text}"
    try:
        ends, _, number = text.partition(":")
        if ".." in ends:
            low, high = map(float, ends.split(".."))
            count = int(number) if number else SEVERAL
            if not (2 <= count <= MOST and 0 < low < high):
                raise UserError(expected)
            lengths = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
        else:
            lengths = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UserError(expected) from None
    if not all(SHORTEST * (1 - 1e-9) <= length <= LONGEST * (1 + 1e-9) for length in lengths):
        raise UserError(expected)
    return lengths


def _cells(row: Mapping[str, float]) -> list[str]:
    cells = []
    for _, name in COLUMNS:
        value = row.get(name, math.nan)
        low, high = (row.get(end.name, math.nan) for end in (MEMORIZED_LOW, MEMORIZED_HIGH))
        interval = name == MEMORIZED_FRACTION.name and math.isfinite(low)
        cells.append(
            f"{value:.3g} ({low:.2f} to {high:.2f})" if interval else with_error(value, row.get(name + SE, math.nan))
        )
    return cells


def _best(lengths: Sequence[float], found: Sequence[Mapping[str, object]]) -> str:
    """Which length has the least held-out error, and which others are not beyond doubt worse, on the same draws."""
    from gaussbias.probes import Measured

    name = MSE.on("heldout")
    measured = [each for each in found if isinstance(each, Measured) and name in each]
    if len(measured) < len(found):
        return "no held-out images were measured"
    best = min(range(len(measured)), key=lambda place: float(measured[place][name]))
    alike = []
    for place, each in enumerate(measured):
        change = (each - measured[best]).get(name)
        if place != best and change is not None and not change.low > 0:
            alike.append(f"{lengths[place]:.3g}")
    others = f"; not worse beyond doubt: {', '.join(alike)}" if alike else "; all others are worse beyond doubt"
    return f"least error on held-out images at the length {lengths[best]:.3g}{others}"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.ema",
        usage=USAGE,
        description="Make averages of a run's weights of any length afterwards, and measure what each does.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--std", default=DEFAULT, metavar="LENGTHS", help=f"lengths of the averages; default: {DEFAULT}"
    )
    parser.add_argument(
        "--kimg", type=float, metavar="T", help="of what time; default: the last averages that were kept"
    )
    parser.add_argument("--save", action="store_true", help="write each average, to be loaded elsewhere")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="how to measure")
    return parser.parse_overrides(arguments)


if __name__ == "__main__":
    sys.exit(main())
