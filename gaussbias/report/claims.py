"""What the figures of a study say in words, beside what was claimed, and whether it held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtri

from gaussbias import catalogue
from gaussbias.analysis import (
    Chosen,
    Crossing,
    PowerLaw,
    Record,
    Similarity,
    Study,
    Value,
    change,
    combine,
    tau_gen,
)
from gaussbias.analysis.choices import LOSS
from gaussbias.analysis.clock import Clock
from gaussbias.analysis.signs import first_copies
from gaussbias.analysis.studies import MEMORIZED, value_of
from gaussbias.analysis.values import difference
from gaussbias.config.sections import STOP_RULES
from gaussbias.figures.atlas import compared_runs
from gaussbias.figures.atlas.distances import TO_NETWORK, TO_TEACHER
from gaussbias.figures.atlas.halves import of_size
from gaussbias.figures.atlas.stops import kept
from gaussbias.history.rules import GAUSSIAN_GAP
from gaussbias.system.terminal import with_error

Verdict = Literal["held", "did not hold", "undecided"]
PAPER = "Li, Dai and Qu 2024"
PROPORTIONAL = (0.5, 2.0)
"""What the interval of an exponent must lie in to tell that it is 1."""
GL = catalogue.GL_SCORE.name


@dataclass(frozen=True)
class Claim:
    """A claim beside what was found.

    Attributes:
        source: Who made it.
        text: What was claimed.
        said: What the runs show, with numbers.
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


@dataclass(frozen=True)
class Trend:
    """A claim that a value goes one way over networks that differ in one thing.

    Attributes:
        text: What was claimed; `{few}` and `{many}` are the smallest and the largest of what they differ in.
        key: The logged name.
        what: What the value is, in words.
        sign: 1 if it should rise, -1 if it should fall.
    """

    text: str
    key: str
    what: str
    sign: int = 1


OVER_SIZES = (
    Trend(
        "With more training images denoisers are more linear (here from N = {few:,} to {many:,}).",
        catalogue.R2.on("heldout"),
        "R2 of the affine fit, mean over sigma in 0.1 to 20, held-out,",
    ),
    Trend(
        "The same by the paper's cosine (which it finds above 0.96 where networks generalise).",
        catalogue.COSINE.on("heldout"),
        "the cosine",
    ),
    Trend("The GL score rises with N: samples leave the training images.", catalogue.GL_SCORE.name, "the GL score"),
    Trend(
        "The share of memorised samples falls with N.", catalogue.MEMORIZED_FRACTION.name, "the memorised fraction", -1
    ),
    Trend(
        "The distance to the Gaussian denoiser falls with N.",
        GAUSSIAN_GAP,
        "the rms distance to D_G on held-out images",
        -1,
    ),
)
"""Figure 1."""
OVER_WIDTHS = (
    Trend("keep samples near the Gaussian's", catalogue.SAMPLE_COSINE.name, "their cosine with D_G's samples", -1),
    Trend("stay nearer to the Gaussian denoiser", GAUSSIAN_GAP, "the distance to D_G, held-out,"),
    Trend("memorise less", catalogue.MEMORIZED_FRACTION.name, "the memorised fraction"),
)
"""Figure 3: of smaller networks with few images, so that larger ones go the other way."""
OVER_TIME = (
    Trend(
        "the distance to the Gaussian denoiser falls first and rises later",
        GAUSSIAN_GAP,
        "the distance to D_G, held-out,",
    ),
    Trend(
        "stopping earlier keeps samples near the Gaussian's",
        catalogue.SAMPLE_COSINE.name,
        "the cosine with D_G's samples",
        -1,
    ),
)
"""Figure 3: from the best time to the end."""


def rise(values: Sequence[Value], sign: int) -> Value:
    """How much a value goes the way that it should, from the first to the last."""
    return difference(values[-1], values[0]) if sign > 0 else difference(values[0], values[-1])


def about_sizes(study: Study) -> list[Claim]:
    """Figure 1: linearity, GL score and memorised samples against N."""
    width = study.main_width()
    sizes = study.ended_sizes(width)
    if len(sizes) < 2:
        return []
    claims = []
    for trend in OVER_SIZES:
        values = [study.value(trend.key, size, width) for size in sizes]
        if not (math.isfinite(values[0].mean) and math.isfinite(values[-1].mean)):
            continue
        each = ", ".join(f"{told(value)} at N = {size:,}" for size, value in zip(sizes, values, strict=True))
        text = trend.text.format(few=sizes[0], many=sizes[-1])
        claims.append(Claim(PAPER, text, f"{trend.what} is {each}", judge(rise(values, trend.sign))))
    return claims


def about_calibration(study: Study) -> str:
    """The GL score beside that of real images, in words."""
    width = study.main_width()
    parts = []
    for size in study.ended_sizes(width):
        own, real = (study.value(entry.name, size, width) for entry in (catalogue.GL_SCORE, catalogue.GL_SCORE_HELDOUT))
        if math.isfinite(own.mean) and math.isfinite(real.mean):
            parts.append(f"{own.mean / real.mean:.2f} of theirs at N = {size:,}")
    text = "Real held-out images have a GL score of their own, which a perfect generator would reach and blur exceeds; "
    return text + "that of the samples is " + ", ".join(parts) + "." if parts else ""


def about_distances(study: Study) -> list[Claim]:
    """Figure 2: which of D_L, D_G and D_M a network is nearest to."""
    told_of, apart = [], Value(math.nan, math.nan, math.nan, 0)
    for run in compared_runs(study):
        fitted = run.name in study.surrogates
        alike = [study.surrogates[run.name]] if fitted else study.ended(run.images, run.channels)
        entries = TO_TEACHER if fitted else TO_NETWORK
        gaussian, empirical, linear = (
            value_of([record.rows[-1] for record in alike], entries[name].on("heldout"))
            for name in ("gaussian", "empirical", "linear")
        )
        said = f"N = {run.images:,}: {told(gaussian)} to D_G, {told(empirical)} to D_M"
        told_of.append(said + (f", {told(linear)} to D_L" if math.isfinite(linear.mean) else ""))
        apart = difference(empirical, gaussian)  # of the one with the most images
    said = f"{run.channels} channels, held-out, means over sigma in 0.1 to 20: {'; '.join(told_of)}"
    text = f"With N = {run.images:,} a network is nearer to the Gaussian denoiser than to the memoriser."
    return [Claim(PAPER, text, said, judge(apart))]


def about_capacity(study: Study) -> list[Claim]:
    """Figure 3: with few images, small networks stay near the Gaussian."""
    size = study.main_size()
    widths = study.ended_widths(size)
    if len(widths) < 2:
        return []
    claims = []
    for trend in OVER_WIDTHS:
        values = [study.value(trend.key, size, width) for width in widths]
        if not math.isfinite(values[0].mean):
            continue
        each = ", ".join(f"{told(value)} with {width} channels" for width, value in zip(widths, values, strict=True))
        verdict = judge(rise(values, trend.sign))
        text = f"With N = {size:,}, smaller networks {trend.text}."
        claims.append(Claim(PAPER, text, f"N = {size:,}: {trend.what} is {each}", verdict))
    return claims


def about_time(study: Study) -> list[Claim]:
    """Figure 3: with few images, shorter training stays near the Gaussian."""
    width = study.main_width()
    claims = []
    for trend in OVER_TIME:
        parts, changes = [], []
        for size in _memorised(study):
            values = {time: study.value(trend.key, size, width, time) for time in study.times(size, width)}
            known = {time: value for time, value in values.items() if math.isfinite(value.mean)}
            if len(known) < 2:
                continue
            ways = {time: trend.sign * value.mean for time, value in known.items()}
            best, last = min(ways, key=ways.__getitem__), max(known)
            later = change([(run, best, last) for run in study.ended(size, width)], trend.key)
            later = chosen_of(later, len(known))
            changes.append(later if trend.sign > 0 else opposite(later))
            parts.append(f"N = {size:,}: {told(known[best])} at {best:.3g} kimg, {told(known[last])} at {last:.3g}")
        if changes:
            text = f"With so few training images that samples are memorised, {trend.text}."
            said = f"{trend.what} at its best and at the end with {width} channels, {'; '.join(parts)}"
            claims.append(Claim(PAPER, text, said, together(changes)))
    return claims


def about_taus(law: PowerLaw | str, times: Mapping[int, Sequence[Crossing]]) -> list[Claim]:
    """How the time of memorisation grows with N."""
    source = "Bonnaire et al. 2025 (arXiv 2505.17638)"
    grows, even = "The time until a network memorises grows with N.", "It does in proportion to N."
    times_told = "; ".join(f"N = {n:,}: {', '.join(map(when, each))}" for n, each in times.items() if each)
    if isinstance(law, str):
        return [Claim(source, grows, f"{law}. tau_mem in kimg, {times_told}", "undecided")]
    censored = f", of which {law.censored} have a bound only" if law.censored else ""
    said = (
        f"tau_mem = {law.constant:.3g} kimg x N^{law.alpha:.2f}, 95 % interval of the exponent over seeds "
        f"{law.low:.2f} to {law.high:.2f} ({law.runs} runs{censored}); {law.least:.2f} to {law.most:.2f} if times are "
        f"anywhere between two measurements. In kimg, {times_told}"
    )
    low, high = min(law.low, law.least), max(law.high, law.most)
    known: Verdict = "undecided"
    if not low <= 1 <= high:
        known = "did not hold"
    elif PROPORTIONAL[0] < low and high < PROPORTIONAL[1]:
        known = "held"
    about = f"the exponent is {law.alpha:.2f}, within {low:.2f} to {high:.2f} by both; it holds if that contains 1 and "
    about += f"lies within {PROPORTIONAL[0]:g} to {PROPORTIONAL[1]:g}"
    half = (high - low) / 2
    return [
        Claim(source, grows, said, judge(Value((high + low) / 2, half / 2, half, law.runs))),
        Claim(source, even, about, known),
    ]


def about_clocks(clocks: Sequence[Clock]) -> list[Claim]:
    """Whether components of larger variance are learnt first."""
    laws = [(clock, clock.law) for clock in clocks if isinstance(clock.law, PowerLaw)]
    if not laws:
        return []
    parts = [
        f"N = {clock.images:,}: alpha {-law.alpha:.2f} ({-law.high:.2f} to {-law.low:.2f}), {len(clock.rising)} "
        f"components at sigma {clock.sigma:.3g}"
        for clock, law in laws
    ]
    values = [
        Value(-law.alpha, (law.high - law.low) / 4, max(law.high - law.alpha, law.alpha - law.low), law.runs)
        for _, law in laws
    ]
    text = "Components of larger variance are learnt first: their time falls as lam^-alpha, alpha above 0."
    said = (
        f"{'; '.join(parts)} (they find about 1 for linear networks, 0.35 to 0.5 for multilayer perceptrons, about 0 "
        "for U-Nets)"
    )
    return [Claim("Wang and Pehlevan 2025 (arXiv 2503.03206)", text, said, together(values))]


def about_tau_gen(study: Study) -> str:
    """When networks came near their smallest error, in words."""
    width = study.main_width()
    parts = []
    for size in study.ended_sizes(width):
        crossings = [crossing for run in study.select(size, width) if (crossing := tau_gen(run)) is not None]
        if crossings:
            parts.append(f"N = {size:,}: {', '.join(map(when, crossings))}")
    return "tau_gen, when the held-out error is within 5 % of its smallest, in kimg: " + "; ".join(parts) + "."


def about_halves(similarities: Sequence[Similarity]) -> list[Claim]:
    """Strong generalisation."""
    width = max(similarity.channels for similarity in similarities)
    alike = [similarity for similarity in similarities if similarity.channels == width]
    sizes = sorted({similarity.images for similarity in alike})
    values = {size: of_size(alike, size) for size in sizes}
    said = "; ".join(
        f"N = {size:,}: {told(values[size])} (their Gaussians' {of_size(alike, size, 'gaussian').mean:.3f}, other "
        f"latents {of_size(alike, size, 'chance').mean:.3f})"
        for size in sizes
    )
    text = "Networks of disjoint halves make more and more the same samples as N grows."
    verdict = judge(difference(values[sizes[-1]], values[sizes[0]])) if len(sizes) > 1 else "undecided"
    source = f"Kadkhodaie et al. 2024, {PAPER}"
    return [Claim(source, text, f"{width} channels: cosine of samples from the same latents, {said}", verdict)]


def about_stops(study: Study, chosen: Mapping[str, Sequence[Chosen]]) -> list[Claim]:
    """Whether early stopping would have helped, at each size where samples were memorised in the end."""
    width = study.main_width()
    claims = []
    for rule in STOP_RULES:
        parts, changes = [], []
        for size in _memorised(study):
            runs = study.ended(size, width)
            kept_at = {
                run.name: choice.row["kimg"] for run in runs for choice in chosen[run.name] if choice.rule == rule
            }
            pairs = [(run, kept_at[run.name], run.rows[-1]["kimg"]) for run in runs if run.name in kept_at]
            if not pairs:
                continue
            changes.append(change(pairs, LOSS))
            said = []
            for key, name in (("kimg", "kimg"), (GL, "GL"), (MEMORIZED, "memorised"), (LOSS, "held-out error")):
                early, late = (kept(study, chosen, which, key, size, width) for which in (rule, "end"))
                said.append(f"{name} {told(early)} instead of {told(late)}")
            said.append(f"which grows by {told(changes[-1])} from there to the end")
            least = [kept(study, chosen, "least held-out loss", key, size, width) for key in ("kimg", MEMORIZED, LOSS)]
            when, share, error = map(told, least)
            said += _before_copies(runs, chosen, rule)
            said.append(f"while the least held-out error, {error}, is at {when} kimg with {share} memorised")
            parts.append(f"N = {size:,}: {', '.join(said)}")
        if changes:
            text = "Where samples were memorised in the end, stopping by "
            text += f"{rule} would have kept a smaller error on held-out images."
            claims.append(Claim("the use of early stopping", text, "; ".join(parts), together(changes)))
    return claims


def _before_copies(runs: Sequence[Record], chosen: Mapping[str, Sequence[Chosen]], rule: str) -> list[str]:
    """How long before the first copies a rule rang, in kimg, in words; nothing if it did not, or there were none."""
    leads = []
    for run in runs:
        copies = first_copies(run)
        ended = [choice.ended for choice in chosen[run.name] if choice.rule == rule and choice.ended is not None]
        if copies is not None and copies.kind == "at" and ended:
            leads.append(copies.time - ended[0])
    if not leads:
        return []
    value = combine(leads, [math.nan] * len(leads))
    return [f"it rang {told(value)} kimg before the first copies, in {len(leads)} of {len(runs)} runs"]


def chosen_of(value: Value, count: int) -> Value:
    """With an interval for the largest of so many differences, by Bonferroni."""
    return Value(value.mean, value.se, value.half * float(ndtri(1 - 0.025 / count) / ndtri(0.975)), value.runs)


def opposite(value: Value) -> Value:
    """The same with another sign."""
    return Value(-value.mean, value.se, value.half, value.runs)


def together(changes: Sequence[Value]) -> Verdict:
    """What all of them say; undecided if they differ."""
    verdicts = {judge(value) for value in changes}
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


def _memorised(study: Study) -> list[int]:
    """Sizes at which samples are memorised in the end, at the main capacity."""
    width = study.main_width()
    return [size for size in study.ended_sizes(width) if study.value(MEMORIZED, size, width).low > 0]


def told(value: Value) -> str:
    """A mean with its standard error in units of the last digit."""
    if not math.isfinite(value.mean):
        return "unknown"
    return with_error(value.mean, value.se) if math.isfinite(value.se) else f"{value.mean:.3g}"


def when(crossing: Crossing) -> str:
    """A time in kimg, or its bound."""
    sign = {"at": "", "after": "> ", "before": "< "}[crossing.kind]
    return f"{sign}{crossing.time:.3g}"
