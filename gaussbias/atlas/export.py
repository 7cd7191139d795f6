"""The cells of an atlas for engines that run on many machines: a W&B sweep, or a SLURM array.

Both run the same commands into the same folders as `python -m gaussbias.atlas`; it, and `python -m gaussbias.report`,
work on whatever has finished.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from gaussbias.atlas.plan import Cell, Plan
from gaussbias.system.errors import UserError
from gaussbias.system.files import write

ARRAY = """\
#!/usr/bin/env bash
# One run of an atlas in each task of an array; submit.sh hands it in. Written by python -m gaussbias.atlas.
#SBATCH --job-name=atlas
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append

if [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi

file=$(sed -n "${SLURM_ARRAY_TASK_ID}p" "$1")
srun --kill-on-bad-exit=1 python -m gaussbias.fit --config "$file" --resume
code=$?

# the run was asked to stop, and has left a checkpoint: this task alone is requeued
if [ "$code" -eq 75 ]; then scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"; fi
exit "$code"
"""


def export_sweep(plan: Plan) -> list[str]:
    """Write `sweep.yaml`, and `sweep_surrogates.yaml` for what needs other cells, beside the runs.

    The one parameter of a sweep is the file of a cell; all keys of its run are in W&B's configuration.

    Args:
        plan: An atlas whose cells are written.

    Returns:
        What to do with them, in lines.

    Raises:
        UserError: If they cannot be written.
    """
    lines = []
    for name, cells in _stages(plan, "sweep"):
        run = cells[0].config.run
        sweep = {
            "name": plan.name if name == "sweep" else f"{plan.name}: surrogates",
            "project": run.project,
            **({} if run.entity is None else {"entity": run.entity}),
            "method": "grid",
            "parameters": {"config": {"values": [str(plan.file_of(cell)) for cell in cells]}},
            "command": [
                "${env}",
                "${interpreter}",
                "-m",
                "gaussbias.fit",
                "--resume",
                "${args}",
                "run.wandb=online",
            ],
        }
        file = plan.root / f"{name}.yaml"
        _write(file, OmegaConf.to_yaml(OmegaConf.create(sweep)))
        after = "" if name == "sweep" else ", once the other sweep has ended"
        lines.append(
            f"{file}: {len(cells)} runs; wandb sweep {shlex.quote(str(file))}, and an agent on each machine{after}"
        )
    return lines


def export_slurm(plan: Plan) -> list[str]:
    """Write `atlas.sbatch`, lists of cells for it, and `submit.sh`, which hands them in, beside the runs.

    Args:
        plan: An atlas whose cells are written.

    Returns:
        What to do with them, in lines.

    Raises:
        UserError: If they cannot be written.
    """
    script = plan.root / "atlas.sbatch"
    _write(script, ARRAY)
    (plan.root / "logs").mkdir(exist_ok=True)
    submit = ["#!/usr/bin/env bash", "# From the folder that the paths are relative to.", "set -euo pipefail"]
    for name, cells in _stages(plan, "cells"):
        file = plan.root / f"{name}.txt"
        _write(file, "".join(f"{plan.file_of(cell)}\n" for cell in cells))
        log = shlex.quote(f"{plan.root}/logs/slurm-%A_%a.log")
        after = "" if name == "cells" else ' --dependency="afterany:$job"'
        arguments = f"--parsable --array=1-{len(cells)} --output={log}{after}"
        submit.append(f"job=$(sbatch {arguments} {shlex.quote(str(script))} {shlex.quote(str(file))})")
        submit.append(f'echo "{name}: $job"')
    _write(plan.root / "submit.sh", "\n".join(submit) + "\n")
    return [
        f"{script}: one GPU and 24 hours for each of {len(plan.cells)} runs; bash {plan.root / 'submit.sh'} hands it in"
    ]


def _stages(plan: Plan, name: str) -> list[tuple[str, Sequence[Cell]]]:
    """What can run at once, and what needs it."""
    first = [cell for cell in plan.cells if cell.needs is None]
    second = [cell for cell in plan.cells if cell.needs is not None]
    return [(name, first), *([(f"{name}_surrogates", second)] if second else [])]


def _write(file: Path, text: str) -> None:
    try:
        write(file, text)
    except OSError as error:
        raise UserError(f"root: cannot write {file}: {error.strerror}") from None
