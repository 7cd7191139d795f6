"""Reads the logged rows of runs, and compares their measurements on the same draws."""

from gaussbias.history.measurements import (
    FORMAT,
    Difference,
    Measurement,
    add_measurement,
    compare,
    difference,
    is_number,
    kimg_name,
    measurement_files,
    quantile,
    read_measurement,
    timed_files,
    write_measurement,
)
from gaussbias.history.rows import (
    begins_again,
    last,
    load,
    plain,
    reached_kimg,
    read_rows,
    rows_until,
    series,
)
from gaussbias.history.writing import HistoryFile

__all__ = [
    "FORMAT",
    "Difference",
    "HistoryFile",
    "Measurement",
    "add_measurement",
    "begins_again",
    "compare",
    "difference",
    "is_number",
    "kimg_name",
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
