"""What the early signs cost: a measurement with and without them, alternately, of the networks of configurations."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from gaussbias import config as configuration
from gaussbias.backbones import build as build_network
from gaussbias.denoisers import EDMDenoiser
from gaussbias.modules import build_data
from gaussbias.probes import PROBES, FreedomProbe, GainProbe, GapProbe, Instruments, NoveltyProbe, References

SIGNS = (NoveltyProbe, GapProbe, FreedomProbe, GainProbe)
CASES: tuple[tuple[str, str, list[str]], ...] = (
    ("digits", "digits.yaml", []),
    ("digits, N = 100", "digits.yaml", ["data.n_train=100"]),
    ("cifar_tiny", "cifar_tiny.yaml", []),
)


def main(data: Path | None, repeat: int) -> None:
    """Print a line for each configuration: seconds of a measurement, after the first one, which makes references.

    Args:
        data: CIFAR-10; without it only digits are measured.
        repeat: Measurements of each kind.
    """
    print("| run | without, s | with, s | more |\n|---|---|---|---|")
    for name, file, keys in CASES:
        if "cifar" in file:
            if data is None:
                continue
            keys = [*keys, f"data.path={data}"]
        print(f"| {name} | {' | '.join(_row(file, keys, repeat))} |", flush=True)


def _row(file: str, keys: list[str], repeat: int) -> tuple[str, str, str]:
    config = configuration.load(Path("configs") / file, keys)
    images = build_data(config)
    torch.manual_seed(0)
    channels, height, width = images.bank.shape
    network = build_network(config.model, (channels, height, width))
    denoiser = EDMDenoiser(network, config.model.sigma_data).eval()
    references = References(images.bank, images.images, heldout=images.heldout)
    kinds = [probe for probe in PROBES if probe not in SIGNS], list(PROBES)
    instruments = [Instruments(references, {"ema": [probe(references) for probe in kind]}) for kind in kinds]
    seconds: list[list[float]] = [[], []]
    for _ in range(repeat + 1):
        for place, instrument in enumerate(instruments):
            instrument.to(torch.device("cpu"))
            begun = time.process_time()
            for _ in instrument.measure({"ema": denoiser}, torch.device("cpu")):
                pass
            instrument.result(1.0)
            seconds[place].append(time.process_time() - begun)
    without, with_signs = (median(part[1:]) for part in seconds)
    ratios = median(b / a for a, b in zip(seconds[0][1:], seconds[1][1:], strict=True))
    return f"{without:.2f}", f"{with_signs:.2f}", f"{100 * (ratios - 1):.1f} %"
