"""What a run came to: its last values beside their references, and where everything is."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from gaussbias.history import last, plain
from gaussbias.system.terminal import with_error


@dataclass(frozen=True)
class Row:
    """A value of the network, the same of D_G, and of real images or the memoriser: a logged name, or a number."""

    title: str
    network: str
    gaussian: str | float | None = None
    other: str | float | None = None


SAMPLES = (
    Row("GL score", "generalization/gl_score", "generalization/gl_score_gaussian", "generalization/gl_score_heldout"),
    Row("Frechet distance (PCA)", "samples/frechet_pca", "samples/frechet_pca_gaussian", "samples/frechet_pca_train"),
    Row("Frechet distance (features)", "samples/fid", "samples/fid_gaussian", "samples/fid_train"),
    Row("cosine with D_G's samples", "samples/gaussian_cosine", 1.0),
)
DENOISERS = (
    Row("error", "denoising/mse/{pool}", "denoising/gaussian_mse/{pool}", "denoising/empirical_mse/{pool}"),
    Row("rmse to D_G", "gaussian/rmse/{pool}", 0.0),
    Row("  squared: affine part", "ladder/affine/{pool}", 0.0),
    Row("  squared: nonlinear part", "ladder/nonlinear/{pool}", 0.0),
    Row("rmse to D_M", "empirical/rmse/{pool}", None, 0.0),
    Row("R2 of the affine fit", "ladder/r2/{pool}", 1.0),
    Row("position", "ladder/position/{pool}", 0.0, 1.0),
    Row("linearity", "linearity/affine_cosine/{pool}", 1.0),
    Row(
        "rmse to its teacher",
        "teacher/linear_rmse/{pool}",
        "teacher/gaussian_rmse/{pool}",
        "teacher/empirical_rmse/{pool}",
    ),
)
KINDS = {"surrogate/": "surrogate", "spectrum/": "Gaussian"}
"""What a run has that logs such keys; else a network."""
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
    ("figures/surrogate.png", "the surrogate's weights, and its distance to the network"),
    ("figures/surrogate_paths.png", "sampling paths of both and of the baselines"),
    ("figures/spectrum.png", "spectrum, shrinkage, error"),
    ("denoiser.safetensors", "the denoiser, averaged weights"),
    ("linear.safetensors", "the surrogate"),
    ("moments.safetensors", "mean and covariance: the Gaussian denoiser"),
    ("checkpoints/last.ckpt", "to continue with --resume"),
    ("checkpoints/best_gaussian_gap.ckpt", "the weights nearest to the Gaussian on held-out images"),
    ("checkpoints/best_memorization.ckpt", "the last weights before samples were memorised"),
    ("wandb", "Weights & Biases"),
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
    lines += [line for row in SAMPLES if (line := _row(row, values))]
    memorized = [values.get(f"generalization/memorized_fraction{end}") for end in ("", "_low", "_high")]
    if None not in memorized:
        share, low, high = memorized
        lines.append(f"{'  memorised':30}{share:11.3f}   95 %: {low:.3f} to {high:.3f}")
    for pool, title in POOLS.items():
        rows = [Row(r.title, r.network.format(pool=pool), _of(r.gaussian, pool), _of(r.other, pool)) for r in DENOISERS]
        table = [line for row in rows if (line := _row(row, values))]
        lines += [_line(f"denoisers on {title}", kind, "D_G", "D_M"), *table] if table else []
    if any(key.endswith("_se") for key in values):
        lines.append(NOTE)
    there = [(name, what) for name, what in FILES if (folder / name).exists()]
    width = max([28, *(len(name) + 2 for name, _ in there)])
    files = [f"  {name:{width}}{what}" for name, what in there]
    command = sync_command(folder)
    if command is not None:
        files.append(f"to send it to Weights & Biases: {command}")
    return "\n".join([*lines, "", f"in {folder}:", *files])


def sync_command(folder: Path) -> str | None:
    """What sends what Weights & Biases does not have of a run; `None` if there is nothing.

    A run that was online, but did not reach its server to the end, is sent whole to an id of its own: W&B does not know
    what it has of it, and would have it twice.
    """
    place, name = f"{shlex.quote(str(folder))}/wandb", wandb_id(folder)
    if name is not None and (folder / "wandb" / UNSENT).exists():
        parts = len(list(folder.glob("wandb/*run-*")))
        return f"wandb sync --include-online --include-synced --id {name}-{parts} {place}/*run-*"
    return f"wandb sync {place}/offline-run-*" if list(folder.glob("wandb/offline-run-*")) else None


def wandb_id(folder: Path) -> str | None:
    """The id of the W&B run of a run folder, if it has one that is one."""
    try:
        found = (folder / "wandb" / "run_id").read_text(errors="replace").strip()
    except OSError:
        return None
    return found if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found) else None


def _of(name: str | float | None, pool: str) -> str | float | None:
    return name.format(pool=pool) if isinstance(name, str) else name


def _row(row: Row, values: dict[str, float]) -> str:
    if row.network not in values:
        return ""
    return _line("  " + row.title, *(_cell(name, values) for name in (row.network, row.gaussian, row.other)))


def _cell(name: str | float | None, values: dict[str, float]) -> str:
    if not isinstance(name, str):
        return "" if name is None else f"{name:g}"
    if name not in values:
        return ""
    error = values.get(f"{name}_se")
    return f"{values[name]:.4g}" if error is None else with_error(values[name], error)


def _line(title: str, *cells: str) -> str:
    return (f"{title:30}" + "".join(f"{f' {cell}':>13}" for cell in cells)).rstrip()
