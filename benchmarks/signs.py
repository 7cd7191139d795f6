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
from gaussbias.probes import (
    PROBES,
    FreedomProbe,
    GainProbe,
    GapProbe,
    Instruments,
    NoveltyProbe,
    References,
    SampleSpectrumProbe,
)

SIGNS = (NoveltyProbe, GapProbe, FreedomProbe, GainProbe, SampleSpectrumProbe)
CASES: tuple[tuple[str, str, list[str]], ...] = (
    ("digits", "digits.yaml", []),
    ("digits, N = 100", "digits.yaml", ["data.n_train=100"]),
    ("cifar_tiny", "cifar_tiny.yaml", []),
)


def costs(data: Path | None, repeat: int) -> dict[str, float]:
    """Print a line for each configuration: seconds of a measurement, after the first one, which makes references.

    Args:
        data: CIFAR-10; without it only digits are measured.
        repeat: Measurements of each kind.

    Returns:
        For each configuration by how much longer a measurement takes, as a share.
    """
    found: dict[str, float] = {}
    print("| run | without, s | with, s | more |\n|---|---|---|---|")
    for name, file, keys in CASES:
        if "cifar" in file:
            if data is None:
                continue
            keys = [*keys, f"data.path={data}"]
        without, with_signs, more = _seconds(file, keys, repeat)
        found[name] = more
        print(f"| {name} | {without:.2f} | {with_signs:.2f} | {100 * more:.1f} % |", flush=True)
    return found


def _seconds(file: str, keys: list[str], repeat: int) -> tuple[float, float, float]:
    config = configuration.load(Path("configs") / file, keys)
    images = build_data(config)
    torch.manual_seed(0)
    channels, height, width = images.bank.shape
    network = build_network(config.model, (channels, height, width))
    denoiser = EDMDenoiser(network).eval()
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
    return without, with_signs, ratios - 1
