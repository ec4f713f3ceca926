"""A report as a list of blocks, and its two forms: Markdown and one self-contained HTML file."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text of a table cell with its meaning; tone shows in HTML, `strong` in Markdown too."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    text: str
    kind: Literal["plain", "lead", "note", "warning"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    left: frozenset[int] = frozenset({0})
    """Columns aligned to the left; the others hold numbers."""
    is_dense: bool = False
    """Many columns: smaller type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure by its file name without ending."""

    key: str
    caption: str


Block = Heading | Paragraph | Bullets | Table | Code | Picture

PLOTS_FOLDER = "plots"


def to_markdown(blocks: Sequence[Block]) -> str:
    """GitHub-flavoured Markdown; pictures are files under `plots/`."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_escape(block.text)}"
    if isinstance(block, Paragraph):
        text = _escape(block.text)
        return {"lead": f"**{text}**", "warning": f"> **Note:** {text}"}.get(block.kind, text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_escape(item)}" for item in block.items)
    if isinstance(block, Code):
        return f"```\n{block.text}\n```"
    if isinstance(block, Picture):
        return f"![{_escape(block.caption)}]({PLOTS_FOLDER}/{block.key}.png)\n\n*{_escape(block.caption)}*"
    lines = [[_escape(text) for text in block.header]]
    lines.append([":--" if index in block.left else "--:" for index in range(len(block.header))])
    for row in block.rows:
        cells = [cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row]
        lines.append([f"**{_escape(c.text)}**" if c.tone == "strong" and c.text else _escape(c.text) for c in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    """One line, with what Markdown would read as markup made harmless."""
    flat = " ".join(text.split())
    for mark in "\\`*_|<[]":
        flat = flat.replace(mark, "\\" + mark)
    return flat


def to_html(blocks: Sequence[Block], pictures: Mapping[str, bytes], *, title: str) -> str:
    """One file: inline style, pictures as data URIs, nothing fetched from anywhere."""
    body = "\n".join(_html(block, pictures) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _html(block: Block, pictures: Mapping[str, bytes]) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f'<p class="{block.kind}">{html.escape(block.text)}</p>'
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Code):
        return f"<pre><code>{html.escape(block.text)}</code></pre>"
    if isinstance(block, Picture):
        data = base64.b64encode(pictures[block.key]).decode()
        caption = html.escape(block.caption)
        return (
            f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(block.caption, quote=True)}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    sides = ["left" if index in block.left else "right" for index in range(len(block.header))]
    # Long parameter names may break after an underscore, so that their columns stay as narrow as their numbers.
    head = "".join(
        f'<th class="{s}">{html.escape(t).replace("_", "_<wbr>")}</th>'
        for s, t in zip(sides, block.header, strict=True)
    )
    rows = []
    for row in block.rows:
        cells = [cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row]
        rows.append(
            "<tr>"
            + "".join(f'<td class="{s} {c.tone}">{html.escape(c.text)}</td>' for s, c in zip(sides, cells, strict=True))
            + "</tr>"
        )
    kind = ' class="dense"' if block.is_dense else ""
    return f'<div class="table"><table{kind}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


_STYLE = """
:root{--ink:#1f2328;--dim:#656d76;--line:#d8dde3;--soft:#f6f8fa;--accent:#0072b2}
*{box-sizing:border-box}
body{margin:0;background:#fff;color:var(--ink);font:16px/1.5
system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",
Arial,sans-serif}
main{max-width:1160px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:28px;line-height:1.2;margin:0 0 12px}
h2{font-size:21px;margin:44px 0 10px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:16px;margin:26px 0 8px}
p{margin:8px 0;max-width:860px;overflow-wrap:anywhere}
.lead{font-size:20px;font-weight:600;line-height:1.4;margin:8px 0 10px;padding:14px 18px;background:#eef6fb;
border-left:5px solid var(--accent);border-radius:4px;max-width:none}
.note{color:var(--dim);font-size:14px}
.warning{padding:10px 14px;background:#fff6e5;border-left:5px solid #e69f00;border-radius:4px}
ul{margin:8px 0;padding-left:22px}
li{margin:5px 0;overflow-wrap:anywhere}
.table{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:15px}
table.dense{font-size:13px}
th,td{padding:5px 13px;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
table.dense th,table.dense td{padding:4px 9px}
th{background:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
tbody tr:hover td{background:var(--soft)}
.left{text-align:left}.right{text-align:right}
td.left{white-space:normal}
table.dense td.left{white-space:nowrap}
.strong{font-weight:650}.good{color:#0b6e4f;font-weight:600}.bad{color:#b3261e;font-weight:600}.dim{color:var(--dim)}
figure{margin:16px 0 26px}
img{display:block;width:100%;height:auto}
figcaption{color:var(--dim);font-size:14px;margin-top:6px;max-width:860px}
pre{background:var(--soft);border:1px solid var(--line);border-radius:4px;padding:12px 14px;
white-space:pre-wrap;overflow-wrap:anywhere;
font:13.5px/1.5 ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
@media(max-width:700px){main{padding:18px 14px 40px}h1{font-size:24px}.lead{font-size:17px}th,td{padding:4px 8px}}
@media print{main{max-width:none}h2{break-after:avoid}figure,tr{break-inside:avoid}}
""".strip()
