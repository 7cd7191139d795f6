"""`python -m gaussbias.lens CHECKPOINT... --data SOURCE [section.key=value ...]`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gaussbias.catalogue import read_extra
from gaussbias.config import Config, read_overrides
from gaussbias.config.roles import Role, takes
from gaussbias.config.theories import listed
from gaussbias.lens.source import config_of, dotted_keys
from gaussbias.system.errors import UserError
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import Parser, add_audits, check_audits, command, say

USAGE = (
    "python -m gaussbias.lens CHECKPOINT... --data SOURCE [--out FOLDER] [--labels LABELS] "
    "[--theories LIST] [--cycles N [--cycle-sigma S]] [--surrogate] [--strong]"
)
EPILOG = """\
CHECKPOINT is a network pickle (.pkl) of EDM or EDM2, a folder of diffusers (a pipeline, a UNet2DModel or a
DiTTransformer2DModel), a file that gaussbias.convert wrote, or a run folder or checkpoint of gaussbias. No code in it
is executed.
SOURCE is a folder or zip of images, an .npy, .npz or idx file, CIFAR-10's .tar.gz, or a name of data.source; of a run
folder or configuration its section data is used. It should hold the images that the network was trained on.
data.heldout_path=PATH gives images that the network has not seen.
The keys that can be given are data.*, probes.*, linear.* (with --surrogate), train.accelerator, and train.microbatch
(how many images are evaluated at once), as in probes.draws=2048.
The results of several checkpoints are drawn into the same pictures, against time (kimg) or the number of weights.
"""
OVERRIDE = re.compile(r"[a-z]+\.\w+=")
GRID = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return command(
        "gaussbias.lens",
        lambda: _lens(sys.argv[1:] if arguments is None else list(arguments)),
        interrupted="the same command goes on with the checkpoint that it was at",
    )


def _lens(arguments: list[str]) -> int:
    options = _parse(arguments)
    overrides = [item for item in options.items if OVERRIDE.match(item)]
    checkpoints = [Path(item) for item in options.items if item not in overrides]
    if not checkpoints:
        raise UserError(f"expected a checkpoint, got none; usage: {USAGE}")
    roles = (Role.LENS, Role.FITTED) if options.surrogate else (Role.LENS,)
    for override in overrides:
        if not takes(override.partition("=")[0], *roles):
            raise UserError(
                f"{override}: expected a key of data.*, probes.* that draws or samples, train.accelerator or "
                "train.microbatch; with --surrogate also of linear.*, and train.batch_size"
            )
    if options.strong and len(checkpoints) != 2:
        raise UserError(f"--strong: expected two checkpoints, trained on S1 and on S2, got {len(checkpoints)}")
    check_audits(options)
    if len(options.data) != 1 and not (options.strong and len(options.data) == 2):
        raise UserError(f"--data: expected one source of images (two with --strong), got {len(options.data)}")
    given = dotted_keys(read_overrides(overrides))
    if options.theories is not None:
        given["probes.theories"] = listed(options.theories)
    if options.guidance is not None:
        given["probes.guidance"] = _weights(options.guidance)
        given.setdefault("data.labels", True)
    sets = [config_of(source, given, half, "lens") for source, half in _sources(options.data, options.strong)]
    return _run(options, checkpoints, sets)


def _run(options: argparse.Namespace, checkpoints: list[Path], sets: list[Config]) -> int:
    from gaussbias.lens.looking import Options, look
    from gaussbias.lens.page import SAMPLES, TABLE, Report, told, write_page
    from gaussbias.lens.strong import compare_halves
    from gaussbias.lens.subjects import check_levels, grid, read_subjects
    from gaussbias.system.bars import bars
    from gaussbias.tables.levels import LEGEND, print_differences, print_table
    from gaussbias.training.auditing import Audits

    sets = [_of_labels(config, options.labels) for config in sets]
    labels = "data" if options.labels is None and sets[0].data.labels else options.labels
    if sets[0].probes.guidance and labels != "data":
        raise UserError(f"--guidance: expected --labels data, got {labels}")
    if labels in ("data", "mixture") and options.surrogate:
        raise UserError(f"--surrogate: expected --labels with the number of a class, average or none, got {labels}")
    subjects = read_subjects(checkpoints, labels)
    out = options.out or Path("lens") / "_".join(subject.name for subject in subjects)[:100]
    probes = sets[0].probes
    if probes.sigmas is None:
        probes = replace(probes, sigmas=grid(subjects, GRID))
    assert probes.sigmas is not None
    check_levels(subjects, probes.sigmas)
    if options.surrogate and probes.sigmas != sorted(probes.sigmas, reverse=True):
        raise UserError(f"probes.sigmas: expected descending noise levels with --surrogate, got {probes.sigmas}")
    sets = [replace(config, probes=probes) for config in sets]
    audits = Audits(options.cycles, probes.cycle_sigma if options.cycle_sigma is None else options.cycle_sigma, True)
    levels = grid(subjects, probes.sampler_steps)
    if audits.cycles and not levels[-1] < audits.sigma <= levels[0]:
        raise UserError(
            f"--cycle-sigma: expected a noise level from {levels[-1]:.4g} to {levels[0]:.4g}, those of the sampler, "
            f"got {audits.sigma:g}"
        )
    how = Options(labels, options.surrogate, levels, audits)
    for subject in subjects:
        say(f"{subject.name}: {subject.kind}, {subject.parameters / 1e6:.2f} M weights")
        for note in subject.notes:
            say(f"  {note}")
    places = [out / f"S{number + 1}" for number in range(2)] if options.strong else [out]
    shares = [[subject] for subject in subjects] if options.strong else [subjects]
    looked = []
    notes: list[str] = []

    def tell(text: str) -> None:
        say(text)
        notes.append(text)

    with bars() as advance:
        for config, place, share in zip(sets, places, shares, strict=True):
            looked += look(config, share, place, how, advance, tell)
    for result in looked:
        for pool in probes.pools:
            print_table(sets[0], result.values, "ema", pool, result.subject.name, read_extra(result.folder))
        print_differences(sets[0], result.values, "ema", result.subject.name)
    say(LEGEND)
    for result in looked:
        shown = (f"{title} {told(result, key)}" for title, key in SAMPLES if told(result, key))
        say(f"samples of {result.subject.name}: {', '.join(shown)}")
        for text in result.audits:
            say(f"  {text}")
    files = [RunFolder(place).moments for place in places]
    strong = compare_halves(looked, files, out) if options.strong else None
    if strong is not None:
        say(f"samples of both networks: cosine {strong.cosine[0, 1]:.3f}, of both Gaussians {strong.cosine[2, 3]:.3f}")
    images = f"{sets[0].data.source} {sets[0].data.path or ''}".strip()
    page = write_page(Report(sets[0], looked, images, notes, strong), out)
    say(f"{page}: the page, one file; {out / TABLE}: every value; {out}/*/: figures and measurements of each")
    return 0


def _weights(text: str) -> list[float]:
    """Weights that are separated by commas."""
    try:
        return [float(part) for part in listed(text)]
    except ValueError:
        raise UserError(f"--guidance: expected numbers that are separated by commas, got {text}") from None


def _of_labels(config: Config, labels: str | None) -> Config:
    """The images that go with labels: all with their classes, those of one class, or all without."""
    from gaussbias.data import has_labels

    data = config.data
    if labels == "data":
        return replace(config, data=replace(data, labels=True))
    if labels is None:
        return config
    one = labels.isdecimal() and data.classes is None and has_labels(data)
    return replace(config, data=replace(data, labels=False, classes=[int(labels)] if one else data.classes))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.lens",
        usage=f"{USAGE} [section.key=value ...]",
        description="Measure checkpoints that were trained elsewhere: how linear they are, how close to the Gaussian\n"
        "denoiser, and how much they have memorised.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("items", nargs="*", metavar="CHECKPOINT", help="checkpoints, and any section.key=value")
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="SOURCE",
        help="the images that the checkpoints were trained on",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go; default: lens/CHECKPOINT")
    parser.add_argument(
        "--labels",
        metavar="LABELS",
        help="of class-conditional networks: data (each image with its class), the number of a class (with its images "
        "alone), mixture (weighted by how likely each class is, given the noisy image), average, or none",
    )
    add_audits(parser)
    parser.add_argument(
        "--theories",
        metavar="LIST",
        help="compare with these, separated by commas: bootstrap,mixture:10,local:3,wiener:5 (docs/theories.md)",
    )
    parser.add_argument(
        "--guidance",
        metavar="LIST",
        help="also samples with classifier-free guidance of these weights, separated by commas (1: without)",
    )
    parser.add_argument("--surrogate", action="store_true", help="fit the linear surrogate of each, too (linear.*)")
    parser.add_argument(
        "--strong",
        action="store_true",
        help="two checkpoints, of the halves S1 and S2 of SOURCE (or of two SOURCEs): how alike their samples are",
    )
    return parser.parse_overrides(arguments)


def _sources(given: list[str], strong: bool) -> list[tuple[str, str | None]]:
    """Sources, and which half of each is meant."""
    if not strong:
        return [(given[0], None)]
    return [(given[0], "S1"), (given[0], "S2")] if len(given) == 1 else [(given[0], None), (given[1], None)]


if __name__ == "__main__":
    sys.exit(main())
