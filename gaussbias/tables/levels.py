"""Measured values as tables, on the terminal and as csv."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from gaussbias import catalogue
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import RAW, SE, Entry, known_entry, on_pool, take_apart
from gaussbias.config import Config
from gaussbias.noise import in_band, karras_sigmas
from gaussbias.system.files import complete
from gaussbias.system.terminal import say, with_error
from gaussbias.tables.columns import table
from gaussbias.tables.theories import level_rows

COLUMNS = (
    catalogue.MSE,
    catalogue.GAUSSIAN_MSE,
    catalogue.EMPIRICAL_MSE,
    catalogue.TOTAL,
    catalogue.AFFINE,
    catalogue.NONLINEAR,
    catalogue.R2,
    catalogue.POSITION,
    catalogue.WEIGHT_NMSE,
    catalogue.AFFINE_COSINE,
)
DIFFERENCES = (
    ("gap", catalogue.GAP_MSE.name),
    ("z", catalogue.GAP_Z.name),
    ("AUC", catalogue.GAP_AUC.name),
    ("of D_G", catalogue.GAP_AUC_GAUSSIAN.name),
    ("tr J, train", catalogue.TRACE.on("train")),
    ("held-out", catalogue.TRACE.on("heldout")),
    ("difference", catalogue.TRACE_GAP.name),
    ("tr J of D_G", catalogue.GAUSSIAN_TRACE.on("train")),
    ("consistency", catalogue.CONSISTENCY_GAP.name),
)
LEGEND = """\
0.0364(9) is 0.0364 with a standard error of 0.0009, over blocks of draws. error: mean squared error of the denoiser,
beside those of the Gaussian D_G and of the memoriser D_M. to D_G: squared distance / d, the sum of its affine and its
nonlinear part. R2: share of the output's variance that an affine map explains. position: 0 at D_G, 1 at D_M. weights:
NMSE of the affine fit's weights to D_G's. linearity: cosine about the mean. gap: error on held-out less on training
images, beyond D_G's own; z: over its standard error (band: the largest); AUC: probability that a training error is the
smaller. tr J: degrees of freedom, the trace of the Jacobian. h: of the nearest D_h, 0 at
D_M and 1 at D_G; but for: the share of the output's variance that a theory does not explain. band: mean over sigma in
0.1 to 20."""


def _levels(config: Config) -> list[float]:
    return karras_sigmas(10) if config.probes.sigmas is None else config.probes.sigmas


def print_table(
    config: Config,
    values: Mapping[str, float],
    weights: str,
    pool: str,
    what: str = "",
    extra: Sequence[Entry] = (),
) -> None:
    """Print the values of one pool, a row for each noise level and one for the mean over the band.

    Args:
        config: With the noise levels.
        values: By logged name.
        weights: Whose values: `ema` or `raw`.
        pool: The pool.
        what: The title, if it is not that of the weights.
        extra: Entries that are not in the catalogue.
    """
    prefix = RAW if weights == "raw" else ""
    sigmas = _levels(config)
    ends = [(f"{sigma:.3g}", Entry.end(sigma)) for sigma in sigmas]
    ends += [("band", "")] if in_band(sigmas) else []
    shown = [
        entry
        for entry in (*COLUMNS, *(entry for entry in not_of_theories(extra) if entry.pools))
        if any(_find(values, prefix, entry.on(pool) + end) is not None for _, end in ends)
    ]
    what = what or (f"{weights} weights" if config.module.kind == "edm" else config.module.kind)
    rows = [["sigma", *(entry.head for entry in shown)]]
    rows += [[label, *(_cell(values, prefix, entry.on(pool) + end) for entry in shown)] for label, end in ends]
    say(f"{pool}, {what}\n{table(rows)}\n")
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(RAW) == bool(prefix)}
    head, compared = level_rows(extra, pool, sigmas, own)
    if compared:
        say(f"theories, {pool}, {what}\n{table([head, *compared])}\n")


def print_differences(config: Config, values: Mapping[str, float], weights: str, what: str = "") -> None:
    """Print what differs between training and held-out images, a row for each noise level and one for the band.

    Args:
        config: With the noise levels.
        values: By logged name.
        weights: Whose values: `ema` or `raw`.
        what: The title, if it is not that of the weights.
    """
    prefix = RAW if weights == "raw" else ""
    ends = [(f"{sigma:.3g}", Entry.end(sigma)) for sigma in _levels(config)]
    ends += [("band", "")] if in_band(_levels(config)) else []
    shown = [
        (head, name) for head, name in DIFFERENCES if any(_find(values, prefix, name + e) is not None for _, e in ends)
    ]
    if not any(name == catalogue.GAP_MSE.name for _, name in shown):
        return
    rows = [["sigma", *(head for head, _ in shown)]]
    rows += [[label, *(_cell(values, prefix, name + end) for _, name in shown)] for label, end in ends]
    say(f"training against held-out, {what or f'{weights} weights'}\n{table(rows)}\n")


def _find(values: Mapping[str, float], prefix: str, key: str) -> float | None:
    """A value of these weights, or of a baseline, whose names have no prefix."""
    name = take_apart(key).entry
    known = known_entry(name)
    # of entries that are not in the catalogue those are a baseline's that raw weights have no value of at all
    baseline = known.reference if known is not None else not any(other.startswith(RAW + name) for other in values)
    return values.get(prefix + key, values.get(key) if baseline else None)


def _cell(values: Mapping[str, float], prefix: str, key: str) -> str:
    value, error = _find(values, prefix, key), _find(values, prefix, key + SE)
    if value is None:
        return ""
    return f"{value:.3g}" if error is None else with_error(value, error)


def write_csv(path: Path, config: Config, values: Mapping[str, float]) -> None:
    """One row for each weights, pool and noise level, and one for the mean over the band."""
    ends = [(repr(sigma), Entry.end(sigma)) for sigma in _levels(config)] + [("band", "")]
    names = dict.fromkeys(take_apart(key).entry for key in values)
    rows: list[dict[str, object]] = []
    for weights in config.probes.weights:
        prefix = RAW if weights == "raw" else ""
        for pool in (*config.probes.pools, ""):
            for sigma, end in ends:
                row: dict[str, object] = {"weights": weights, "pool": pool or "difference", "sigma": sigma}
                for name in names:
                    for tail in ("", SE):
                        row[name + tail] = _find(values, prefix, f"{on_pool(name, pool)}{end}{tail}")
                rows.append(row)
    columns = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    with complete(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
