"""`python -m benchmarks`: each kernel beside the usual way, interleaved, on one thread of a CPU or on a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    backbones,
    eigendecomposition,
    empirical,
    gaussian,
    ladder,
    moments,
    neighbours,
    sampler,
    signs,
    startup,
    surrogate,
    theories,
    training,
)
from benchmarks.harness import HEADER, Result, as_dicts, limits, measure
from benchmarks.images import read_images

KERNELS = {
    "moments": moments,
    "eigendecomposition": eigendecomposition,
    "gaussian": gaussian,
    "empirical": empirical,
    "neighbours": neighbours,
    "ladder": ladder,
    "theories": theories,
    "sampler": sampler,
    "training": training,
    "backbones": backbones,
}
PARTS = (*KERNELS, "surrogate", "signs", "startup")
NOTES = """\
Each pair: the usual way, ours. Seconds are processor time of one thread (device time on a GPU), the ratio is the
median over repetitions that alternate. MB is peak memory beyond the inputs. The error is against float64: relative
for the covariance, D_G, distances and samples, the largest error of a pixel for D_M and for D_G at sigma 0.002 from the
eigendecomposition; for the affine part, whose truth is 0 there, its share of the whole distance; for training the
difference of the loss after the same images. "Of limit" is the least time that the machine's best square product of
that kind allows for our operations, over ours; for the sampler its evaluations of the network alone. DDPM++ is
compared with diffusers' U-Net of the same size."""


def main() -> None:
    """Run the benchmarks, print a line for each, and write them to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--data", type=Path, metavar="ZIP", help="images in EDM's layout; else synthetic")
    parser.add_argument("--count", type=int, default=50_000, help="images at most")
    parser.add_argument("--resolution", type=int, default=32, help="pixels a side")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), metavar="FILE", help="written at the end")
    options = parser.parse_args()
    if set(options.parts) - set(PARTS):
        parser.error(f"expected parts of {', '.join(PARTS)}, got {' '.join(options.parts)}")
    if options.count < 600:
        parser.error(f"--count: expected at least 600, got {options.count}")
    parts = options.parts or PARTS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    limit = limits(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one thread of this CPU"
    found: dict[str, Any] = {"torch": torch.__version__, "device": name, "limits": limit.as_dict()}
    print(f"{name}, torch {torch.__version__}: {limit}", flush=True)
    if kernels := [part for part in parts if part in KERNELS]:
        images = read_images(options.data, options.count, options.resolution).to(device)
        print(f"{len(images)} {options.data.name if options.data else 'synthetic images'}\n\n{HEADER}", flush=True)
        results: list[Result] = []
        for kernel in kernels:
            for case in KERNELS[kernel].cases(images):
                results.append(measure(case, options.repeat, device, limit))
                print(results[-1].line(), flush=True)
        print(f"\n{NOTES}", flush=True)
        found.update(images=options.data.name if options.data else "synthetic", cases=as_dicts(results))
    if "surrogate" in parts:
        found["surrogate_evaluations"] = surrogate.digits()
    if "signs" in parts:
        print("\nwhat early signs add to a measurement:", flush=True)
        found["signs"] = signs.costs(options.data, options.repeat)
    if "startup" in parts:
        torch.set_num_threads(threads)
        seconds = startup.seconds()
        print(f"\nstart of a run of digits on {threads} threads:\n{startup.table(seconds)}", flush=True)
        found["startup"] = seconds
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten to {options.json}")


if __name__ == "__main__":
    main()
