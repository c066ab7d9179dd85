"""What commands with tables share: reading traces with counts, and tables 80 columns wide."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from prm.data.convert import counted, report
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces
from prm.data.trace import Trace

Row = tuple[str, ...]
PAGE_WIDTH = 80


def read_counted(paths: list[str]) -> list[Trace]:
    """All traces of some files, with counts and diagnostics on stderr."""
    diagnostics, totals = Diagnostics(), Counter[str]()
    traces = list(counted(read_traces(paths, diagnostics=diagnostics), totals, diagnostics))
    report(totals, diagnostics)
    return traces


def json_text(values: Any) -> str:
    """Plain values as indented JSON for a terminal or a file."""
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def table(headings: Row, rows: Iterable[Row]) -> str:
    """A table; empty without rows."""
    drawn = Table(*headings, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        drawn.add_row(*row)
    if not drawn.row_count:
        return ""
    page = io.StringIO()
    Console(file=page, width=PAGE_WIDTH, highlight=False, markup=False).print(drawn)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip().split("\n"))
