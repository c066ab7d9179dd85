"""What figures share: their style, text from data, and saving.

Text from data is shown as it is, without mathematical markup, and wrapped; what the font cannot
show is escaped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from prm.errors import printable

FONT = "DejaVu Sans"  # comes with matplotlib, so that figures are the same everywhere
STYLE: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": 9,
    "text.usetex": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "prm",
}
INK = "#222222"


@matplotlib.rc_context(STYLE)
def as_svg(figure: Figure) -> bytes:
    """The figure as SVG with a transparent ground, the same bytes each time, letters as paths."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


@matplotlib.rc_context(STYLE)
def as_png(figure: Figure) -> bytes:
    """The figure as PNG on white, the same bytes each time."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


def show_title(figure: Figure, title: str) -> None:
    """A title over the whole figure; its lines are broken already."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, weight="bold", parse_math=False)


def fitted(parts: Sequence[str], width: float) -> str:
    """The parts on one line of ``width`` inches where they fit, else each on lines of its own."""
    labels = [wrapped(part, int(width * 11)) for part in parts]
    together = " ".join(labels)
    return together if len(together) <= int(width * 11) else "\n".join(labels)


def wrapped(text: str, width: int) -> str:
    """Lines of at most ``width`` characters, broken after a separator where there is one.

    >>> print(wrapped("a_long_name\\n", 7))
    a_long_
    name\\n
    """
    known = get_font(findfont(FONT)).get_charmap()
    shown = "".join(
        c if ord(c) in known else c.encode("unicode_escape").decode() for c in printable(text)
    )
    lines = [""]
    for piece in re.findall(
        rf"[^\s_/.:-]{{1,{width - 1}}}[\s_/.:-]?|[\s_/.:-]{{1,{width}}}", shown
    ):
        if len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def slug(name: str) -> str:
    """The part of a file name that stands for a name from data."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.") or "policy"


def unique(names: Iterable[str]) -> list[str]:
    """The names, numbered from 2 where one was there before; capitals make no difference."""
    taken: set[str] = set()
    found = []
    for name in names:
        numbered, again = name, 2
        while numbered.casefold() in taken:
            numbered, again = f"{name}-{again}", again + 1
        taken.add(numbered.casefold())
        found.append(numbered)
    return found
