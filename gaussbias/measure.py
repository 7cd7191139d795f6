"""`python -m gaussbias.measure RUN`: the error ladder of a run's weights, with as many draws as asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gaussbias import config as configuration
from gaussbias.config.roles import Role, keys_with, takes
from gaussbias.config.trust import check_code, own_cache
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import Parser, add_audits, check_audits, command, say
from gaussbias.tables.levels import LEGEND, print_differences, print_table, write_csv

USAGE = (
    "python -m gaussbias.measure RUN [--checkpoint FILE] [--target-se SHARE] [--cycles N [--cycle-sigma S]] [--leaks] "
    "[section.key=value ...]"
)
EPILOG = """\
RUN is a run folder. The run may still be going on. The keys that can be given are probes.*, such as probes.draws=4096
or probes.pools=[train,heldout,trajectory], where the images lie (data.path), the device (train.accelerator), or how
many images it evaluates at once (train.microbatch).
Results go to RUN/measured/<kimg>_<draws>.csv and .safetensors (for gaussbias.history.compare), and to
RUN/figures/ladder.png.
"""
ALLOWED = "probes., data.path, data.heldout_path, data.source, train.accelerator, train.microbatch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command(
        "gaussbias.measure",
        lambda: _measure(sys.argv[1:] if arguments is None else list(arguments)),
        interrupted="nothing was written",
    )


def _measure(arguments: list[str]) -> int:
    options = _parse(arguments)
    folder = options.run
    if not RunFolder(folder).config.exists():
        raise UserError(f"expected a run folder with config.yaml, found none at {folder}")
    given = {override.partition("=")[0]: override for override in options.overrides}
    for key, override in given.items():
        if key.startswith("probes.") and not takes(key, Role.MEASURE):
            raise UserError(f"{override}: expected a key that says how draws are measured; this one has no effect here")
        if not takes(key, Role.MEASURE):
            raise UserError(f"{override}: expected a key of {ALLOWED}; other keys are those of the run")
    if options.target_se is not None and not 0 < options.target_se < 1:
        raise UserError(f"--target-se: expected a share of the distance between 0 and 1, got {options.target_se:g}")
    check_audits(options)
    cycled = [] if options.cycle_sigma is None else [f"probes.cycle_sigma={options.cycle_sigma}"]
    config = configuration.load(RunFolder(folder).config, [*options.overrides, *cycled])
    check_code(configuration.dotted(configuration.to_container(config)), given, str(folder))
    config = own_cache(config, given)
    for key, override in given.items():
        if key in keys_with(Role.PATH) and "trajectory" not in config.probes.pools:
            raise UserError(f"{override}: expected trajectory among probes.pools, which alone samples here")
    results = RunFolder(folder).measured
    try:
        results.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {results}: {error.strerror}") from None
    from safetensors import SafetensorError

    from gaussbias.figures import draw_guidance, draw_ladder, draw_theories
    from gaussbias.figures.guidance import has_guidance
    from gaussbias.figures.theories import has_theories
    from gaussbias.system.bars import bars
    from gaussbias.training.auditing import Audits
    from gaussbias.training.measuring import measure

    audits = Audits(options.cycles, config.probes.cycle_sigma, options.leaks)
    with bars() as advance:
        measured, audited = measure(config, folder, options.checkpoint, options.target_se, advance, audits)
    when = "an unknown time" if measured.kimg is None else f"{measured.kimg:g} kimg"
    say(f"{folder} at {when}, {measured.draws} draws in each pool:")
    for weights in config.probes.weights:
        for pool in config.probes.pools:
            print_table(config, measured.row, weights, pool, extra=measured.extra)
        print_differences(config, measured.row, weights)
    say(LEGEND)
    file = results / f"{measured.name}.safetensors"
    try:
        measured.write(file)
        write_csv(file.with_suffix(".csv"), config, measured.row)
    except (OSError, SafetensorError) as error:
        raise UserError(f"what was measured is above, but could not be written to {results}: {error}") from None
    pictures = [draw_ladder([file], RunFolder(folder).figures / "ladder.png", measured.extra)]
    if has_theories(file):
        pictures.append(draw_theories([file], RunFolder(folder).figures / "theories.png"))
    if has_guidance(file):
        pictures.append(draw_guidance([file], RunFolder(folder).figures / "guidance.png"))
    for line in audited.lines:
        say(line)
    say("\n".join(map(str, (file.with_suffix(".csv"), file, *pictures, *audited.files))))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.measure",
        usage=USAGE,
        description="Measure the weights of a run: errors, linearity, and the parts of its distance to the Gaussian.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="whose weights; default: the run's newest")
    parser.add_argument(
        "--target-se",
        type=float,
        metavar="SHARE",
        help="stop once the standard error of the affine part is at most this share of the distance, in every pool",
    )
    add_audits(parser)
    parser.add_argument(
        "--leaks",
        action="store_true",
        help="list the training images that samples come closest to, with p-values: RUN/measured/<kimg>_leaks.csv",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="how to measure")
    return parser.parse_overrides(arguments)


if __name__ == "__main__":
    sys.exit(main())
