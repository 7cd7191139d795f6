"""The figures of a study: many runs over data-set size, capacity and time, as in Li, Dai and Qu 2024."""

from gaussbias.figures.atlas.axes import draw_study_figure
from gaussbias.figures.atlas.capacity import draw_capacity, draw_capacity_samples, draw_time, draw_time_samples
from gaussbias.figures.atlas.clock import draw_clock
from gaussbias.figures.atlas.distances import compared_runs, draw_distances, draw_sampling_paths
from gaussbias.figures.atlas.halves import draw_halves
from gaussbias.figures.atlas.labels import draw_labels
from gaussbias.figures.atlas.phases import draw_phases, draw_taus
from gaussbias.figures.atlas.signs import draw_signs
from gaussbias.figures.atlas.sizes import draw_sizes
from gaussbias.figures.atlas.stops import draw_stops
from gaussbias.figures.atlas.variance import draw_variance

__all__ = [
    "compared_runs",
    "draw_capacity",
    "draw_capacity_samples",
    "draw_clock",
    "draw_distances",
    "draw_halves",
    "draw_labels",
    "draw_phases",
    "draw_sampling_paths",
    "draw_signs",
    "draw_sizes",
    "draw_stops",
    "draw_study_figure",
    "draw_taus",
    "draw_time",
    "draw_time_samples",
    "draw_variance",
]
