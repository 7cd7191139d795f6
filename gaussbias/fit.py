"""`python -m gaussbias.fit`: train a denoiser and measure it while it trains."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gaussbias import config as configuration
from gaussbias.config import Config
from gaussbias.config.roles import Role, keys_with, without_meaning
from gaussbias.system.errors import UserError
from gaussbias.system.ranks import check_numbers, end_last, is_first, several
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.signals import Stopped, StopRequest
from gaussbias.system.terminal import Parser, command, complain, listed, say

USAGE = "python -m gaussbias.fit [--config FILE] [--resume [--force]] [--print-config] [section.key=value ...]"
EPILOG = """\
Without --config, the command trains on handwritten digits of 8 x 8 pixels, in under two minutes on two CPU cores.
Any key of the configuration can be given, as in train.kimg=10 or --train.kimg=10; --print-config lists all keys.
The results are in the folder <run.root>/<run.name>: history.csv, figures, checkpoints, denoiser.safetensors, ...
python -m gaussbias.figures RUN... draws the curves of several runs into one picture.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0; 2 for a request that cannot be met; 1 for a run that had to stop; 75 for one that was asked to stop by SIGTERM,
    SIGUSR1 or SIGHUP, and 130 by Ctrl-C: with --resume it goes on.
    """
    with StopRequest(last=arguments is None) as request:
        request.patient = several()  # ranks start together, and stop together once all are there
        try:
            given = sys.argv[1:] if arguments is None else list(arguments)
            again = "with --resume it goes on from the last checkpoint, if there is one"
            return command("gaussbias.fit", lambda: _fit(given, request), alone=False, interrupted=again)
        except Stopped as stopped:
            if is_first():
                complain(f"gaussbias.fit: stopped by {stopped}; with --resume it goes on")
            if not request.patient:
                return stopped.code
            # a rank that stopped with the others has done what it should, and launchers end all when one has failed
            end_last()
            return stopped.code if is_first() else 0


def _fit(arguments: list[str], request: StopRequest) -> int:
    options = _parse(arguments)
    config = configuration.load(options.config, options.overrides)
    if options.print_config:
        say(configuration.to_yaml(config).rstrip())
        return 0
    folder = Path(config.run.root).expanduser() / str(config.run.name)
    if options.force and not options.resume:
        raise UserError("--force: expected --resume with it; a new run takes any values")
    check_numbers()
    if not is_first():  # or so its environment says, which may have been another process's
        from gaussbias.training.devices import find_ranks

        find_ranks(config)
        request.patient = several()
    resume = options.resume and _has_run(folder)
    changed = _check(config, folder, resume, options.force) if is_first() else {}
    if resume and config.data.n_heldout is None:  # the default depends on the version; a run has what it began with
        config.data.n_heldout = configuration.load(RunFolder(folder).config).data.n_heldout
    if options.resume and not resume and is_first():
        say(f"no run in {folder} yet: it begins")
    from gaussbias.training.run import fit

    fit(config, folder, resume, request, changed)
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.fit",
        usage=USAGE,
        description="Train a diffusion denoiser and measure it while it trains.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file with the keys of the run; default: handwritten digits"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run that is in the folder, or begin it if there is none"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --resume: accept other values of keys such as train.lr"
    )
    parser.add_argument("--print-config", action="store_true", help="print the whole configuration and stop")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace those of FILE")
    return parser.parse_overrides(arguments)


def _has_run(folder: Path) -> bool:
    return RunFolder(folder).config.exists()


def _check(config: Config, folder: Path, resume: bool, force: bool) -> dict[str, tuple[Any, Any]]:
    """Check that the folder is free, or that the run in it can be continued with this configuration.

    Returns:
        Keys that differ from those of the run, with its value and the new one.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    if resume:
        if RunFolder(folder).config.stat().st_size == 0:
            raise UserError(_lacks_configuration(folder, "is empty"))
        stored = configuration.to_container(configuration.load(RunFolder(folder).config))
        for key, old, new in configuration.differences(stored, configuration.to_container(config)):
            taken_over = key == "data.n_heldout" and new is None  # by `_fit`
            if not key.startswith(without_meaning(config.module.kind)) and not taken_over:
                changed[key] = (old, new)
        allowed = keys_with(Role.FREE, Role.FORCED)
        other = {key: values for key, values in changed.items() if key not in allowed}
        if other:
            raise UserError(
                f"--resume: the run in {folder} was begun with other values of {listed(other)}, which would make it "
                "another run; leave them as they were, or begin another run.name"
            )
        kinks = {key: values for key, values in changed.items() if key in keys_with(Role.FORCED)}
        if kinks and not force:
            raise UserError(
                f"--resume: the run in {folder} was begun with other values of {listed(kinks)}; leave them as they "
                "were, or go on with --force"
            )
    elif list(folder.glob("checkpoints/*.ckpt")) and not _has_run(folder):
        raise UserError(_lacks_configuration(folder, "is not there"))
    elif folder.exists() and (not folder.is_dir() or any(not _is_left(path) for path in folder.iterdir())):
        what = "a run already" if _has_run(folder) else "files that are not a run"
        advice = "continue it with --resume, or " if _has_run(folder) else ""
        raise UserError(f"run.name: {folder} holds {what}; {advice}choose another run.name")
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"run.root: expected a place to write to, but {there} may not be written")
    return changed


def _is_left(path: Path) -> bool:
    """Whether a file is all that a run leaves that was killed when it began."""
    folder = RunFolder(path.parent)
    return path in (folder.lock, folder.attempts) or path.suffix == ".tmp"


def _lacks_configuration(folder: Path, how: str) -> str:
    return (
        f"run.name: {folder} holds checkpoints, but its config.yaml {how}; put it back (--print-config writes one, for "
        "the same keys), or choose another run.name"
    )


if __name__ == "__main__":
    sys.exit(main())
