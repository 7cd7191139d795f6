"""Who may import whom: the way of the data is one direction."""

import ast
from pathlib import Path

import gaussbias

PACKAGE = Path(gaussbias.__file__).parent
ORDER = [
    "system",
    "numerics",
    "noise",
    "catalogue",
    "config",
    "data",
    "moments",
    "backbones",
    "denoisers",
    "sampling",
    "surrogate",
    "metrics",
    "history",
    "probes",
    "modules",
    "analysis",
    "figures",
    "tables",
    "callbacks",
    "loggers",
    "checkpoints",
    "training",
    "fit",
    "measure",
    "ema",
    "convert",
    "lens",
    "theories",
    "atlas",
    "report",
    "dashboard",
]
LIGHTNING = ("modules", "callbacks", "loggers", "checkpoints", "training")
"""Rooms that may import Lightning: measuring does without."""
ONLY = {
    "diffusers": {"backbones/unet.py", "checkpoints/diffusers_networks.py", "checkpoints/pipelines.py"},
    "wandb": {"loggers/wandb_run.py", "dashboard.py"},
    "wandb_workspaces": {"dashboard.py"},
    "matplotlib": {
        *(
            f"figures/{name}.py"
            for name in (
                "audit",
                "averages",
                "curves",
                "guidance",
                "ladder",
                "lens",
                "samples",
                "spectrum",
                "style",
                "theories",
            )
        ),
        *("figures/surrogate.py", "figures/theories.py"),
        *(f"figures/atlas/{name}.py" for name in ("axes", "capacity", "clock", "distances", "halves", "labels")),
        *(f"figures/atlas/{name}.py" for name in ("phases", "signs", "sizes", "stops", "variance")),
    },
    "sklearn": {"data/sources/digits.py", "denoisers/theories/mixture.py"},
}


def imports(file):
    """Modules that a file imports, and whether at its top level, types for checking alone left out."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names = [f"gaussbias.{alias.name}" for alias in node.names] if node.module == "gaussbias" else [node.module]
            yield from names


def files():
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE)
        if name.name != "__init__.py" or len(name.parts) > 1:
            yield file, name


def test_every_file_is_in_the_order():
    assert {name.parts[0].removesuffix(".py") for _, name in files()} == set(ORDER)


def test_imports_go_one_way():
    for file, name in files():
        place = ORDER.index(name.parts[0].removesuffix(".py"))
        for module in imports(file):
            parts = module.split(".")
            if parts[0] == "gaussbias" and parts[1] != "__version__":
                assert ORDER.index(parts[1]) <= place, f"{name} imports {module}"


def test_heavy_libraries_have_their_places():
    for file, name in files():
        for module in imports(file):
            top = module.split(".")[0]
            assert str(name) in ONLY.get(top, {str(name)}), f"{name} imports {top}"
            if top == "lightning":
                assert name.parts[0] in LIGHTNING, f"{name} imports {top}"


def test_nothing_that_ranks_do_together_is_behind_a_condition_on_the_rank():
    """A rank that does not come to a collective hangs those that do."""
    together = {"reduce", "all_gather", "broadcast", "barrier", "over_ranks", "save_checkpoint", "compute", "summarize"}
    seen = 0
    for file, name in files():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.If) and any(
                word in ast.unparse(node.test) for word in ("is_global_zero", "_first")
            ):
                calls = [call.func for part in node.body for call in ast.walk(part) if isinstance(call, ast.Call)]
                names = {call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls}
                assert not names & together, (
                    f"{name}:{node.lineno} has {names & together} behind {ast.unparse(node.test)}"
                )
                seen += 1
    assert seen > 5
