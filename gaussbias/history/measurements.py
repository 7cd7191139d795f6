"""What measurements found, draw by draw: files, and differences between them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy.special import stdtrit

from gaussbias.system.errors import UserError
from gaussbias.system.files import complete, reason
from gaussbias.system.run_folder import RunFolder

FORMAT = "gaussbias.probes/2"
JSON = ("sigmas", "values", "pools", "hashes")
"""Fields of a measurement that are in its file's metadata."""


@dataclass(frozen=True)
class Measurement:
    """What a measurement found, and what its blocks contribute.

    Attributes:
        kimg: When.
        sigmas: Noise levels of the probe bank.
        values: By logged name.
        pools: What each measured value was measured on.
        hashes: Of each pool of the probe bank.
        blocks: By logged name the jackknife's pseudo-values, one a block (B,): for a mean, the block's own.
    """

    kimg: float
    sigmas: list[float]
    values: dict[str, float]
    pools: dict[str, str]
    hashes: dict[str, str]
    blocks: dict[str, np.ndarray]

    def se(self, key: str) -> float:
        """The standard error of a value; NaN for a single block."""
        return standard_error(self.blocks[key])

    def half(self, key: str) -> float:
        """Half of the width of a value's 95 % interval."""
        return quantile(len(self.blocks[key])) * self.se(key)


def quantile(blocks: int) -> float:
    """Student's t for a 95 % interval from so many blocks.

    >>> round(quantile(16), 3)
    2.131
    """
    return float(stdtrit(blocks - 1, 0.975)) if blocks > 1 else math.nan


def measurement_files(run: str | Path, until: float = math.inf) -> list[Path]:
    """The files of a run's measurements up to a time, in kimg, in the order of time."""
    files = timed_files(RunFolder(run).probes)
    return [file for file in files if float(file.stem) <= until + 1e-3]  # names have three digits


def timed_files(folder: Path) -> list[Path]:
    """The files of a folder that are named by their times in kimg, in the order of time."""
    files = [file for file in folder.glob("*.safetensors") if is_number(file.stem)]
    return sorted(files, key=lambda file: float(file.stem))


def kimg_name(kimg: float) -> str:
    """A time as the name of a file; a step is a whole number of images.

    >>> kimg_name(110.08), kimg_name(0.0)
    ('110.08', '0')
    """
    return f"{kimg:.3f}".rstrip("0").rstrip(".")


def is_number(text: str) -> bool:
    """Whether a file's name is a time in kimg."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_measurement(file: str | Path, keys: Iterable[str] | None = None) -> Measurement:
    """Read a measurement, and what its blocks contribute to the given values, or to all.

    Raises:
        UserError: If the file is not one.
    """
    try:
        with safe_open(file, "numpy") as opened:
            about = opened.metadata() or {}
            if about.get("format") != FORMAT:
                raise ValueError(f"its format is {about.get('format')}, not {FORMAT}")
            sigmas, values, pools, hashes = (json.loads(about[name]) for name in JSON)
            there = set(opened.keys())
            arrays = {key: opened.get_tensor(key) for key in (there if keys is None else there.intersection(keys))}
            if not all(isinstance(part, dict) for part in (values, pools, hashes)) or there - pools.keys():
                raise ValueError("its metadata are not those of a measurement")
            if not all(isinstance(value, (int, float)) for value in values.values()) or there - values.keys():
                raise ValueError("a value is not a number")
            if any(array.ndim != 1 for array in arrays.values()):
                raise ValueError("blocks are not one number each")
            return Measurement(float(about["kimg"]), sigmas, values, pools, hashes, arrays)
    except Exception as error:  # what a file from elsewhere leads to has no base class
        raise UserError(f"expected a measurement at {file}: {reason(error)}") from None


@dataclass(frozen=True)
class Difference:
    """A difference of two measured values.

    Attributes:
        difference: The first less the second.
        se: Its standard error, over pairs of blocks of the same draws.
        low: Lower end of the 95 % interval, Student's t.
        high: Upper end.
        blocks: How many pairs.
    """

    difference: float
    se: float
    low: float
    high: float
    blocks: int


def compare(
    run_a: str | Path,
    run_b: str | Path,
    key: str,
    kimg_a: float | None = None,
    kimg_b: float | None = None,
) -> Difference:
    """The difference of a value between two runs, or two times of one run, on the same draws.

    Both values come from the same noisy images, so their difference has far less noise than each of them. Runs with
    other training images share the pool `heldout`. The error covers the draws, not the choice of the pool's images.

    Args:
        run_a: A run folder, or a file of a measurement.
        run_b: What is subtracted.
        key: A logged name, of a value that was measured.
        kimg_a: Which measurement; `None` is the last one.
        kimg_b: That of `run_b`.

    Raises:
        UserError: If there is no such value, or the two were measured on other draws.
    """
    a, b = _measurement(run_a, kimg_a), _measurement(run_b, kimg_b)
    return difference(a, b, key, (str(run_a), str(run_b)))


def difference(
    a: Measurement, b: Measurement, key: str, names: tuple[str, str] = ("the first", "the second")
) -> Difference:
    """The difference of a value between two measurements on the same draws, as `compare` gives it.

    Args:
        a: A measurement.
        b: What is subtracted.
        key: A logged name, of a value that was measured.
        names: Of the two, for messages.

    Raises:
        UserError: If there is no such value, or the two were measured on other draws.
    """
    for name, measurement in zip(names, (a, b), strict=True):
        if key not in measurement.blocks:
            raise UserError(
                f"{key}: expected the logged name of a measured value, found none at {measurement.kimg:g} kimg of "
                f"{name}"
            )
    pool = a.pools[key]
    if pool != b.pools[key] or a.hashes.get(pool) != b.hashes.get(pool):
        raise UserError(
            f"{key}: {names[0]} and {names[1]} measured it on other draws of the pool {pool} (their hashes differ); "
            "expected the same probes.*, held-out images, and for the pool train the same training images"
        )
    levels = [{k for k in part.blocks if k.startswith(f"{key}/sigma_")} for part in (a, b)]
    if levels[0] != levels[1]:
        raise UserError(
            f"{key}: the two are means over other noise levels, since the value has no meaning at some; compare "
            f"{min(levels[0] & levels[1], default=key)} and the like"
        )
    if len(a.blocks[key]) != len(b.blocks[key]):
        counts = " and ".join(str(len(part.blocks[key])) for part in (a, b))
        raise UserError(f"{key}: expected the same number of blocks in both measurements, found {counts}")
    pairs = a.blocks[key] - b.blocks[key]
    value, se = a.values[key] - b.values[key], standard_error(pairs)
    half = quantile(len(pairs)) * se
    return Difference(value, se, value - half, value + half, len(pairs))


def write_measurement(file: Path, measurement: Measurement) -> None:
    """Write what `read_measurement` reads."""
    about = {name: json.dumps(getattr(measurement, name)) for name in JSON}
    file.parent.mkdir(parents=True, exist_ok=True)
    blocks = {key: np.ascontiguousarray(value) for key, value in measurement.blocks.items()}  # else it writes others
    with complete(file) as temporary:
        save_file(blocks, temporary, {"format": FORMAT, "kimg": repr(measurement.kimg), **about})


def add_measurement(file: Path, measurement: Measurement) -> None:
    """Write a measurement, beside what others have written there of the same draws at the same time."""
    if file.exists():
        try:
            there = read_measurement(file)
        except UserError:  # what is damaged is written anew
            there = measurement
        if (there.kimg, there.sigmas, there.hashes) == (measurement.kimg, measurement.sigmas, measurement.hashes):
            both = {name: getattr(there, name) | getattr(measurement, name) for name in ("values", "pools", "blocks")}
            measurement = replace(measurement, **both)
    write_measurement(file, measurement)


def standard_error(blocks: np.ndarray) -> float:
    """That of a value from what its blocks contribute (B,); NaN for a single block."""
    return float(blocks.std(ddof=1) / len(blocks) ** 0.5) if len(blocks) > 1 else math.nan


def _measurement(run: str | Path, kimg: float | None) -> Measurement:
    if Path(run).is_file():
        return read_measurement(run)
    files = measurement_files(run)
    if not files:
        raise UserError(f"expected a run folder with measurements in probes/, found none in {run}")
    if kimg is None:
        return read_measurement(files[-1])
    near = min(files, key=lambda file: abs(float(file.stem) - kimg))
    if abs(float(near.stem) - kimg) > 1e-6 * max(1.0, kimg) + 6e-4:  # names have three digits
        times = ", ".join(file.stem for file in files)
        raise UserError(f"{run}: expected a measurement at {kimg:g} kimg, found those at {times}")
    return read_measurement(near)
