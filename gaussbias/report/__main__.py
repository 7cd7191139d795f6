"""`python -m gaussbias.report FOLDER...`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gaussbias.report import report
from gaussbias.system.terminal import Parser, command, complain, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command("gaussbias.report", lambda: _report(arguments))


def _report(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.report",
        description="Collect runs into one table, figures, and a page that says what they show.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a folder of runs, or a run")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="default: FOLDER/report for one folder, report for several"
    )
    options = parser.parse_args(arguments)
    alone = len(options.folders) == 1
    out = options.out or (options.folders[0] / "report" if alone else Path("report"))
    page, sections, left_out = report(options.folders, out)
    for run, why in left_out.items():
        complain(f"left out {run}: {why}")
    for section in sections:
        for claim in section.claims:
            say(f"{claim.verdict:13} {claim.text} [{section.study}]")
            say(f"{'':13} {claim.found}")
    counts = Counter(claim.verdict for section in sections for claim in section.claims)
    none = "nothing is claimed, since no run has come to its end"
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or none)
    say(f"{page}: the page, one file; {out / 'runs.csv'}: every measurement; {out / 'figures'}: png and pdf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
