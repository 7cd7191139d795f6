"""Reads the logged rows of runs, and compares their measurements on the same draws."""

from gaussbias.history.measurements import (
    FORMAT,
    Difference,
    Measurement,
    compare,
    is_number,
    measurement_files,
    quantile,
    read_measurement,
    timed_files,
    write_measurement,
)
from gaussbias.history.rows import (
    RAW,
    begins_again,
    last,
    load,
    plain,
    reached_kimg,
    read_rows,
    rows_until,
    series,
)

__all__ = [
    "FORMAT",
    "RAW",
    "Difference",
    "Measurement",
    "begins_again",
    "compare",
    "is_number",
    "last",
    "load",
    "measurement_files",
    "plain",
    "quantile",
    "reached_kimg",
    "read_measurement",
    "read_rows",
    "rows_until",
    "series",
    "timed_files",
    "write_measurement",
]
