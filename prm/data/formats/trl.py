"""TRL's stepwise supervision: {prompt, completions, labels}, one label for each completion.

The prompt becomes a user message (a conversational prompt keeps its messages), each completion an
assistant message. The label is named ``correct``: true is 1, false is 0, numbers (-1, 0, 1, or
fractions) and null stay. Rows with the same prompt are the same task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prm.data.formats.record import Format, Record, content_id, has_keys
from prm.data.trace import Message, Step, Trace

LABEL = "correct"


class _Row(msgspec.Struct):
    prompt: str | list[dict[str, Any]]
    completions: list[str]
    labels: list[bool | float | None]


def read(record: Record) -> Trace:
    """The trace of one row."""
    row = record.as_type(record.value, _Row)
    if len(row.labels) != len(row.completions):
        expected = f"{len(row.completions)} values (one for each completion)"
        raise record.error("$.labels", expected, str(len(row.labels)))
    prompt: list[Message] = (
        [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
    )
    completions = [{"role": "assistant", "content": text} for text in row.completions]
    return Trace(
        id=record.hashed_id,
        task_id=content_id(row.prompt),
        policy=record.default_policy,
        messages=[*prompt, *completions],
        steps=[
            Step(at=at, labels={LABEL: None if label is None else float(label)})
            for at, label in enumerate(row.labels, start=len(prompt))
        ],
        source=record.source("trl"),
        meta=record.rest("prompt", "completions", "labels"),
    )


FORMAT = Format(
    name="trl",
    summary="{prompt, completions, labels}",
    matches=has_keys("prompt", "completions", "labels"),
    read=read,
)
