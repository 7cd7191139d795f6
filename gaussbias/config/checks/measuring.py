"""What is measured."""

from __future__ import annotations

import re

from gaussbias.catalogue import IMAGES, POOLS
from gaussbias.config.sections import ProbesConfig
from gaussbias.config.theories import names_function, theory_name
from gaussbias.noise import SIGMA_MIN, check_sigmas
from gaussbias.numerics.blocks import BLOCKS, block_size, next_draws
from gaussbias.system.errors import UserError
from gaussbias.system.functions import check_function


def check_probes(probes: ProbesConfig) -> None:
    """Raise `UserError` for draws, pools and further probes that no run could have."""
    _check_draws(probes)
    if probes.sampler_steps < 2:
        raise UserError(f"probes.sampler_steps: expected at least 2, got {probes.sampler_steps}")
    if probes.cycles < 0:
        raise UserError(f"probes.cycles: expected 0 or more, got {probes.cycles}")
    if not probes.cycle_sigma > SIGMA_MIN:
        raise UserError(
            f"probes.cycle_sigma: expected above {SIGMA_MIN:g}, the last noise level of the sampler, got "
            f"{probes.cycle_sigma:g}"
        )
    if not probes.growth > 1:
        raise UserError(f"probes.growth: expected a factor above 1, got {probes.growth:g}")
    if probes.features is not None:
        check_function(probes.features, "probes.features")
    for spec in probes.also:
        check_function(spec, "probes.also")
    _check_theories(probes.theories)
    if probes.sigmas is not None:
        if not probes.sigmas:
            raise UserError("probes.sigmas: expected at least one noise level, got none")
        try:
            check_sigmas(probes.sigmas)
        except ValueError as error:
            raise UserError(f"probes.sigmas: {error}") from None
    if not probes.weights or len(set(probes.weights)) < len(probes.weights) or set(probes.weights) - {"ema", "raw"}:
        raise UserError(f"probes.weights: expected ema, raw or both, each once, got {probes.weights}")
    if not probes.pools or len(set(probes.pools)) < len(probes.pools) or set(probes.pools) - set(POOLS):
        raise UserError(f"probes.pools: expected some of {', '.join(POOLS)}, each once, got {probes.pools}")
    if not set(IMAGES) & set(probes.pools):
        raise UserError(f"probes.pools: expected train or heldout among them, got {probes.pools}")


def _check_theories(theories: list[str]) -> None:
    names = [theory_name(theory) for theory in theories]
    for theory, name in zip(theories, names, strict=True):
        if names_function(theory):
            check_function(theory.rpartition("=")[2], "probes.theories")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UserError(f"probes.theories: expected names of letters, digits, _ and -, got {name!r}")
    if len(set(names)) < len(names):
        raise UserError(
            f"probes.theories: expected different names, got {', '.join(names)}; name=package.module:function gives one"
        )


def _check_draws(probes: ProbesConfig) -> None:
    """Whether the draws make blocks enough for standard errors."""
    if probes.block is None:
        if block_size(probes.draws) is None:
            raise UserError(
                f"probes.draws: expected {BLOCKS} or more blocks of an even number of draws, got {probes.draws}; "
                f"the next number that has them is {next_draws(probes.draws)}"
            )
        return
    if probes.block < 2 or probes.block % 2:
        raise UserError(f"probes.block: expected an even number of at least 2, got {probes.block}")
    if probes.draws < BLOCKS * probes.block or probes.draws % probes.block:
        raise UserError(
            f"probes.draws: expected a multiple of probes.block={probes.block}, and at least {BLOCKS} blocks for "
            f"standard errors, got {probes.draws}; the next is "
            f"{max(BLOCKS, -(-probes.draws // probes.block)) * probes.block}"
        )
