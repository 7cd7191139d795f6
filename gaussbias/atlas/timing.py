"""How long an atlas will take, from a few steps of each of its networks on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from gaussbias import config as configuration
from gaussbias.atlas.plan import Cell, Plan
from gaussbias.config import Config
from gaussbias.system.errors import UserError

START_SECONDS = 12.0
"""Seconds of a run before its first step and after its last, on two cores."""
MEASUREMENT_SECONDS = 1.0
"""Seconds of a measurement, beside its evaluations of the network: baselines, sums and pictures."""
STEPS = 4


@dataclass(frozen=True)
class Speed:
    """How fast a network is: images a second in training, evaluations a second in measurements; and d of its images."""

    images: float
    evaluations: float
    d: int


def estimate(plan: Plan, cells: Sequence[Cell], environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds that each of some cells of a plan will take on its own, by name; without those that cannot be timed.

    Each different network takes a few steps on noise of the right shape, in a process with this environment; images are
    read once for each data set.

    Raises:
        UserError: If none can be timed, as when images cannot be read.
    """
    teachers = {cell.name: cell for cell in plan.cells}
    keys = {cell.name: _key(teachers[cell.needs or cell.name].config) for cell in cells}
    if not keys:
        return {}
    speeds = _measure(sorted(set(keys.values())), environment)
    return {cell.name: seconds(cell.config, speeds[keys[cell.name]]) for cell in cells if keys[cell.name] in speeds}


def seconds(config: Config, speed: Speed) -> float:
    """Seconds of a run whose network has this speed."""
    from gaussbias.callbacks.schedule import measurement_steps
    from gaussbias.modules import DRAWS_PER_DIMENSION

    probes, train = config.probes, config.train
    once = evaluations_of_a_measurement(config)
    if config.module.kind != "edm":
        draws = config.linear.draws or DRAWS_PER_DIMENSION[config.linear.method] * speed.d
        levels = 10 if probes.sigmas is None else len(probes.sigmas)
        fits = draws * levels if config.module.kind == "linear" else 0
        return START_SECONDS + (fits + once) / speed.evaluations + MEASUREMENT_SECONDS
    times = len(measurement_steps(train.kimg, probes.first_kimg, probes.every_kimg, train.batch_size, probes.growth))
    measuring = times * (once / speed.evaluations + MEASUREMENT_SECONDS)
    return START_SECONDS + 1000 * train.kimg / speed.images + measuring


def evaluations_of_a_measurement(config: Config) -> int:
    """Evaluations of the network in one measurement: draws, as many mixtures of them twice over, and samples."""
    probes = config.probes
    levels = 10 if probes.sigmas is None else len(probes.sigmas)
    evaluations = 2 if probes.sampler == "heun" else 1
    samples = probes.samples * (evaluations * (probes.sampler_steps - 1) + 1)
    draws = 2 * probes.draws * levels * len(probes.pools)
    return len(probes.weights) * (draws + samples)


def _key(config: Config) -> str:
    """What two networks of equal speed have in common, as text."""
    sections = configuration.to_container(config)
    data = {key: sections["data"][key] for key in ("source", "path", "resolution")}
    train = {key: sections["train"][key] for key in ("batch_size", "microbatch", "precision", "accelerator")}
    return json.dumps([data, sections["model"], train], sort_keys=True)


def _measure(keys: list[str], environment: Mapping[str, str]) -> dict[str, Speed]:
    done = subprocess.run(
        [sys.executable, "-m", "gaussbias.atlas.timing"],
        input=json.dumps(keys),
        capture_output=True,
        text=True,
        env=dict(environment),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(said)
    return {key: Speed(*speed) for key, speed in json.loads(lines[-1]).items()}


def _speed(key: str, shape: tuple[int, int, int]) -> Speed:
    import torch

    from gaussbias import backbones
    from gaussbias.denoisers import EDMDenoiser
    from gaussbias.training.devices import find_accelerator, find_precision

    _, model, train = json.loads(key)
    keys = {f"model.{name}": value for name, value in model.items()}
    keys |= {f"train.{name}": train[name] for name in ("precision", "accelerator")}
    config = configuration.from_keys(keys, "", "timing")
    accelerator = find_accelerator(config)
    on_gpu = accelerator == "gpu"
    device = torch.device("cuda" if on_gpu else "cpu")
    denoiser = EDMDenoiser(backbones.build(config.model, shape)).to(device)
    images = min(train["batch_size"], train["microbatch"] or train["batch_size"])
    x = torch.randn(images, *shape, device=device)
    mixed = on_gpu and find_precision(config, accelerator) == "bf16-mixed"
    sigma = torch.full((len(x),), 0.5, device=device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = denoiser(x, sigma).square().mean()
        loss.backward()

    def evaluate() -> None:
        with torch.no_grad():
            denoiser(x, sigma)

    def rate(run: Any) -> float:
        run()
        if on_gpu:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(STEPS):
            run()
        if on_gpu:
            torch.cuda.synchronize()
        return STEPS * len(x) / (time.perf_counter() - begun)

    return Speed(rate(step), rate(evaluate), x[0].numel())


def _main() -> int:
    """Read keys from standard input, and print the speeds of their networks."""
    from gaussbias.config import DataConfig
    from gaussbias.data import shape_of

    keys = json.loads(sys.stdin.read())
    shapes: dict[str, tuple[int, int, int]] = {}
    speeds = {}
    failure = ""
    for key in keys:
        data = json.loads(key)[0]
        name = json.dumps(data)
        try:
            if name not in shapes:
                shapes[name] = shape_of(DataConfig(**data))
            speeds[key] = astuple(_speed(key, shapes[name]))
        except (UserError, RuntimeError, ValueError) as error:  # its own run says more
            failure = failure or " ".join(str(error).split())
    if not speeds:
        print(failure, file=sys.stderr)
        return UserError.code
    print(json.dumps(speeds))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
