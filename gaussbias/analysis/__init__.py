"""What many runs say together: trends over data-set size, capacity and time, with intervals."""

from gaussbias.analysis.changes import change
from gaussbias.analysis.choices import RULES, Chosen, choices
from gaussbias.analysis.crossings import tau_gen, tau_mem
from gaussbias.analysis.halves import Similarity, similarities
from gaussbias.analysis.powerlaw import PowerLaw, fit_power_law
from gaussbias.analysis.studies import Study, studies
from gaussbias.analysis.table import Record, collect, read_table, write_table
from gaussbias.analysis.values import Value, combine
from gaussbias.history.crossings import Crossing, crossing

__all__ = [
    "RULES",
    "Chosen",
    "Crossing",
    "PowerLaw",
    "Record",
    "Similarity",
    "Study",
    "Value",
    "change",
    "choices",
    "collect",
    "combine",
    "crossing",
    "fit_power_law",
    "read_table",
    "similarities",
    "studies",
    "tau_gen",
    "tau_mem",
    "write_table",
]
