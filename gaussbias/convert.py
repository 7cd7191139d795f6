"""`python -m gaussbias.convert FILE --to denoiser.safetensors`: a network pickle of EDM without the pickle."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gaussbias.system.errors import UserError
from gaussbias.system.terminal import Parser, command, say

EPILOG = """\
FILE is read without running anything that is in it, and refused if it asks for more than such a pickle is made of.
What is written, and a .json beside it, loads with gaussbias.load_denoiser and python -m gaussbias.lens.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command("gaussbias.convert", lambda: _convert(arguments))


def _convert(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="python -m gaussbias.convert",
        description="Convert a network pickle of EDM to safetensors.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a network pickle (.pkl) of EDM")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="where to write, .safetensors")
    parser.add_argument(
        "--labels",
        metavar="LABELS",
        help="with which a class-conditional network is loaded later: the number of a class, average, or none",
    )
    options = parser.parse_args(arguments)
    file, to = options.file.expanduser(), options.to.expanduser()
    if to.suffix != ".safetensors":
        raise UserError(f"--to: expected a name that ends with .safetensors, got {to}")
    if not file.is_file():
        raise UserError(f"expected a network pickle of EDM at {file}, found nothing")
    if to.exists() or to.with_suffix(".json").exists():
        raise UserError(f"--to: {to}, or the .json beside it, is already there; give another name")
    from safetensors import SafetensorError

    from gaussbias.checkpoints import build_denoiser, read_edm, save_converted
    from gaussbias.system.files import reason

    contents = read_edm(file)
    about = contents.description
    try:  # whether it can be used, before it is written
        denoiser = build_denoiser(about, contents.weights, options.labels or ("none" if about.classes else None))
    except Exception as error:  # what a description from elsewhere leads to can raise anything
        raise UserError(f"{file}: {reason(error)}") from None
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        save_converted(contents, to, options.labels, source=file.name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"--to: cannot write {to}: {reason(error)}") from None
    count = sum(value.numel() for value in contents.weights.values())
    say(f"{file}")
    tensors = f"{count / 1e6:.2f} M weights in {len(contents.weights)} tensors"
    say(f"  {about.preconditioning} with {about.network}, {tensors}")
    classes = f", {about.classes} classes (labels={options.labels})" if about.classes else ""
    say(f"  images of {' x '.join(map(str, about.shape))}{classes}; sigma: {denoiser.told_range()}")
    if contents.kimg is not None:
        say(f"  trained for {contents.kimg:g} kimg, as its name says")
    for note in contents.notes:
        say(f"  {note}")
    say(f"{to}: the weights; {to.with_suffix('.json')}: what they are")
    return 0


if __name__ == "__main__":
    sys.exit(main())
