"""What readers had to accept: counts by code, with one example each, printed once at the end.

A diagnostic is not an error: the record was kept, and this says what is odd about it. Codes that
are properties of the trace itself are found here, once for every format (``find_oddities``); the
others are noted where they happen, in a ``Counter`` that each record carries.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prm.data.trace import Trace, pair_results, tool_calls
from prm.errors import plural, printable

CODES = {
    "missing_result": "a tool call has no result before the next step",
    "orphan_result": "a tool message answers no call of its step",
    "duplicate_call_id": "a tool-call id was used before in the same trace",
    "invalid_arguments": "a function's argument string is not a JSON object",
    "object_arguments": "a function's arguments are an object, so the emitted text is unknown",
    "no_steps": "a run that failed before it began has no step",
    "over_max_turns": "a trace has more steps than its max_turns",
    "given_message": "an assistant message was given, not sampled (demonstration, greeting)",
    "role_renamed": "a message's role was corrected; the source's is kept as native_role",
    "unannotated": "a trace has no annotation of its first error",
    "unused_annotation": "an annotation names a trace that was not read",
    "annotation_mismatch": "the annotated agent is not the one that spoke at that message",
    "environment_failure": "a trace was never graded (valid=false)",
    "unlabelled": "a trace was left without labels: what the method needs is unknown",
    "error_off_step": "the first error is not on a step, so later steps are unlabelled",
    "unknown_key": "an unknown key of a trace record was moved to meta",
    "nonfinite_number": "NaN, Infinity or a number out of range became null",
    "lone_surrogate": "a string holds half of a surrogate pair; it is written back escaped",
    "duplicate_key": "an object names a key twice; the last value was kept",
    "nested_columns": "a table holds nested columns, where Arrow fills absent keys with null",
    "skipped_file": "a file of a folder has no suffix of a trace file",
    "rejected": "a record could not be read and went to the rejects file",
}


@dataclass
class Tally:
    """One code's counts."""

    occurrences: int = 0
    records: int = 0
    example: str = ""


@dataclass
class Diagnostics:
    """Counts by code over everything that was read.

    >>> diagnostics = Diagnostics()
    >>> diagnostics.add({"missing_result": 2}, "a.jsonl:1")
    >>> diagnostics.add({"missing_result": 1}, "a.jsonl:7")
    >>> print(diagnostics.table())
    missing_result  3 in 2 records  a tool call has no result before the next step (a.jsonl:1)
    """

    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, notes: Mapping[str, int], example: str) -> None:
        """Add the notes of one record, which is found at ``example``."""
        for code, occurrences in notes.items():
            assert code in CODES, f"undocumented diagnostic {code!r}"
            tally = self.tallies.setdefault(code, Tally(example=example))
            tally.occurrences += occurrences
            tally.records += 1

    def count(self, code: str) -> int:
        """How often ``code`` occurred."""
        return self.tallies[code].occurrences if code in self.tallies else 0

    def table(self) -> str:
        """One line a code, the most frequent first; empty when nothing was odd."""
        ranked = sorted(self.tallies.items(), key=lambda item: (-item[1].occurrences, item[0]))
        counts = [
            f"{tally.occurrences:,} in {plural(tally.records, 'record')}" for _, tally in ranked
        ]
        widths = (max(map(len, self.tallies), default=0), max(map(len, counts), default=0))
        return "\n".join(
            f"{code:<{widths[0]}}  {count:<{widths[1]}}  {CODES[code]} ({printable(tally.example)})"
            for (code, tally), count in zip(ranked, counts, strict=True)
        )


def find_oddities(trace: Trace) -> Counter[str]:
    """The codes that are properties of the trace itself, whatever format it came from."""
    notes: Counter[str] = Counter()
    seen: set[str] = set()
    for window in trace.windows():
        pairing = pair_results(window)
        notes["missing_result"] += sum(result is None for result in pairing.results)
        notes["orphan_result"] += len(pairing.unmatched)
        for call in tool_calls(window.action):
            identity = call.get("id")
            if isinstance(identity, str):
                notes["duplicate_call_id"] += identity in seen
                seen.add(identity)
            function = call.get("function")
            if isinstance(function, dict):
                notes[_argument_code(function.get("arguments"))] += 1
    notes["no_steps"] += not trace.steps
    turns = trace.outcome.max_turns
    notes["over_max_turns"] += turns is not None and trace.n_steps > turns
    notes["environment_failure"] += not trace.outcome.valid
    del notes[""]
    return +notes


def _argument_code(arguments: object) -> str:
    if isinstance(arguments, dict):
        return "object_arguments"
    if not isinstance(arguments, str):
        return "invalid_arguments"
    try:
        return "" if isinstance(json.loads(arguments), dict) else "invalid_arguments"
    except (ValueError, RecursionError):
        return "invalid_arguments"
