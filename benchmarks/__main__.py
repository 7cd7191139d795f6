"""`python -m benchmarks`: each kernel beside the usual way, interleaved, on one thread of a CPU or on a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks import eigendecomposition, empirical, gaussian, ladder, moments, neighbours
from benchmarks.harness import Case, cost, peak
from gaussbias.data.images import downsample
from gaussbias.data.sources import EDMZip

KERNELS = {
    "moments": moments,
    "eigendecomposition": eigendecomposition,
    "gaussian": gaussian,
    "empirical": empirical,
    "neighbours": neighbours,
    "ladder": ladder,
}
HEADER = f"{'kernel':27}{'size':28}{'seconds':>16}{'ratio':>7}{'target':>8}{'MB':>13}{'error':>18}{'of peak':>9}"
NOTES = """\
Each pair: the usual way, ours. Seconds are processor time of one thread (device time on a GPU), the ratio is the
median over repetitions that alternate. MB is peak memory beyond the inputs. The error is against float64: relative
for the covariance, D_G and distances, the largest error of a pixel for D_M and for D_G at sigma 0.002 from the
eigendecomposition; for the affine part, whose truth is 0 there, its share of the whole distance. "Of peak" counts what
our way needs, against the best square product of this machine."""


def main() -> None:
    """Run the benchmarks, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="kernel", help=f"of {', '.join(KERNELS)}; all without any")
    parser.add_argument("--data", type=Path, metavar="ZIP", help="images in EDM's layout; else synthetic")
    parser.add_argument("--count", type=int, default=50_000, help="images at most")
    parser.add_argument("--resolution", type=int, default=32, help="pixels a side")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    if set(options.kernels) - KERNELS.keys():
        parser.error(f"expected kernels of {', '.join(KERNELS)}, got {' '.join(options.kernels)}")
    if options.count < 600:
        parser.error(f"--count: expected at least 600, got {options.count}")
    torch.set_num_threads(1)
    device = torch.device(options.device)
    images = _images(options.data, options.count, options.resolution).to(device)
    peaks = {dtype: peak(dtype, device) for dtype in (torch.float32, torch.float64)}
    shown = ", ".join(f"{value / 1e9:.0f} GFLOP/s in {str(dtype)[6:]}" for dtype, value in peaks.items())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one thread of this CPU"
    kind = options.data.name if options.data else "synthetic images"
    print(f"{len(images)} {kind}, {name}: {shown}\n\n{HEADER}", flush=True)
    for kernel in options.kernels or KERNELS:
        for case in KERNELS[kernel].cases(images):
            print(_line(case, options.repeat, device, peaks[case.dtype]), flush=True)
    print(f"\n{NOTES}")


def _line(case: Case, repeat: int, device: torch.device, limit: float) -> str:
    pairs = []
    for _ in range(repeat):
        usual, value = cost(case.usual, device)
        first = case.error(value)
        del value
        ours, value = cost(case.ours, device)
        second = case.error(value)
        del value
        pairs.append((usual, ours))
    ratio = median(usual.seconds / ours.seconds for usual, ours in pairs)
    seconds = [median(pair[i].seconds for pair in pairs) for i in (0, 1)]
    memory = [max(pair[i].megabytes for pair in pairs) for i in (0, 1)]
    return (
        f"{case.name:27}{case.size:28}{seconds[0]:8.2f}{seconds[1]:8.3f}{ratio:7.1f}{case.target:8g}"
        f"{memory[0]:7.0f}{memory[1]:6.0f}{first:10.0e}{second:8.0e}{case.flops / seconds[1] / limit:9.0%}"
    )


def _images(path: Path | None, count: int, resolution: int) -> Tensor:
    if path is not None:
        source = EDMZip(path)
        return downsample(source.read(torch.arange(min(count, source.count))), resolution)
    return torch.cat(list(_synthetic(count, resolution)))


def _synthetic(count: int, resolution: int) -> Iterator[Tensor]:
    """Colour images with the spectrum of photographs: amplitudes fall like 1/f, and channels are alike."""
    random = torch.Generator().manual_seed(0)
    f = torch.fft.fftfreq(resolution)[:, None].square() + torch.fft.rfftfreq(resolution).square()
    amplitude = 1 / f.sqrt().clamp(min=0.5 / resolution)
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        noise = torch.randn(size, 3, resolution, resolution, generator=random)
        noise = noise.mean(1, keepdim=True) + 0.2 * noise
        fields = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(resolution, resolution))
        yield (128 + 64 * fields / fields.std()).round().clamp(0, 255).to(torch.uint8)


if __name__ == "__main__":
    main()
