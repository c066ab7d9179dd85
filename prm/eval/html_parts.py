"""The parts of a self-contained HTML page: the frame with its style, tables and cells.

Nothing is loaded from anywhere: no script, no font, no style sheet, and the page's own policy
forbids it. What comes from data goes through :func:`text` or :func:`name`; every other argument is
HTML already.
"""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple

from prm.errors import printable
from prm.eval.budget_words import bounds, number
from prm.eval.estimate import Estimate

STYLE = """
:root {
  color-scheme: light dark; --ink: #1c1f23; --soft: #5a626c; --ground: #ffffff; --line: #d9dde2;
  --head: #f4f6f8; --up: 33 102 172; --down: 199 90 0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e8eaed; --soft: #a3abb5; --ground: #15181c; --line: #363c44; --head: #1e2329;
    --up: 74 144 217; --down: 217 119 33;
  }
  figure img { filter: invert(1) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 80rem;
  background: var(--ground); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 0.6rem; }
p, li, dd { max-width: 48rem; overflow-wrap: anywhere; }
ul { padding-left: 1.3rem; }
li { margin: 0.35rem 0; }
dt { font-weight: 600; margin-top: 0.6rem; }
dd { margin: 0; }
figure { margin: 1rem 0; }
figure img { display: block; width: 100%; min-width: 36rem; max-width: 54rem; height: auto; }
figure .scroll { margin: 0; }
figcaption { margin: 0.3rem 0 1.6rem; }
.scroll { overflow-x: auto; margin: 0.8rem 0 1.4rem; }
.scroll:focus-visible { outline: 2px solid rgb(var(--up)); outline-offset: 2px; }
table {
  border-collapse: separate; border-spacing: 0; font-size: 0.94rem;
  font-variant-numeric: tabular-nums;
}
caption, figcaption { color: var(--soft); font-size: 0.88rem; text-align: left; }
caption {
  padding-bottom: 0.5rem;
  position: sticky; left: 0; max-width: min(48rem, calc(100vw - 2rem));
}
th, td {
  padding: 0.4rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top;
}
td { white-space: nowrap; }
th { font-weight: 600; }
thead th { background: var(--head); vertical-align: bottom; min-width: 4rem; max-width: 14rem; }
th[scope="row"], thead th:first-child {
  text-align: left; position: sticky; left: 0; z-index: 1; background: var(--ground);
  min-width: min(14rem, 28vw); max-width: min(22rem, 40vw); overflow-wrap: anywhere;
}
thead th:first-child { background: var(--head); }
.grouped th[scope="row"], .grouped thead th:first-child { min-width: 4rem; }
th[scope="rowgroup"] { text-align: left; padding-top: 1.1rem; overflow-wrap: anywhere; }
th[scope="rowgroup"] span {
  position: sticky; left: 0.7rem; display: inline-block;
  max-width: min(46rem, calc(100vw - 4rem));
}
small { display: block; color: var(--soft); font-size: 0.78rem; font-weight: 400; }
.heat small { color: inherit; opacity: 0.85; }
.up { background: rgb(var(--up) / var(--shade)); }
.down { background: rgb(var(--down) / var(--shade)); }
.survives { outline: 2px solid var(--ink); outline-offset: -3px; font-weight: 700; }
@media (max-width: 40rem) {
  th, td { padding: 0.35rem 0.45rem; }
  th[scope="row"] { font-size: 0.85rem; }
}
@media print {
  html { font-size: 7.5pt; }
  body { max-width: none; padding: 0; }
  .scroll { overflow: visible; }
  figure img { min-width: 0; max-width: 100%; }
  th, td { padding: 0.2rem 0.35rem; }
  th, td, caption { position: static !important; }
  td { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  tr, figure, li { break-inside: avoid; }
  h2, caption { break-after: avoid; }
}
"""

FRAME = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
$lead
</header>
<main>
$main
</main>
</body>
</html>
""")


class Group(NamedTuple):
    """Rows of a table under a heading of their own, or under none."""

    heading: str | None
    rows: Sequence[tuple[str, Sequence[str]]]
    """Row heading and cells; a cell is a whole ``<td>``."""


def document(title: str, lead: str, sections: Iterable[str]) -> str:
    """A whole page."""
    return FRAME.substitute(title=title, style=STYLE, lead=lead, main="\n".join(sections))


def text(value: str) -> str:
    """Text from data, inert: control characters and HTML escaped.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    return html.escape(printable(value))


def name(value: str) -> str:
    """A name from data: as :func:`text`, breaking after separators, apart from the direction of
    writing around it.

    >>> name("a_b")
    '<bdi>a_<wbr>b</bdi>'
    """
    parts = re.split(r"(?<=[^_/.-][_/.-])(?=[^_/.-])", printable(value))
    return f"<bdi>{'<wbr>'.join(map(html.escape, parts))}</bdi>"


def section(heading: str, *parts: str) -> str:
    """A section; parts that are empty leave nothing."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{heading}</h2>\n{body}\n</section>"


def items(entries: Iterable[str]) -> str:
    """A list; empty without entries."""
    lines = "\n".join(f"<li>{entry}</li>" for entry in entries)
    return f"<ul>\n{lines}\n</ul>" if lines else ""


def table(caption: str, corner: str, columns: Sequence[str], groups: Iterable[Group]) -> str:
    """A table in a box of its own that scrolls where the page is narrow."""
    groups = list(groups)
    kind = ' class="grouped"' if any(group.heading is not None for group in groups) else ""
    lines = ["<thead>", "<tr>", f'<th scope="col">{corner}</th>']
    lines += [f'<th scope="col">{column}</th>' for column in columns]
    lines += ["</tr>", "</thead>"]
    for group in groups:
        lines.append("<tbody>")
        if group.heading is not None:
            across = f'<th scope="rowgroup" colspan="{len(columns) + 1}">'
            lines.append(f"<tr>{across}<span>{group.heading}</span></th></tr>")
        for heading, cells in group.rows:
            lines.append(f'<tr><th scope="row">{heading}</th>{"".join(cells)}</tr>')
        lines.append("</tbody>")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table, scrolls sideways">\n'
        f"<table{kind}>\n<caption>{caption}</caption>\n" + "\n".join(lines) + "\n</table>\n</div>"
    )


def cell(*lines: str, classes: str = "", shade: float | None = None) -> str:
    """A cell whose lines after the first are small. ``shade`` in [0, 1] is the depth of colour.

    >>> cell("0.420", "[0.325, 0.525]", classes="up", shade=0.5)
    '<td class="up" style="--shade:0.300">0.420<small>[0.325, 0.525]</small></td>'
    """
    # Text stays readable on 60 % of the colour, in the light as in the dark.
    style = "" if shade is None else f' style="--shade:{0.6 * shade:.3f}"'
    kind = f' class="{classes}"' if classes else ""
    rest = "".join(f"<small>{line}</small>" for line in lines[1:] if line)
    return f"<td{kind}{style}>{lines[0]}{rest}</td>"


def estimate_cell(
    estimate: Estimate,
    usual_n: int | None = None,
    note: str = "",
    *,
    digits: int = 3,
    signed: bool = False,
    heat: bool = False,
) -> str:
    """A cell with value and interval, and with n unless it is the ``usual_n`` said elsewhere."""
    n = "" if estimate.n == usual_n else f"n = {estimate.n:,}"
    if n and estimate.n_skipped:
        n += f", {estimate.n_skipped:,} left out"
    defined = not math.isnan(estimate.value)
    return cell(
        number(estimate.value, digits, signed=signed),
        bounds(estimate.low, estimate.high, digits, signed=signed) if defined else "",
        note,
        n,
        classes="heat up" if heat and defined else "",
        shade=estimate.value if heat and defined else None,
    )


def picture(svg: bytes, alternative: str, caption: str) -> str:
    """An SVG as an image: nothing in it can run, and its names do not meet the page's."""
    source = base64.b64encode(svg).decode()
    return (
        f'<figure>\n<div class="scroll" tabindex="0" role="region" aria-label="figure">'
        f'<img src="data:image/svg+xml;base64,{source}" alt="{alternative}"></div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )
