"""Which formula explains networks at which noise level, as a table and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gaussbias import catalogue
from gaussbias.analysis import Record, Study, Value, combine
from gaussbias.analysis.theories import Best, best_theory, compared, formulas, paired, unexplained
from gaussbias.catalogue import THEORY_TITLES
from gaussbias.history import Measurement, averaged, measurement_files, read_measurement
from gaussbias.noise import in_band
from gaussbias.report.claims import Claim, judge
from gaussbias.report.signs import Table
from gaussbias.system.terminal import with_error

HEAD = ("N", "sigma", "least unexplained by", "network's error / best theory's")
LOCAL = ("local-", "equivariant-")
"""How the names of local score machines begin."""
POOL = "heldout"
DOUBTFUL = " (another may be as good)"


def compared_runs(study: Study) -> dict[int, list[Record]]:
    """The finished runs of the main width that were compared with theories, by the number of their images."""
    width = study.main_width()
    found = {size: [run for run in study.ended(size, width) if _last(run)] for size in study.ended_sizes(width)}
    return {size: runs for size, runs in found.items() if runs}


def table(runs: dict[int, list[Record]]) -> Table:
    """For each N and noise level of the intermediate band the theory that explains most, and the line to beat."""
    rows: list[Sequence[str]] = []
    for size, several in runs.items():
        ends = [last for run in several if (last := _last(run)) is not None]
        for sigma in (ends[0].sigmas[i] for i in in_band(ends[0].sigmas)):
            best = [found for end in ends if (found := best_theory(end, POOL, sigma)) is not None]
            if not best:
                continue
            keys = catalogue.MSE.on(POOL, sigma), catalogue.BEST_MSE.on(POOL, sigma)
            ratios = [end.values[keys[0]] / end.values[keys[1]] for end in ends if set(keys) <= end.values.keys()]
            told = ", ".join(map(_best, best))
            rows.append((f"{size:,}", f"{sigma:.3g}", told, ", ".join(f"{ratio:.3f}" for ratio in ratios)))
    return HEAD, rows


def claims(runs: dict[int, list[Record]]) -> list[Claim]:
    """Whether networks beat all formulas, and whether local machines explain most of them early in training."""
    told = []
    for size, several in runs.items():
        value = _gain([_last(run) for run in several])
        if value.runs:
            text = f"A network of N = {size:,} denoises unseen images better than every formula it is compared with."
            where = _levels([end for end in map(_last, several) if end is not None])
            found = f"error of the best theory less the network's, held-out, band: {_told(value)}{where}"
            told.append(Claim("the line to beat (theory/best_mse)", text, found, judge(value)))
        early = [(first, _local(first)) for run in several if (first := _first(run)) is not None]
        known = [(first, pair) for first, pair in early if pair is not None]
        if known:
            value = combine([pair[0] for _, pair in known], [pair[1] for _, pair in known])
            times = ", ".join(f"{first.kimg:.3g}" for first, _ in known)
            text = f"Early in training (N = {size:,}) a local score machine explains more than any theory without one."
            found = (
                "least unexplained share of theories without local machines less that of local machines, held-out, "
                f"band, at the first measurement at which any theory explains something ({times} kimg): {_told(value)}"
            )
            told.append(Claim("arXiv 2607.08041", text, found, judge(value)))
    return told


def _best(found: Best) -> str:
    return f"{THEORY_TITLES.get(found.name, found.name)} {found.share:.3g}{'' if found.sure else DOUBTFUL}"


def _told(value: Value) -> str:
    return with_error(value.mean, value.se)


def _last(run: Record) -> Measurement | None:
    """What was measured last of a run, if it was compared with theories."""
    files = measurement_files(run.folder) if run.folder is not None else []
    last = averaged(read_measurement(files[-1])) if files else None
    return last if last is not None and compared(last)[0] else None


def _first(run: Record) -> Measurement | None:
    """The first measurement at which a theory explains something of the network, on average over the band."""
    assert run.folder is not None
    for file in measurement_files(run.folder):
        measurement = averaged(read_measurement(file))
        if measurement.kimg > 0 and min(_shares(measurement).values(), default=math.inf) < 1:
            return measurement
    return None


def _shares(measurement: Measurement) -> dict[str, float]:
    """What each theory leaves, on average over the band, by the logged name."""
    keys = [unexplained(name).on(POOL) for name in formulas(compared(measurement)[0])]
    return {key: measurement.values[key] for key in keys if key in measurement.values}


def _local(measurement: Measurement) -> tuple[float, float] | None:
    """The least share of theories that are no local machines, less that of local ones, and its standard error."""
    shares = _shares(measurement)
    local = {key: share for key, share in shares.items() if key.split("/")[1].startswith(LOCAL)}
    others = {key: share for key, share in shares.items() if key not in local}
    if not local or not others:
        return None
    return paired(measurement, min(others, key=lambda key: others[key]), min(local, key=lambda key: local[key]))


def _gain(ends: Sequence[Measurement | None]) -> Value:
    keys = catalogue.BEST_MSE.on(POOL), catalogue.MSE.on(POOL)
    pairs = [paired(end, *keys) for end in ends if end is not None and set(keys) <= end.blocks.keys()]
    return combine([value for value, _ in pairs], [se for _, se in pairs])


def _levels(ends: Sequence[Measurement]) -> str:
    """At which noise levels of the band networks are better than the best theory beyond doubt, and at which worse."""
    better, worse = [], []
    for sigma in (ends[0].sigmas[i] for i in in_band(ends[0].sigmas)):
        keys = catalogue.BEST_MSE.on(POOL, sigma), catalogue.MSE.on(POOL, sigma)
        pairs = [paired(end, *keys) for end in ends if set(keys) <= end.blocks.keys()]
        value = combine([value for value, _ in pairs], [se for _, se in pairs])
        better += [f"{sigma:.3g}"] if value.low > 0 else []
        worse += [f"{sigma:.3g}"] if value.high < 0 else []
    parts = (
        f"{what} at sigma {', '.join(levels)}" for what, levels in (("better", better), ("worse", worse)) if levels
    )
    return "".join(f"; {part}" for part in parts)


def pictures_of(runs: dict[int, list[Record]]) -> dict[str, list[Path]]:
    """Files of the measurements of the first run of each N, by title."""
    firsts = {size: several[0] for size, several in runs.items()}
    return {f"N = {size:,}": measurement_files(run.folder) for size, run in firsts.items() if run.folder is not None}
