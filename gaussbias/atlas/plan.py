"""From the file of an atlas to its cells, each a whole configuration of one run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gaussbias import config as configuration
from gaussbias.config import Config
from gaussbias.config.sources import SOURCES
from gaussbias.system.errors import UserError
from gaussbias.system.files import write

FILELESS = tuple(name for name, kind in SOURCES.items() if kind.path == "never")
"""Sources that read no file, which `data.path` on the command line does not reach."""
Keys = dict[str, Any]
"""Values by `section.key`."""


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        name: Of its folder.
        grid: Of the grid that it belongs to.
        config: Its whole configuration.
        needs: The name of the cell that has to be finished before, if any.
    """

    name: str
    grid: str
    config: Config
    needs: str | None = None

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return Path(self.config.run.root).expanduser() / self.name


@dataclass(frozen=True)
class Plan:
    """All runs of an atlas, those that others need first.

    Attributes:
        name: Of the atlas, the W&B group of its runs.
        root: Where the run folders go.
        cells: Of all grids.
    """

    name: str
    root: Path
    cells: tuple[Cell, ...]

    def file_of(self, cell: Cell) -> Path:
        """Where the configuration of a cell is, for `python -m gaussbias.fit --config FILE --resume`."""
        return self.root / "cells" / f"{cell.name}.yaml"

    def log_of(self, cell: Cell) -> Path:
        """Where what a run says goes."""
        return self.root / "logs" / f"{cell.name}.log"

    def write_cells(self) -> None:
        """Write the configuration of each cell.

        Raises:
            UserError: If they cannot be written.
        """
        try:
            (self.root / "cells").mkdir(parents=True, exist_ok=True)
            for cell in self.cells:
                write(self.file_of(cell), configuration.to_yaml(cell.config))
        except OSError as error:
            raise UserError(f"root: cannot write to {self.root}: {error.strerror}") from None


def read_plan(path: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """Read the file of an atlas: grids of runs, and which of them get a linear surrogate.

    Args:
        path: A YAML file (docs/atlas.md).
        overrides: `section.key=value` items for all cells, and `root=FOLDER`. `data.path` and `data.heldout_path` go to
            the grids whose images lie in files.

    Raises:
        UserError: For a file that cannot be read, and for a cell that no run could have.
    """
    file = Path(path).expanduser()
    try:
        read = OmegaConf.to_container(configuration.read_yaml(file), resolve=True)
    except ValueError as error:  # an interpolation to nowhere
        raise UserError(f"{file}: {' '.join(str(error).split())}") from None
    assert isinstance(read, dict)
    _check_names(f"{file}: ", read, ("root", "shared", "grids", "surrogates"))
    roots = [item.partition("=")[2] for item in overrides if item.removeprefix("--").startswith("root=")]
    given = _flat(configuration.read_overrides([o for o in overrides if not o.removeprefix("--").startswith("root=")]))
    root = roots[-1] if roots else read.get("root") or f"runs/{file.stem}"
    if not isinstance(root, str):
        raise UserError(f"{file}: root: expected the name of a folder, got {root!r}")
    for key in ("run.name", "run.root"):
        if key in given:
            raise UserError(f"{key}: expected root=FOLDER for an atlas, whose cells have names of their own")
    fixed = {"run.root": root}
    shared = {"run.group": file.stem} | _flat(_mapping(read.get("shared") or {}, f"{file}: shared"))
    grids = _mapping(read.get("grids") or {}, f"{file}: grids")
    if not grids:
        raise UserError(f"{file}: grids: expected at least one grid of runs, got none")
    cells: list[Cell] = []
    for name, grid in grids.items():
        where = f"{file}: {name}: "
        body = dict(_mapping(grid, f"{where}grid"))
        axes = _axes(_mapping(body.pop("over", None) or {}, f"{where}over"), where)
        keys = shared | _flat(body)
        keys |= {k: v for k, v in given.items() if not (k in PATHS and keys.get("data.source", "digits") in FILELESS)}
        twice = sorted({key for axis in axes for point in axis for key in point} & given.keys())
        if twice:
            raise UserError(f"{where}{twice[0]}: expected it on the command line or in `over`, got both")
        cells += _cells(str(name), axes, keys | fixed, where)
    surrogates = _mapping(read.get("surrogates") or {}, f"{file}: surrogates")
    cells += _surrogates(surrogates, cells, given, f"{file}: surrogates: ")
    names = [cell.name for cell in cells]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UserError(f"{file}: expected cells with different names, got {double} twice")
    taken = next((name for name in names if name in OWN), None)
    if taken is not None:
        raise UserError(
            f"{file}: {taken}: expected another name for this grid, whose cell would be the atlas's own folder"
        )
    return Plan(file.stem, Path(root).expanduser(), tuple(cells))


PATHS = ("data.path", "data.heldout_path")
OWN = ("cells", "logs", "report")
"""Folders of an atlas that are no cells."""


def _cells(grid: str, axes: list[list[Keys]], keys: Keys, where: str) -> Iterator[Cell]:
    for points in itertools.product(*axes):
        values = {key: value for point in points for key, value in point.items()}
        name = "-".join([grid, *(part for point in points for part in _parts(point))])
        yield Cell(name, grid, configuration.from_keys({**keys, **values, "run.name": name}, where, name))


def _surrogates(body: Mapping[str, Any], cells: Sequence[Cell], overrides: Keys, where: str) -> list[Cell]:
    """The surrogates of the cells that match a pattern, on their images and levels."""
    keys = dict(body)
    given = keys.pop("of", [])
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"{where}of: expected names of cells, with * for anything, got {given!r}")
    keys_of_all = {key: value for key, value in overrides.items() if key.startswith(("train.", "linear.", "run."))}
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise UserError(f"{where}of: expected names of cells such as {cells[0].name}, got {pattern}, which is none")
    found = []
    for cell in cells:
        if any(fnmatchcase(cell.name, pattern) for pattern in patterns):
            container = configuration.to_container(cell.config)
            own = _flat({section: container[section] for section in ("data", "probes", "run")})
            name = f"{cell.name}-linear"
            own |= {"module.kind": "linear", "linear.teacher": str(cell.folder), "run.name": name}
            own["probes.weights"] = ["ema"]
            found.append(
                Cell(name, cell.grid, configuration.from_keys(own | _flat(keys) | keys_of_all, where, name), cell.name)
            )
    return found


def _axes(over: Mapping[str, Any], where: str) -> list[list[Keys]]:
    """The points of each axis; keys that are separated by commas change together."""
    axes = []
    for names, values in over.items():
        keys = [key.strip() for key in str(names).split(",")]
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}over: {names}: expected a list of values, got {values!r}")
        points = []
        for value in values:
            together = value if len(keys) > 1 and isinstance(value, list) else [value] * len(keys)
            if len(together) != len(keys):
                raise UserError(f"{where}over: {names}: expected {len(keys)} values for a point, got {value!r}")
            points.append(dict(zip(keys, together, strict=True)))
        axes.append(points)
    return axes


def _parts(point: Keys) -> list[str]:
    """A point of an axis, as parts of a name; keys that share a value share a part."""
    parts: list[str] = []
    values: list[Any] = []
    for key, value in point.items():
        if value in values:
            continue
        values.append(value)
        text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(key.rpartition(".")[2] + re.sub(r"[^A-Za-z0-9.]+", "_", text))
    return parts


def _flat(sections: Mapping[str, Any] | DictConfig) -> Keys:
    """Values by `section.key`; what is no section stays, for the configuration to complain of."""
    plain: Any = OmegaConf.to_container(sections) if isinstance(sections, DictConfig) else sections
    flat: Keys = {}
    for section, keys in plain.items():
        if isinstance(keys, Mapping):
            flat |= {f"{section}.{key}": value for key, value in keys.items()}
        else:
            flat[str(section)] = keys
    return flat


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected keys with values, got {value!r}")
    return value


def _check_names(where: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{where}{name}: no such key of an atlas; expected {', '.join(known)}")
