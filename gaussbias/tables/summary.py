"""What a run came to: its last values beside their references, and where everything is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gaussbias import catalogue
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import SE, Entry, group_of, guidance_weights, on_pool, read_extra
from gaussbias.history import last, plain
from gaussbias.system.run_folder import RunFolder
from gaussbias.system.terminal import with_error
from gaussbias.tables.columns import line
from gaussbias.tables.guidance import guidance_rows, term_rows
from gaussbias.tables.theories import cell, theory_rows

Row = tuple[Entry, str]
"""What is shown in a line, and its title if that is not the entry's own."""
SAMPLES: tuple[Row, ...] = (
    (catalogue.GL_SCORE, ""),
    (catalogue.FRECHET, ""),
    (catalogue.FID, ""),
    (catalogue.SAMPLE_COSINE, ""),
    (catalogue.TRAIN_SHARE, "nearest to a training image"),
)
DIFFERENCES: tuple[Row, ...] = (
    (catalogue.GAP_MSE, "gap beyond D_G's"),
    (catalogue.GAP_Z, "  largest, in errors"),
    (catalogue.GAP_AUC, "training errors are smaller"),
    (catalogue.TRACE_GAP, "tr J, held-out less training"),
)
DENOISERS: tuple[Row, ...] = (
    (catalogue.MSE, ""),
    (catalogue.GAUSSIAN_RMSE, ""),
    (catalogue.AFFINE, "  squared: affine part"),
    (catalogue.NONLINEAR, "  squared: nonlinear part"),
    (catalogue.EMPIRICAL_RMSE, ""),
    (catalogue.R2, ""),
    (catalogue.POSITION, ""),
    (catalogue.AFFINE_COSINE, ""),
    (catalogue.TRACE, "degrees of freedom, tr J"),
    (catalogue.BETWEEN, "nearest D_h: h"),
    (catalogue.BEST_MSE, "error of the best theory"),
    (catalogue.TEACHER_LINEAR, ""),
)
KINDS = {group_of(catalogue.FIT_ERROR): "surrogate", catalogue.VARIANCE.name: "Gaussian"}
"""What a run has that logs keys that begin so; else a network."""
NOTE = "(0.364(9) is 0.364 with a standard error of 0.009; denoisers: means over sigma in 0.1 to 20)"
POOLS = {"heldout": "held-out images", "train": "training images"}
UNSENT = "unsent"
"""Marks, in `wandb/`, a run that was online and did not reach its server to the end."""
FILES = (
    ("history.csv", "every value"),
    ("figures/curves.png", "curves"),
    ("figures/samples.png", "samples"),
    ("figures/ladder.png", "errors and parts of the distance to D_G, against sigma"),
    ("figures/ladder_kimg.png", "the parts over time"),
    ("figures/theories.png", "what theories explain, against sigma"),
    ("figures/theories_kimg.png", "which of them explains most, over time"),
    ("figures/guidance.png", "the term of guidance: what Gaussians explain of it, and its directions"),
    ("figures/cycles.png", "copies below the surface: noise added to samples, and sampled back"),
    ("figures/leaks.png", "the training images that samples come closest to"),
    ("figures/surrogate.png", "the surrogate's weights, and its distance to the network"),
    ("figures/surrogate_paths.png", "sampling paths of both and of the baselines"),
    ("figures/spectrum.png", "spectrum, shrinkage, error"),
    ("denoiser.safetensors", "the denoiser, averaged weights"),
    ("linear.safetensors", "the surrogate"),
    ("moments.safetensors", "mean and covariance: the Gaussian denoiser"),
    ("checkpoints/last.ckpt", "to continue with --resume"),
    ("checkpoints/best_gaussian_gap.ckpt", "the weights nearest to the Gaussian on held-out images"),
    ("checkpoints/best_memorization.ckpt", "the last weights before samples were memorised"),
    ("checkpoints/best_gap.ckpt", "the last weights before the gap opened that D_G does not explain"),
    ("checkpoints/best_novelty.ckpt", "the last weights before samples drifted to training images"),
    ("wandb", "Weights & Biases"),
    ("tensorboard", "TensorBoard"),
)


def summary(folder: Path) -> str:
    """The last values of a run beside their references, as a table, and its files.

    Raises:
        UserError: If the folder holds no history.
    """
    values = plain(last(folder))
    if not values:
        return f"nothing is logged yet in {folder}"
    kind = next((kind for key, kind in KINDS.items() if any(name.startswith(key) for name in values)), "network")
    lines = ["", _line(f"samples at {values['kimg']:g} kimg", kind, "D_G", "real images")]
    every = read_extra(folder)
    extra = [entry for entry in not_of_theories(every) if not guidance_weights([entry])]
    of_samples = [*SAMPLES, *((entry, "") for entry in extra if not entry.pools)]
    of_denoisers = [*DENOISERS, *((entry, "") for entry in extra if entry.pools)]
    lines += [text for row in of_samples if (text := _row(row, "", values))]
    shares = catalogue.MEMORIZED_FRACTION, catalogue.MEMORIZED_LOW, catalogue.MEMORIZED_HIGH
    memorized = [values.get(entry.name) for entry in shares]
    if None not in memorized:
        share, low, high = memorized
        lines.append(f"{'  memorised':30}{share:11.3f}   95 %: {low:.3f} to {high:.3f}")
    for pool, title in POOLS.items():
        table = [text for row in of_denoisers if (text := _row(row, pool, values))]
        lines += [_line(f"denoisers on {title}", kind, "D_G", "D_M"), *table] if table else []
    lines += _theories(every, values)
    head, rows = guidance_rows(every, partial(cell, values))
    lines += (
        [_line("samples with guidance", *head[1:]), *(_line(f"  {row[0]}", *row[1:]) for row in rows)] if rows else []
    )
    head, rows = term_rows("heldout", values)
    table = [_line(f"  sigma {row[0]}", *row[1:]) for row in rows]
    lines += [_line("guidance on held-out images", *head[1:]), *table] if table else []
    between = [text for row in DIFFERENCES if (text := _row(row, "", values))]
    lines += [_line("training against held-out", kind, "D_G"), *between] if between else []
    if any(key.endswith(SE) for key in values):
        lines.append(NOTE)
    there = [(name, what) for name, what in FILES if (folder / name).exists()]
    width = max([28, *(len(name) + 2 for name, _ in there)])
    files = [f"  {name:{width}}{what}" for name, what in there]
    command = sync_command(folder)
    if command is not None:
        files.append(f"to send it to Weights & Biases: {command}")
    return "\n".join([*lines, "", f"in {folder}:", *files])


def _theories(entries: Sequence[Entry], values: dict[str, float]) -> list[str]:
    """A line for each theory, on held-out images."""
    head, rows = theory_rows(entries, "heldout", partial(cell, values))
    if not rows:
        return []
    return [_line("theories on held-out images", *head[1:]), *(_line(f"  {row[0]}", *row[1:]) for row in rows)]


def watch_command(folder: Path) -> str | None:
    """What shows the curves of a run in this terminal or a browser, without an account; `None` if nothing does."""
    files = RunFolder(folder)
    if files.tensorboard.is_dir():
        return f"tensorboard --logdir {shlex.quote(str(files.tensorboard))}"
    return f"wandb leet {shlex.quote(str(files.wandb))}" if list(folder.glob("wandb/*run-*")) else None


def sync_command(folder: Path) -> str | None:
    """What sends what Weights & Biases does not have of a run; `None` if there is nothing.

    A run that was online, but did not reach its server to the end, is sent whole to an id of its own: W&B does not know
    what it has of it, and would have it twice.
    """
    place, name = f"{shlex.quote(str(folder))}/wandb", wandb_id(folder)
    if name is not None and (RunFolder(folder).wandb / UNSENT).exists():
        parts = len(list(folder.glob("wandb/*run-*")))
        return f"wandb sync --include-online --include-synced --id {name}-{parts} {place}/*run-*"
    return f"wandb sync {place}/offline-run-*" if list(folder.glob("wandb/offline-run-*")) else None


def wandb_id(folder: Path) -> str | None:
    """The id of the W&B run of a run folder, if it has one that is one."""
    try:
        identity = RunFolder(folder).wandb_id.read_text(errors="replace").strip()
    except OSError:
        return None
    return identity if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identity) else None


def _row(row: Row, pool: str, values: dict[str, float]) -> str:
    """A line of the table, on a pool if there is one; nothing if there is no such value."""
    entry, title = row
    if entry.on(pool) not in values:
        return ""
    cells = (_cell(name, pool, values) for name in (entry.name, entry.gaussian, entry.ideal))
    return _line("  " + (title or entry.title), *cells)


def _cell(name: str | float | None, pool: str, values: dict[str, float]) -> str:
    if not isinstance(name, str):
        return "" if name is None else f"{name:g}"
    key = on_pool(name, pool)
    if key not in values:
        return ""
    error = values.get(key + SE)
    return f"{values[key]:.4g}" if error is None else with_error(values[key], error)


def _line(title: str, *cells: str) -> str:
    return (f"{title:30}" + line(cells, [13] * len(cells))).rstrip()
