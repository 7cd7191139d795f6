"""The measurements of many runs in one table."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussbias import catalogue
from gaussbias import config as configuration
from gaussbias.config.roles import Role, keys_with
from gaussbias.history import load, plain
from gaussbias.history.claiming import is_finished
from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, reason
from gaussbias.system.run_folder import RunFolder


@dataclass(frozen=True)
class Record:
    """A run: what it was configured with, and its measurements.

    Attributes:
        name: Of its folder, with what it lies in where two have one name.
        folder: Where it is; `None` if only its table is left.
        keys: `section.key` and values.
        finished: Whether it came to its end.
        rows: Its measurements in the order of time: `kimg`, `epoch` and the logged values.
    """

    name: str
    folder: Path | None
    keys: Mapping[str, Any]
    finished: bool
    rows: tuple[dict[str, float], ...]

    @property
    def kind(self) -> str:
        """`edm`, `linear` or `gaussian`."""
        return str(self.keys.get("module.kind", "edm"))

    @property
    def images(self) -> int:
        """N, the number of training images."""
        row = self.rows[-1]
        known = self.keys.get("data.n_train")
        return int(known) if known is not None else round(1000 * row["kimg"] / row["epoch"]) if row["epoch"] else 0

    @property
    def channels(self) -> int:
        """Capacity: the width of the network's first level."""
        return int(self.keys["model.channels"])

    @property
    def replicate(self) -> tuple[Any, ...]:
        """What runs of one size differ in: the images that were chosen, and the seed of weights and noise."""
        return tuple(self.keys.get(key) for key in ("data.half", "data.subset_seed", "run.seed"))

    def at(self, key: str, place: int = -1) -> float:
        """A value of a measurement; NaN if it has none."""
        return self.rows[place].get(key, math.nan)

    def curve(self, key: str) -> tuple[list[float], list[float]]:
        """Times after the start, in kimg, and the values of a key, where it has one."""
        known = [
            (row["kimg"], row[key]) for row in self.rows if row["kimg"] > 0 and math.isfinite(row.get(key, math.nan))
        ]
        return [time for time, _ in known], [value for _, value in known]


def collect(folders: Iterable[str | Path]) -> tuple[list[Record], dict[Path, str]]:
    """The runs in folders, each a run or a folder of runs, however far they have come.

    Returns:
        The runs that have measurements, and why others were left out.

    Raises:
        UserError: If a folder holds no run.
    """
    runs: list[Path] = []
    for folder in map(Path, folders):
        there = [folder] if _is_run(folder) else sorted(path for path in folder.glob("*") if _is_run(path))
        if not there:
            raise UserError(f"expected a run folder, or a folder of runs, found neither at {folder}")
        runs += [run for run in there if run not in runs]
    names = [run.name for run in runs]
    records, left_out = [], {}
    for run in runs:
        try:
            records.append(_read(run, run.name if names.count(run.name) == 1 else str(run)))
        except UserError as error:
            left_out[run] = str(error)
    return records, left_out


def write_table(records: Sequence[Record], path: Path) -> None:
    """Write a csv file with a row for each measurement of each run: its name, its configuration, and the values.

    Raises:
        UserError: If it cannot be written.
    """
    keys = dict.fromkeys(key for record in records for key in record.keys if _is_told(key))
    logged = dict.fromkeys(key for record in records for row in record.rows for key in row)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            complete(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["run", "finished", *keys, *logged])
            for record in records:
                about = [record.name, json.dumps(record.finished), *(_text(record.keys.get(key)) for key in keys)]
                writer.writerows([*about, *(_number(row.get(key)) for key in logged)] for row in record.rows)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from None


def read_table(path: Path) -> list[Record]:
    """What `write_table` wrote.

    Raises:
        UserError: If the file is not such a table.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        records: dict[str, Record] = {}
        for line in lines:
            keys = {key: _value(cell) for key, cell in line.items() if "." in key}
            values = {k: float(v) for k, v in line.items() if v and "." not in k and k not in ("run", "finished")}
            before = records.get(line["run"])
            rows = (*(before.rows if before else ()), values)
            records[line["run"]] = Record(line["run"], None, keys, json.loads(line["finished"]), rows)
        return list(records.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"expected a table of runs at {path}: {reason(error)}") from None


def _is_run(path: Path) -> bool:
    return RunFolder(path).config.is_file()


def _read(run: Path, name: str) -> Record:
    keys = configuration.dotted(configuration.to_container(configuration.load(RunFolder(run).config)))
    columns = plain(load(run))
    count = len(columns["run"])
    rows = [
        {
            key: value
            for key, column in columns.items()
            if isinstance(value := column[i], float) and not math.isnan(value)
        }
        for i in range(count)
    ]
    measured = tuple(row for row in rows if catalogue.SECONDS.name in row)
    if not measured or not measured[-1]["kimg"] > 0:
        raise UserError("it has no measurement after its start yet")
    return Record(name, run, keys, is_finished(run), measured)


def _is_told(key: str) -> bool:
    return key not in keys_with(Role.PLACE)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _value(cell: str) -> Any:
    if cell == "":
        return None
    try:
        return json.loads(cell)
    except ValueError:
        return cell
