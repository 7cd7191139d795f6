"""What the figures of a study say in words, beside what was claimed, and whether it held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gaussbias.analysis import Chosen, Crossing, PowerLaw, Similarity, Study, Value, tau_gen
from gaussbias.analysis.studies import MEMORIZED, value_of
from gaussbias.analysis.values import difference
from gaussbias.figures.atlas import compared_runs
from gaussbias.figures.atlas.stops import kept
from gaussbias.history.rules import GAP
from gaussbias.terminal import with_error

Verdict = Literal["held", "did not hold", "undecided"]
PAPER = "Li, Dai and Qu 2024"


@dataclass(frozen=True)
class Claim:
    """A claim beside what was found.

    Attributes:
        source: Who made it.
        text: What was claimed.
        found: What the runs show, with numbers.
        verdict: Whether it held, by the 95 % interval of a difference.
    """

    source: str
    text: str
    found: str
    verdict: Verdict


def judge(value: Value) -> Verdict:
    """Whether a difference that should be above 0 is."""
    if not (math.isfinite(value.mean) and math.isfinite(value.half)):
        return "undecided"
    return "held" if value.low > 0 else "did not hold" if value.high < 0 else "undecided"


def about_sizes(study: Study) -> list[Claim]:
    """Figure 1: linearity, GL score and memorised samples against N."""
    width = study.main_width()
    sizes = study.sizes_at(width)
    if len(sizes) < 2:
        return []
    few, many = sizes[0], sizes[-1]

    def trend(text: str, key: str, name: str, sign: int = 1) -> Claim | None:
        values = [study.value(key, size, width) for size in sizes]
        if not (math.isfinite(values[0].mean) and math.isfinite(values[-1].mean)):
            return None
        found = f"{name} is " + ", ".join(
            f"{told(value)} at N = {size:,}" for size, value in zip(sizes, values, strict=True)
        )
        change = difference(values[-1], values[0]) if sign > 0 else difference(values[0], values[-1])
        return Claim(PAPER, text, found, judge(change))

    claims = [
        trend(
            f"With more training images denoisers are more linear (here from N = {few:,} to {many:,}).",
            "ladder/r2/heldout",
            "R2 of the affine fit, mean over sigma in 0.1 to 20, held-out,",
        ),
        trend(
            "The same by the paper's cosine, which is above 0.96 for a network that generalises.",
            "linearity/cosine/heldout",
            "the cosine",
        ),
        trend(
            "The GL score rises with N: samples leave the training images.", "generalization/gl_score", "the GL score"
        ),
        trend(
            "The share of memorised samples falls with N.",
            "generalization/memorized_fraction",
            "the memorised fraction",
            -1,
        ),
        trend(
            "The distance to the Gaussian denoiser falls with N.",
            "gaussian/rmse/heldout",
            "the rms distance to D_G on held-out images",
            -1,
        ),
    ]
    return [claim for claim in claims if claim is not None]


def about_calibration(study: Study) -> str:
    """The GL score beside that of real images, in words."""
    width = study.main_width()
    parts = []
    for size in study.sizes_at(width):
        own, real = (study.value(f"generalization/gl_score{end}", size, width) for end in ("", "_heldout"))
        if math.isfinite(own.mean) and math.isfinite(real.mean):
            parts.append(f"{own.mean / real.mean:.2f} of theirs at N = {size:,}")
    text = "Real held-out images have a GL score of their own, which a perfect generator would reach and blur exceeds; "
    return text + "that of the samples is " + ", ".join(parts) + "." if parts else ""


def about_distances(study: Study) -> list[Claim]:
    """Figure 2: which of D_L, D_G and D_M a network is nearest to."""
    run = compared_runs(study)[-1]
    row = study.surrogates[run.name].rows[-1] if run.name in study.surrogates else run.rows[-1]
    prefix = "teacher/{}_rmse/heldout" if run.name in study.surrogates else "{}/rmse/heldout"
    gaussian, empirical = (value_of([row], prefix.format(name)) for name in ("gaussian", "empirical"))
    linear = value_of([row], prefix.format("linear"))
    found = f"N = {run.images:,}, {run.channels} channels, means over sigma in 0.1 to 20: "
    found += f"{told(gaussian)} to D_G, {told(empirical)} to D_M"
    found += f", {told(linear)} to D_L" if math.isfinite(linear.mean) else ""
    text = "A network with many training images is nearer to the Gaussian denoiser than to the memoriser."
    return [Claim(PAPER, text, found, judge(difference(empirical, gaussian)))]


def about_capacity(study: Study) -> list[Claim]:
    """Figure 3: with few images, small networks stay near the Gaussian."""
    size = study.main_size()
    widths = study.widths_at(size)
    if len(widths) < 2:
        return []
    claims = []
    for text, key, name, sign in (
        ("keep samples near the Gaussian's", "samples/gaussian_cosine", "their cosine with D_G's samples", 1),
        ("stay nearer to the Gaussian denoiser", "gaussian/rmse/heldout", "the distance to D_G, held-out,", -1),
        ("memorise less", "generalization/memorized_fraction", "the memorised fraction", -1),
    ):
        values = [study.value(key, size, width) for width in widths]
        if not math.isfinite(values[0].mean):
            continue
        found = f"N = {size:,}: {name} is "
        found += ", ".join(f"{told(v)} with {w} channels" for w, v in zip(widths, values, strict=True))
        change = difference(values[0], values[-1]) if sign > 0 else difference(values[-1], values[0])
        claims.append(Claim(PAPER, f"With few training images, smaller networks {text}.", found, judge(change)))
    return claims


def about_time(study: Study) -> list[Claim]:
    """Figure 3: with few images, shorter training stays near the Gaussian."""
    width = study.main_width()
    few = [size for size in study.sizes_at(width) if study.value(MEMORIZED, size, width).low > 0]
    claims = []
    for text, key, what, sign in (
        (
            "the distance to the Gaussian denoiser falls first and rises later",
            GAP,
            "the distance to D_G, held-out,",
            -1,
        ),
        (
            "stopping earlier keeps samples near the Gaussian's",
            "samples/gaussian_cosine",
            "the cosine with D_G's samples",
            1,
        ),
    ):
        parts, changes = [], []
        for size in few or study.sizes_at(width)[:1]:
            values = {time: study.value(key, size, width, time) for time in study.times(size, width)}
            known = {time: value for time, value in values.items() if math.isfinite(value.mean)}
            if len(known) < 2:
                continue
            best, last = max(known, key=lambda time, of=known: sign * of[time].mean), max(known)  # type: ignore[misc]
            early, late = known[best], known[last]
            changes.append(difference(early, late) if sign > 0 else difference(late, early))
            parts.append(f"N = {size:,}: {told(early)} at {best:.3g} kimg, {told(late)} at {last:.3g}")
        if changes:
            found = f"{what} at its best and at the end with {width} channels, {'; '.join(parts)}"
            verdicts = {judge(change) for change in changes}
            verdict = verdicts.pop() if len(verdicts) == 1 else "undecided"
            claims.append(
                Claim(PAPER, f"With so few training images that samples are memorised, {text}.", found, verdict)
            )
    return claims


def about_taus(law: PowerLaw | str, times: Mapping[int, Sequence[Crossing]]) -> list[Claim]:
    """How the time of memorisation grows with N."""
    source = "Bonnaire et al. 2025 (arXiv 2505.17638)"
    text = "The time until a network memorises grows with N, in proportion to it."
    found = "; ".join(f"N = {n:,}: {', '.join(map(_time, each))}" for n, each in times.items() if each)
    if isinstance(law, str):
        return [Claim(source, text, f"{law}. tau_mem in kimg, {found}" if found else law, "undecided")]
    grows: Verdict = "held" if law.low > 0 else "did not hold" if law.high < 0 else "undecided"
    if grows == "held" and not law.low <= 1 <= law.high:
        grows = "did not hold"
        note = "it grows, but not in proportion"
    else:
        note = "an exponent of 1 is in proportion"
    censored = f", of which {law.censored} have a bound only" if law.censored else ""
    said = f"tau_mem = {law.constant:.3g} kimg x N^{law.alpha:.2f}, 95 % interval of the exponent {law.low:.2f} to "
    said += f"{law.high:.2f} ({law.runs} runs{censored}); {note}. In kimg, {found}"
    return [Claim(source, text, said, grows)]


def about_tau_gen(study: Study) -> str:
    """When networks came near their smallest error, in words."""
    width = study.main_width()
    parts = []
    for size in study.sizes_at(width):
        found = [one for run in study.select(size, width) if (one := tau_gen(run)) is not None]
        if found:
            parts.append(f"N = {size:,}: {', '.join(map(_time, found))}")
    return "tau_gen, when the held-out error is within 5 % of its smallest, in kimg: " + "; ".join(parts) + "."


def about_halves(found: Sequence[Similarity]) -> list[Claim]:
    """Strong generalisation."""
    width = max(one.channels for one in found)
    alike = [one for one in found if one.channels == width]
    said = "; ".join(
        f"N = {one.images:,}: {one.cosine:.3f} +- {one.half:.3f} (their Gaussians' {one.gaussian:.3f}, "
        f"other latents {one.chance:.3f})"
        for one in alike
    )
    first, last = alike[0], alike[-1]
    text = "Networks of disjoint halves make more and more the same samples as N grows."
    if len(alike) < 2:
        verdict: Verdict = "undecided"
    else:
        half = math.hypot(first.half, last.half)
        verdict = judge(Value(last.cosine - first.cosine, half / 2, half, 1))
    return [
        Claim(f"Kadkhodaie et al. 2024, {PAPER}", text, f"cosine of samples from the same latents, {said}", verdict)
    ]


def about_stops(study: Study, chosen: Mapping[str, Sequence[Chosen]]) -> list[Claim]:
    """Whether early stopping would have helped."""
    width = study.main_width()
    size = study.sizes_at(width)[0]
    claims = []
    for rule in ("gaussian_gap", "memorization"):
        parts = []
        values = {}
        for key, name in (
            ("kimg", "kimg"),
            ("generalization/gl_score", "GL"),
            ("generalization/memorized_fraction", "memorised"),
            ("denoising/mse/heldout", "held-out error"),
        ):
            early, late = (kept(study, chosen, which, key, size, width) for which in (rule, "end"))
            if math.isfinite(early.mean) and math.isfinite(late.mean):
                values[key] = difference(late, early)
                parts.append(f"{name} {told(early)} instead of {told(late)}")
        if "denoising/mse/heldout" not in values:
            continue
        text = f"With few training images, stopping by {rule} would have kept a network with a smaller held-out error."
        found = f"N = {size:,}, {width} channels: " + ", ".join(parts)
        claims.append(Claim("the use of early stopping", text, found, judge(values["denoising/mse/heldout"])))
    return claims


def told(value: Value) -> str:
    """A mean with its standard error in units of the last digit."""
    if not math.isfinite(value.mean):
        return "unknown"
    return with_error(value.mean, value.se) if math.isfinite(value.se) else f"{value.mean:.3g}"


def _time(one: Crossing) -> str:
    sign = {"at": "", "after": "> ", "before": "< "}[one.kind]
    return f"{sign}{one.time:.3g}"
