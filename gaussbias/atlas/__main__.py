"""`python -m gaussbias.atlas --config FILE`: plan, run and go on with an atlas."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from gaussbias.atlas.export import export_slurm, export_sweep
from gaussbias.atlas.plan import Plan, read_plan
from gaussbias.atlas.timing import estimate
from gaussbias.atlas.workers import State, cores, environment, run_cells, state_of
from gaussbias.system.errors import UserError
from gaussbias.system.signals import Stopped, StopRequest
from gaussbias.system.terminal import Parser, command, complain, say

USAGE = (
    "python -m gaussbias.atlas --config FILE [--jobs K] [--print-plan] [--export sweep|slurm] [section.key=value ...]"
)
EPILOG = """\
Each cell of the grid is an ordinary run, in a folder of its own below the root of the atlas. If the atlas was
stopped, give the same command again: it skips the cells that are finished and continues the others. python -m
gaussbias.report ROOT reports on the runs, finished or not.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0; 2 for a request that cannot be met; 1 if a cell failed; 75 if it was asked to stop by SIGTERM, SIGUSR1 or SIGHUP,
    and 130 by Ctrl-C.
    """
    with StopRequest(last=arguments is None) as request:
        try:
            return command(
                "gaussbias.atlas", lambda: _atlas(arguments, request), interrupted="the same command goes on"
            )
        except Stopped as stopped:
            complain(f"gaussbias.atlas: stopped by {stopped}")
            return stopped.code


def _atlas(arguments: Sequence[str] | None, request: StopRequest) -> int:
    options = _parse(sys.argv[1:] if arguments is None else list(arguments))
    if options.jobs is not None and options.jobs < 1:
        raise UserError(f"--jobs: expected at least 1, got {options.jobs}")
    plan = read_plan(options.config, options.overrides)
    if options.export is not None:
        plan.write_cells()
        for line in (export_sweep if options.export == "sweep" else export_slurm)(plan):
            say(line)
        return 0
    gpus = [] if all(cell.config.train.accelerator == "cpu" for cell in plan.cells) else _gpus()
    jobs = options.jobs or len(gpus) or cores()
    states = {cell.name: state_of(cell) for cell in plan.cells}
    left = [cell for cell in plan.cells if states[cell.name] is not State.FINISHED]
    timed = estimate(plan, left, environment(0, jobs, gpus))
    usual = sum(timed.values()) / max(1, len(timed))  # for those that could not be timed
    needed = {cell.name: timed.get(cell.name, usual if cell in left else 0.0) for cell in plan.cells}
    _say_plan(plan, states, needed, jobs, len(gpus), options.print_plan)
    if options.print_plan or not left:
        if not left:
            say(f"all cells are finished; python -m gaussbias.report {plan.root} shows them")
        return 0
    plan.write_cells()
    from gaussbias.atlas.progress import View

    request.patient, request.answer = True, "the runs stop at the next good moment, with checkpoints"
    with View(plan, needed) as view:
        outcome = run_cells(plan, jobs, gpus, request, view.show)
    logs = {cell.name: plan.log_of(cell) for cell in plan.cells}
    for name, why in outcome.failed.items():
        complain(f"{name}: {why} ({logs[name]})")
    for name in outcome.busy:
        say(f"{name}: another process is running this cell, so it was skipped")
    say(f"{len(outcome.finished)} of {len(plan.cells)} cells are finished")
    if request.received is not None:
        complain("gaussbias.atlas: stopped; run the same command again to continue")
        return request.stopped().code
    if outcome.stopped:
        say(f"stopped from elsewhere: {', '.join(outcome.stopped)}; run the same command again to continue")
    say(f"python -m gaussbias.report {plan.root} shows them")
    return 1 if outcome.failed else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.atlas",
        usage=USAGE,
        description="Run a grid of trainings, over data-set size, capacity, seeds and any other keys.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", required=True, help="YAML file of an atlas, see docs/atlas.md")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="K",
        help="how many runs at a time; default: one for each GPU, or without GPUs one for each core",
    )
    parser.add_argument(
        "--print-plan", action="store_true", help="print the cells and how long they will take, and stop"
    )
    parser.add_argument(
        "--export", choices=("sweep", "slurm"), help="write a W&B sweep or a SLURM array instead of running"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="for all cells; or root=FOLDER")
    return parser.parse_overrides(arguments)


def _say_plan(
    plan: Plan, states: Mapping[str, State], needed: Mapping[str, float], jobs: int, gpus: int, every: bool
) -> None:
    left = [cell for cell in plan.cells if states[cell.name] is not State.FINISHED]
    total = sum(needed[cell.name] for cell in left)
    longest = max((needed[cell.name] for cell in left), default=0.0)
    where = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else f"{cores()} CPU core{'s' * (cores() > 1)}"
    say(
        f"{plan.root}: {len(plan.cells)} cells, {len(plan.cells) - len(left)} finished; {len(left)} to do, "
        f"{jobs} at a time on {where}: about {spell(max(total / jobs, longest))}"
    )
    if every:
        width = max(len(cell.name) for cell in plan.cells)
        for cell in plan.cells:
            takes = f"  about {spell(needed[cell.name])}" if needed[cell.name] else ""
            say(f"  {cell.name:{width}}  {states[cell.name].value}{takes}")
        return
    for grid in dict.fromkeys(cell.grid for cell in plan.cells):
        counts = Counter(states[cell.name].value for cell in plan.cells if cell.grid == grid)
        work = sum(needed[cell.name] for cell in plan.cells if cell.grid == grid)
        say(
            f"  {grid}: "
            + ", ".join(f"{count} {state}" for state, count in counts.items())
            + f", {spell(work)} of work"
        )


def spell(seconds: float) -> str:
    """A time in words.

    >>> spell(50), spell(400), spell(9000)
    ('50 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _gpus() -> list[str]:
    """GPUs that this process may use, by what CUDA_VISIBLE_DEVICES calls them."""
    import torch

    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(number) for number in range(count)]


if __name__ == "__main__":
    sys.exit(main())
