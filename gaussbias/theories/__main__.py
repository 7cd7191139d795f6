"""`python -m gaussbias.theories --data SOURCE [--theories LIST] [section.key=value ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gaussbias.config import read_overrides
from gaussbias.config.roles import Role, takes
from gaussbias.config.theories import listed
from gaussbias.lens.source import config_of, dotted_keys
from gaussbias.system.errors import UserError
from gaussbias.system.terminal import Parser, command, say

USAGE = "python -m gaussbias.theories --data SOURCE [--theories LIST] [--out FOLDER]"
EPILOG = """\
SOURCE is a folder or zip of images, an .npy, .npz or idx file, CIFAR-10's .tar.gz, or a name of data.source; of a run
folder or configuration its section data is used.
LIST names theories, separated by commas, such as bootstrap,mixture:10,local:3,wiener:5 (docs/theories.md). Without
it, the command takes several members of each family, as far as that takes minutes.
The keys that can be given are data.*, probes.* and train.accelerator, as in probes.draws=2048.
"""

WITHOUT_EFFECT = ("probes.pools", "probes.samples", "probes.theory_samples", "probes.also", "train.microbatch")
"""What other commands take: here held-out images are measured on, and ten samples are shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command(
        "gaussbias.theories",
        lambda: _theories(sys.argv[1:] if arguments is None else list(arguments)),
        interrupted="the same command goes on with the theory that it was at",
    )


def _theories(arguments: list[str]) -> int:
    options = _parse(arguments)
    for override in options.overrides:
        name = override.partition("=")[0]
        if name in WITHOUT_EFFECT or not takes(name, Role.LENS):
            raise UserError(
                f"{override}: expected a key of data.*, train.accelerator, or of probes.* one that has an effect here: "
                "draws, block, sigmas, theories, sampler, sampler_steps or seed"
            )
    given = dotted_keys(read_overrides(options.overrides))
    if options.theories is not None:
        given["probes.theories"] = listed(options.theories)
    config = config_of(options.data, given, None, "theories")

    from gaussbias.system.bars import bars
    from gaussbias.tables.columns import table
    from gaussbias.theories.comparing import compare
    from gaussbias.theories.page import best_rows, write_page

    out = options.out or Path("theories") / Path(options.data).name
    with bars() as advance:
        compared = compare(config, out, advance, say)
    head, rows = best_rows(compared)
    say(f"\nheld-out error ||T - x0||^2 / d, the best of each family at each noise level:\n{table([head, *rows])}\n")
    say("0.0364(9) is 0.0364 with a standard error of 0.0009, over blocks of draws; that of D_G is in closed form.")
    page, csv = write_page(compared, out)
    say(f"{page}: the page, one file; {csv}: every value")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.theories",
        usage=f"{USAGE} [section.key=value ...]",
        description="Measure how well formulas (theories) denoise images that they have not seen, without a network.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", required=True, metavar="SOURCE", help="training images, some of which are held out")
    parser.add_argument("--theories", metavar="LIST", help="default: several of each family")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: theories/SOURCE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="which images, and how to measure")
    return parser.parse_overrides(arguments)


if __name__ == "__main__":
    sys.exit(main())
