"""`python -m gaussbias.atlas`: a grid of runs over data-set size, capacity, seeds and whatever else, in one command.

Each cell of the grid is an ordinary run of `python -m gaussbias.fit` in a folder of its own.
"""

from gaussbias.atlas.export import export_slurm, export_sweep
from gaussbias.atlas.plan import Cell, Plan, read_plan
from gaussbias.atlas.workers import Outcome, State, run_cells, state_of

__all__ = [
    "Cell",
    "Outcome",
    "Plan",
    "State",
    "export_slurm",
    "export_sweep",
    "read_plan",
    "run_cells",
    "state_of",
]
