"""The formats that traces come in: one file each, and a registry that sniffs.

A format is sniffed from the first record of a file, most specific first, and every later record of
that file must match it. To add one: write ``formats/<name>.py`` with a ``FORMAT`` and list it here.
"""

from __future__ import annotations

from typing import Any, Literal

from prm.data.formats import agentrx, intercode, openai, own, tau_bench, trl, who_and_when
from prm.data.formats.record import Format

FormatName = Literal[
    "auto", "own", "intercode", "agentrx", "tau_bench", "who_and_when", "trl", "openai"
]
FORMATS = {
    module.FORMAT.name: module.FORMAT
    for module in (own, intercode, agentrx, tau_bench, who_and_when, trl, openai)
}


def sniff(value: Any) -> Format | None:
    """The first format, most specific first, that knows this record.

    >>> sniff({"prompt": "2 + 2?", "completions": ["4"], "labels": [True]}).name
    'trl'
    """
    return next((each for each in FORMATS.values() if each.matches(value)), None)


def describe(value: Any) -> str:
    """What a record looks like, for error messages.

    >>> describe({"a": 1, "b": 2})
    'an object with the keys a, b'
    """
    if isinstance(value, dict):
        keys = ", ".join(list(value)[:12]) + (", …" if len(value) > 12 else "")
        return f"an object with the keys {keys}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{value!r:.40}"
