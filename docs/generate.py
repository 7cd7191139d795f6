"""Writes docs/metrics.md from the catalogue and the probes' own words: `python docs/generate.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

from gaussbias import callbacks, catalogue, probes
from gaussbias.catalogue import ENTRIES, IMAGES, POOLS, Entry, group_of

HEAD = """\
# What is logged

This page is made from `gaussbias.catalogue` and the docstrings of what measures, by `python docs/generate.py`; a test
keeps it current.

Every row has `kimg` (thousands of images seen, the x axis in W&B) and `epoch`. Values that belong to a pool of images
and to a noise level are logged as

- `<name>/<pool>`: the mean over the intermediate noise levels, 0.1 to 20, where denoisers differ;
- `<name>/<pool>/sigma_<s>`: one level, `<s>` to three digits with `p` for the point, as in
  `gaussian/rmse/heldout/sigma_0p47`.

Values that compare training with held-out images, and gains of components, have no pool: `gap/mse` is the mean over the
intermediate noise levels, `gap/mse/sigma_0p47` the value at one level.

The pools are `train`, the training images, and `heldout`, images of the same kind that are not trained on. On request
there are two more: `trajectory`, points on the network's own deterministic sampling path from fixed latents, and
`noise`, pure noise `sigma eps`. Values that have no meaning on a pool are left out there: the last two have no clean
images, and a trajectory has no known moments.

D is the network's denoiser. D_G is that of the Gaussian with the mean and the covariance of the training images. D_M is
the memoriser, whose outputs are weighted means of training images. x0 is a clean image, and d is the number of its
pixels times channels. Images have values from -1 to 1. [Concepts](concepts.md) explains these words.

All values but `train/*` belong to the averaged weights (EMA), if there is an average. They are computed in float32 with
float64 sums. With `probes.weights=[ema,raw]` the values of the raw weights are logged as well, as `raw/<name>/...`;
values of baselines have no such copy.

`<key>_se` is the standard error of a value. It is the jackknife's, over blocks of draws (or over samples). For means
over noise levels it is that of the whole mean, since levels share draws. With 16 blocks, a 95 % interval is the value
and 2.1 standard errors to either side (Student's t with one degree of freedom fewer than `probes/blocks`). The standard
error covers the draws, and not the choice of the images in a pool; for differences between pools (`gap/*`,
`freedom/*_gap`) it covers both. Changes along a curve are known better than that, since every measurement uses the same
draws: `gaussbias.history.compare` gives the difference of two measurements, or of two runs, with its own standard error
([how many draws](draws.md)).

In the tables, the column "D_G has" says what the Gaussian denoiser has. The column "ideal" says what real images have,
or, for values of denoisers, the memoriser.
"""
PROBES = (
    probes.LinearityProbe,
    probes.AgreementProbe,
    probes.LadderProbe,
    probes.ErrorsProbe,
    probes.GeneralizationProbe,
    probes.SampleAgreementProbe,
    probes.FrechetProbe,
    probes.NoveltyProbe,
    probes.GapProbe,
    probes.FreedomProbe,
    probes.GainProbe,
    probes.SampleSpectrumProbe,
    probes.PicturesProbe,
    probes.SurrogateProbe,
    probes.TeacherProbe,
    probes.TheoryProbe,
    probes.BetweenProbe,
    probes.LikenessProbe,
    probes.BestTheoryProbe,
    probes.LocalScaleProbe,
)
FURTHER = {
    probes.FrechetProbe: (catalogue.FID, catalogue.FID_GAUSSIAN, catalogue.FID_TRAIN),
    probes.PicturesProbe: (catalogue.SAMPLE_GRID,),
    probes.LadderProbe: (catalogue.LADDER_PARTS,),
    probes.TheoryProbe: (*catalogue.theory_entries("<name>"), catalogue.THEORY_MAP),
    probes.LikenessProbe: catalogue.likeness_entries("<name>"),
}
"""What a probe has entries of beside those of its class."""
CALLBACKS = (
    (callbacks.SurrogateLog, catalogue.FIT_ERROR),
    (callbacks.SpectrumCallback, catalogue.VARIANCE),
    (callbacks.GaussianGapStopping, None),
    (callbacks.MemorizationStopping, None),
    (callbacks.GapStopping, None),
    (callbacks.NoveltyStopping, None),
    (callbacks.EmergenceCallback, None),
    (callbacks.TrainingLog, catalogue.LOSS),
    (callbacks.ProbeCallback, catalogue.SECONDS),
)
"""Other callbacks that log, and an entry of the group that they log."""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for probe in PROBES:
        parts.append(_section(probe, (*probe.entries, *FURTHER.get(probe, ()))))
    for callback, entry in CALLBACKS:
        group = () if entry is None else (e for e in ENTRIES.values() if group_of(e) == group_of(entry))
        parts.append(_section(callback, getattr(callback, "entries", group)))
    return "\n".join(parts).replace("||", "\N{DOUBLE VERTICAL LINE}")  # in Markdown | ends a cell


def _section(kind: type, entries: Iterable[Entry]) -> str:
    about = (inspect.getdoc(kind) or "").partition("Args:")[0].partition("Raises:")[0].strip()
    return f"## {kind.__name__}\n\n{about}\n\n{_table(entries)}"


def _table(entries: Iterable[Entry]) -> str:
    head = "| key | meaning | range | pools | D_G has | ideal |\n|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(_cells(entry))} |\n" for entry in entries)


def _cells(entry: Entry) -> tuple[str, ...]:
    level = "/sigma_<s>" if entry.levels and not entry.pools and not entry.averaged else ""
    unit = f", {entry.unit}" if entry.unit else ""
    beside = (
        f"`{value}`" if isinstance(value, str) else "" if value is None else f"{value:g}"
        for value in (entry.gaussian, entry.ideal)
    )
    return f"`{entry.name}{level}`", entry.meaning, (entry.range + unit).removeprefix(", "), _pools(entry), *beside


def _pools(entry: Entry) -> str:
    known = {POOLS: "all", IMAGES: "of images", (): ""}
    return known.get(entry.pools, ", ".join(f"`{pool}`" for pool in entry.pools))


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page())
