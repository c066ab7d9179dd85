"""Who&When (2505.00212): logs of failed multi-agent runs, with the decisive mistake annotated.

A record has ``history``, a list of {content, name?, role}, and ``mistake_step``, a string, 0-based
into history. The roles are unreliable (most agents speak as ``user``), so the speaker decides: the
first message is the task, whoever is named in it (it always is the manager's brief); what
``Computer_terminal`` or a person says is an observation; every other message is a step of an agent.
A corrected role keeps the source's under ``native_role``. ``meta["first_error"]`` says where the
mistake is; it has no step when the mistake is in the brief or on an observation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prm.data.formats.chat import first_error
from prm.data.formats.record import Format, Record, content_id, has_keys
from prm.data.trace import Message, Outcome, Step, Trace

ENVIRONMENT = {"Computer_terminal", "human", "user"}


class _Run(msgspec.Struct):
    history: list[dict[str, Any]]
    mistake_step: str | int | None = None
    mistake_agent: str | None = None
    mistake_reason: str | None = None
    is_correct: bool | None = None
    question_ID: str | None = None
    question: str | None = None


def read(record: Record) -> Trace:
    """The trace of one run of the group of agents."""
    run = record.as_type(record.value, _Run)
    messages = [_message(record, index, item) for index, item in enumerate(run.history)]
    steps = [Step(at=at) for at, message in enumerate(messages) if message["role"] == "assistant"]
    task_id = run.question_ID or content_id(run.question or messages[:1])
    meta = record.rest("history", "is_correct", "question_ID")
    if run.mistake_step is None:
        record.notes["unannotated"] += 1
    else:
        at = _mistake(record, run.mistake_step, len(messages))
        meta["first_error"] = first_error(steps, at, run.mistake_reason)
        speaker = run.history[at].get("name", run.history[at].get("role"))
        record.notes["annotation_mismatch"] += run.mistake_agent not in (None, speaker)
    return Trace(
        id=record.path_id(task_id),
        task_id=task_id,
        policy=record.default_policy,
        messages=messages,
        steps=steps,
        outcome=Outcome(success=run.is_correct),
        source=record.source("who_and_when"),
        meta=meta,
    )


def _message(record: Record, index: int, item: dict[str, Any]) -> Message:
    native = item.get("role")
    if not isinstance(native, str):
        raise record.error(f"$.history[{index}].role", "a string", repr(native))
    speaker = item.get("name", native)
    if not isinstance(speaker, str):
        raise record.error(f"$.history[{index}].name", "a string", repr(speaker))
    is_agent = index > 0 and speaker not in ENVIRONMENT
    role = "assistant" if is_agent else "user"
    if role == native:
        return item
    record.notes["role_renamed"] += 1
    return {**item, "role": role, "native_role": native}


def _mistake(record: Record, value: str | int, n_messages: int) -> int:
    text = str(value)
    if not text.isdecimal() or int(text) >= n_messages:
        expected = f"a message index from 0 to {n_messages - 1}"
        raise record.error("$.mistake_step", expected, repr(value))
    return int(text)


FORMAT = Format(
    name="who_and_when",
    summary="{question, history, mistake_step, mistake_agent}",
    matches=has_keys("history", "mistake_step"),
    read=read,
)
