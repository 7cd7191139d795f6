"""One page with everything in it, for a browser without network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from gaussbias import __version__, catalogue
from gaussbias.analysis import Record, Study
from gaussbias.analysis.studies import MEMORIZED
from gaussbias.analysis.theories import not_of_theories
from gaussbias.catalogue import Entry, read_extra
from gaussbias.report.claims import told
from gaussbias.report.sections import Section
from gaussbias.system.html import bullets, document, picture, table

STYLE = """
.claim { margin: 0.8rem 0; padding-left: 0.8rem; border-left: 4px solid #999; }
.held { border-color: #009e73; } .not { border-color: #d55e00; } .undecided { border-color: #e69f00; }
.verdict { font-weight: 600; } .found { color: #444; } .study { color: #666; }
"""
COLUMNS = (
    ("GL score", catalogue.GL_SCORE.name),
    ("real images", catalogue.GL_SCORE_HELDOUT.name),
    ("memorised", MEMORIZED),
    ("to D_G, held-out", catalogue.GAUSSIAN_RMSE.on("heldout")),
    ("R2, held-out", catalogue.R2.on("heldout")),
    ("error, held-out", catalogue.MSE.on("heldout")),
    ("samples: cosine with D_G's", catalogue.SAMPLE_COSINE.name),
)
CLASSES = {"held": "held", "did not hold": "not", "undecided": "undecided"}


def page(
    title: str,
    studies: Sequence[Study],
    sections: Sequence[Section],
    records: Sequence[Record],
    left_out: Mapping[Path, str],
    caveats: Sequence[str],
) -> str:
    """The report as HTML, with its pictures inside.

    Args:
        title: Of the page.
        studies: The runs, sorted.
        sections: Figures and words.
        records: All runs.
        left_out: Why runs were left out.
        caveats: What to keep in mind.
    """
    parts = [_overview(records, left_out), _verdicts(sections), "<h2>What to keep in mind</h2>", bullets(caveats)]
    parts += [_section(number, section) for number, section in enumerate(sections)]
    parts += ["<h2>Values at the end</h2>", *(_table(study) for study in studies)]
    return document(title, parts, STYLE)


def _overview(records: Sequence[Record], left_out: Mapping[Path, str]) -> str:
    finished = sum(record.finished for record in records)
    text = f"{len(records)} runs, {finished} of them finished, by gaussbias {__version__}. 0.364(9) is 0.364 with a "
    text += "standard error of 0.009, over runs of one kind (other seeds and images) and over draws."
    lines = [f"<p>{escape(text)}</p>"]
    if left_out:
        lines += ["<p>Left out:</p>", bullets(f"{run}: {why}" for run, why in left_out.items())]
    return "\n".join(lines)


def _verdicts(shown: Sequence[Section]) -> str:
    rows = [
        f'<tr><td class="verdict">{escape(claim.verdict)}</td><td>{escape(claim.text)}</td>'
        f'<td><a href="#s{number}">{escape(section.study)}</a></td></tr>'
        for number, section in enumerate(shown)
        for claim in section.claims
    ]
    return f'<h2>Claims, and whether they held</h2><div class="scroll"><table>{"".join(rows)}</table></div>'


def _section(number: int, section: Section) -> str:
    parts = [f'<h2 id="s{number}">{escape(section.title)} <span class="study">{escape(section.study)}</span></h2>']
    for file in section.pictures:
        if file.suffix == ".png":
            parts.append(picture(file, f"{section.title}, {section.study}"))
    parts.append(f'<p class="caption">{escape(section.caption)}</p>')
    if section.table is not None:
        parts.append(table(*section.table))
    for claim in section.claims:
        parts.append(
            f'<div class="claim {CLASSES[claim.verdict]}"><span class="verdict">{escape(claim.verdict)}</span>: '
            f'{escape(claim.text)} <span class="study">({escape(claim.source)})</span><br>'
            f'<span class="found">{escape(claim.found)}</span></div>'
        )
    return "\n".join(parts)


def _table(study: Study) -> str:
    rows = []
    folders = {run.folder for run in study.runs if run.folder is not None}
    columns = [
        *COLUMNS,
        *((_title(entry), entry.on(entry.main_pool)) for entry in not_of_theories(read_extra(*sorted(folders)))),
    ]
    for size in study.sizes:
        for width in study.ended_widths(size):
            runs = study.ended(size, width)
            values = (told(study.value(key, size, width)) for _, key in columns)
            rows.append((f"{size:,}", str(width), str(len(runs)), *values))
    head = ("N", "channels", "runs", *(name for name, _ in columns))
    return f"<h3>{escape(study.title)}</h3>{table(head, rows)}"


def _title(entry: Entry) -> str:
    """The head of the column of an entry that is not in the catalogue."""
    return entry.title + (", held-out" if "heldout" in entry.pools else "")
