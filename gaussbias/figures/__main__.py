"""`python -m gaussbias.figures RUN...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussbias.figures import draw, draw_surrogate
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import Parser, command, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command("gaussbias.figures", lambda: _figures(arguments))


def _figures(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.figures",
        description="Draw the curves, the samples and the error ladders of runs. Several runs share their axes.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, finished or not")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: RUN/figures for one run, figures for several"
    )
    parser.add_argument(
        "--surrogate",
        action="store_true",
        help="only the pictures of linear surrogates, for each run in its own folder",
    )
    options = parser.parse_args(arguments)
    if options.surrogate:
        for run in options.runs:
            folder = RunFolder(run).figures if options.out is None else options.out / run.name
            for path in draw_surrogate(run, folder):
                say(str(path))
        return 0
    alone = len(options.runs) == 1
    for path in draw(options.runs, options.out or (options.runs[0] / "figures" if alone else Path("figures"))):
        say(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
