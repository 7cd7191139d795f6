"""`python -m gaussbias.measure RUN`: the error ladder of a run's weights, with as many draws as asked for."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gaussbias import config as configuration
from gaussbias.config import Config
from gaussbias.errors import UserError
from gaussbias.history import RAW
from gaussbias.noise import in_band, karras_sigmas, sigma_name
from gaussbias.terminal import Parser, command, say, with_error

USAGE = "python -m gaussbias.measure RUN [--checkpoint FILE] [--target-se SHARE] [section.key=value ...]"
EPILOG = """\
RUN is a run folder, of a run that goes on or has ended. Overrides name probes.*, such as probes.draws=4096 or
probes.pools=[train,heldout,trajectory], where the images lie (data.path), or the device (train.accelerator).
Results go to RUN/measured/<kimg>_<draws>.csv and .safetensors (for gaussbias.history.compare), and to
RUN/figures/ladder.png.
"""
ALLOWED = ("probes.", "data.path", "data.heldout_path", "train.accelerator")
COLUMNS = (
    ("error", "denoising/mse"),
    ("of D_G", "denoising/gaussian_mse"),
    ("of D_M", "denoising/empirical_mse"),
    ("to D_G", "ladder/total"),
    ("affine", "ladder/affine"),
    ("nonlinear", "ladder/nonlinear"),
    ("R2", "ladder/r2"),
    ("position", "ladder/position"),
    ("weights", "linear/weight_nmse"),
    ("linearity", "linearity/affine_cosine"),
)
LEGEND = """\
0.0364(9) is 0.0364 with a standard error of 0.0009, over blocks of draws. error: mean squared error of the denoiser,
beside those of the Gaussian D_G and of the memoriser D_M. to D_G: squared distance / d, the sum of its affine and its
nonlinear part. R2: share of the output's variance that an affine map explains. position: 0 at D_G, 1 at D_M. weights:
NMSE of the affine fit's weights to D_G's. linearity: cosine about the mean. band: mean over sigma in 0.1 to 20."""
WIDTH = 140


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        return command("gaussbias.measure", lambda: _measure(sys.argv[1:] if arguments is None else list(arguments)))
    except KeyboardInterrupt:
        print("gaussbias.measure: interrupted; nothing was written", file=sys.stderr)
        return 130


def _measure(arguments: list[str]) -> int:
    options = _parse(arguments)
    folder = options.run
    if not (folder / "config.yaml").exists():
        raise UserError(f"expected a run folder with config.yaml, found none at {folder}")
    for override in options.overrides:
        if not override.removeprefix("--").startswith(ALLOWED):
            raise UserError(f"{override}: expected a key of {', '.join(ALLOWED)}; other keys are those of the run")
    if options.target_se is not None and not 0 < options.target_se < 1:
        raise UserError(f"--target-se: expected a share of the distance between 0 and 1, got {options.target_se:g}")
    config = configuration.load(folder / "config.yaml", options.overrides)
    results = folder / "measured"
    try:
        results.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {results}: {error.strerror}") from None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from safetensors import SafetensorError

    from gaussbias.figures import draw_ladder
    from gaussbias.measuring import measure

    columns = TextColumn("blocks of draws"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=None)
        found = measure(
            config,
            folder,
            options.checkpoint,
            options.target_se,
            lambda done, blocks: bar.update(task, completed=done, total=blocks),
        )
    when = "an unknown time" if found.kimg is None else f"{found.kimg:g} kimg"
    say(f"{folder} at {when}, {found.draws} draws in each pool:")
    for weights in config.probes.weights:
        for pool in config.probes.pools:
            _print_table(config, found.values, weights, pool)
    say(LEGEND)
    file = results / f"{found.name}.safetensors"
    try:
        found.write(file)
        _write_csv(file.with_suffix(".csv"), config, found.values)
    except (OSError, SafetensorError) as error:
        raise UserError(f"what was measured is above, but could not be written to {results}: {error}") from None
    picture = draw_ladder([file], folder / "figures" / "ladder.png")
    say("\n".join(map(str, (file.with_suffix(".csv"), file, picture))))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m gaussbias.measure",
        usage=USAGE,
        description="Measure the weights of a run: errors, linearity, and the parts of its distance to the Gaussian.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="whose weights; default: the run's newest")
    parser.add_argument(
        "--target-se",
        type=float,
        metavar="SHARE",
        help="stop once the standard error of the affine part is at most this share of the distance, in every pool",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="how to measure")
    return parser.parse_overrides(arguments)


def _levels(config: Config) -> list[float]:
    return karras_sigmas(10) if config.probes.sigmas is None else config.probes.sigmas


def _print_table(config: Config, values: Mapping[str, float], weights: str, pool: str) -> None:
    from rich.console import Console
    from rich.table import Table

    prefix = RAW if weights == "raw" else ""
    sigmas = _levels(config)
    ends = [(f"{sigma:.3g}", f"/sigma_{sigma_name(sigma)}") for sigma in sigmas]
    ends += [("band", "")] if in_band(sigmas) else []
    shown = [
        (title, name)
        for title, name in COLUMNS
        if any(_find(values, prefix, f"{name}/{pool}{end}") is not None for _, end in ends)
    ]
    what = f"{weights} weights" if config.module.kind == "edm" else config.module.kind
    table = Table(title=f"{pool}, {what}", title_justify="left", box=None, pad_edge=False)
    table.add_column("sigma", justify="right")
    for title, _ in shown:
        table.add_column(title, justify="right", no_wrap=True)
    for label, end in ends:
        table.add_row(label, *(_cell(values, prefix, f"{name}/{pool}{end}") for _, name in shown))
    console = Console(width=WIDTH)
    with console.capture() as text:
        console.print(table)
    say("\n".join(line.rstrip() for line in text.get().splitlines()) + "\n")


def _find(values: Mapping[str, float], prefix: str, key: str) -> float | None:
    """A value of these weights, or of a baseline, whose names have no prefix."""
    baseline = "/gaussian_" in key or "/empirical_mse" in key
    return values.get(prefix + key, values.get(key) if baseline else None)


def _cell(values: Mapping[str, float], prefix: str, key: str) -> str:
    value, error = _find(values, prefix, key), _find(values, prefix, f"{key}_se")
    if value is None:
        return ""
    return f"{value:.3g}" if error is None else with_error(value, error)


def _write_csv(path: Path, config: Config, values: Mapping[str, float]) -> None:
    """One row for each weights, pool and noise level, and one for the mean over the band."""
    ends = [(repr(sigma), f"/sigma_{sigma_name(sigma)}") for sigma in _levels(config)] + [("band", "")]
    names = dict.fromkeys("/".join(key.removeprefix(RAW).split("/")[:2]) for key in values)
    rows: list[dict[str, object]] = []
    for weights in config.probes.weights:
        prefix = RAW if weights == "raw" else ""
        for pool in config.probes.pools:
            for sigma, end in ends:
                row: dict[str, object] = {"weights": weights, "pool": pool, "sigma": sigma}
                for name in names:
                    for tail in ("", "_se"):
                        row[name + tail] = _find(values, prefix, f"{name}/{pool}{end}{tail}")
                rows.append(row)
    columns = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
