"""One page with everything in it, for a browser without network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from gaussbias import __version__
from gaussbias.analysis import Record, Study
from gaussbias.analysis.studies import MEMORIZED
from gaussbias.report.claims import told
from gaussbias.report.sections import Section

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem; color: #1a1a1a; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
img { max-width: 100%; height: auto; display: block; margin: 0.8rem 0; }
.scroll { overflow-x: auto; } .scroll img { min-width: 640px; }
table { border-collapse: collapse; font-size: 0.9rem; } td, th { padding: 0.25rem 0.7rem 0.25rem 0; text-align: left;
vertical-align: top; border-bottom: 1px solid #eee; }
.claim { margin: 0.8rem 0; padding-left: 0.8rem; border-left: 4px solid #999; }
.held { border-color: #009e73; } .not { border-color: #d55e00; } .undecided { border-color: #e69f00; }
.verdict { font-weight: 600; } .found { color: #444; } .caption { color: #444; } .study { color: #666; }
"""
COLUMNS = (
    ("GL score", "generalization/gl_score"),
    ("real images", "generalization/gl_score_heldout"),
    ("memorised", MEMORIZED),
    ("to D_G, held-out", "gaussian/rmse/heldout"),
    ("R2, held-out", "ladder/r2/heldout"),
    ("error, held-out", "denoising/mse/heldout"),
    ("samples: cosine with D_G's", "samples/gaussian_cosine"),
)
CLASSES = {"held": "held", "did not hold": "not", "undecided": "undecided"}


def page(
    title: str,
    studies: Sequence[Study],
    found: Sequence[Section],
    records: Sequence[Record],
    left_out: Mapping[Path, str],
    caveats: Sequence[str],
) -> str:
    """The report as HTML, with its pictures inside.

    Args:
        title: Of the page.
        studies: The runs, sorted.
        found: Figures and words.
        records: All runs.
        left_out: Why runs were left out.
        caveats: What to keep in mind.
    """
    parts = [f"<h1>{escape(title)}</h1>", _overview(records, left_out), _verdicts(found)]
    parts += ["<h2>What to keep in mind</h2><ul>", *(f"<li>{escape(text)}</li>" for text in caveats), "</ul>"]
    parts += [_section(number, section) for number, section in enumerate(found)]
    parts += ["<h2>Values at the end</h2>", *(_table(study) for study in studies)]
    head = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{meta}{head}</head>\n<body>\n{body}\n</body></html>\n'


def _overview(records: Sequence[Record], left_out: Mapping[Path, str]) -> str:
    finished = sum(record.finished for record in records)
    text = f"{len(records)} runs, {finished} of them finished, by gaussbias {__version__}. 0.364(9) is 0.364 with a "
    text += "standard error of 0.009, over runs of one kind (other seeds and images) and over draws."
    lines = [f"<p>{escape(text)}</p>"]
    if left_out:
        items = "".join(f"<li>{escape(str(run))}: {escape(why)}</li>" for run, why in left_out.items())
        lines.append(f"<p>Left out:</p><ul>{items}</ul>")
    return "\n".join(lines)


def _verdicts(found: Sequence[Section]) -> str:
    rows = [
        f'<tr><td class="verdict">{escape(claim.verdict)}</td><td>{escape(claim.text)}</td>'
        f'<td><a href="#s{number}">{escape(section.study)}</a></td></tr>'
        for number, section in enumerate(found)
        for claim in section.claims
    ]
    return f'<h2>Claims, and whether they held</h2><div class="scroll"><table>{"".join(rows)}</table></div>'


def _section(number: int, section: Section) -> str:
    parts = [f'<h2 id="s{number}">{escape(section.title)} <span class="study">{escape(section.study)}</span></h2>']
    for picture in section.pictures:
        if picture.suffix == ".png":
            data = base64.b64encode(picture.read_bytes()).decode()
            name = escape(f"{section.title}, {section.study}")
            parts.append(f'<div class="scroll"><img alt="{name}" src="data:image/png;base64,{data}"></div>')
    parts.append(f'<p class="caption">{escape(section.caption)}</p>')
    for claim in section.claims:
        parts.append(
            f'<div class="claim {CLASSES[claim.verdict]}"><span class="verdict">{escape(claim.verdict)}</span>: '
            f'{escape(claim.text)} <span class="study">({escape(claim.source)})</span><br>'
            f'<span class="found">{escape(claim.found)}</span></div>'
        )
    return "\n".join(parts)


def _table(study: Study) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("N", "channels", "runs", *(name for name, _ in COLUMNS)))
    rows = []
    for size in study.sizes:
        for width in study.ended_widths(size):
            runs = study.ended(size, width)
            values = (told(study.value(key, size, width)) for _, key in COLUMNS)
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in (f"{size:,}", str(width), str(len(runs)), *values))
            rows.append(f"<tr>{cells}</tr>")
    return f'<h3>{escape(study.title)}</h3><div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
