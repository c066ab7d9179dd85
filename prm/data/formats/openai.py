"""OpenAI chat conversations: {"messages": […], "tools"?, …}, or a bare list of messages.

Messages stay exactly as they are: string or object arguments, parallel calls, the legacy
``function_call``, content that is null, "" or parts. Known beside them: id, task_id, policy (or
model), reward, success, tools or functions, ``labels`` (one value for each step, or name -> values)
and AgentProcessBench's ``step_labels`` (message index -> value); unnamed labels are called
``human``. Without a task_id, conversations with the same prompt are the same task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prm.data.formats.chat import agent_steps
from prm.data.formats.record import Format, Record, content_id, has_keys
from prm.data.trace import Message, Outcome, Step, Trace

LABEL = "human"
_Values = list[bool | float | None]


class _Conversation(msgspec.Struct):
    messages: list[dict[str, Any]]
    id: str | int | None = None
    task_id: str | int | None = None
    policy: str | None = None
    model: str | None = None
    reward: float | None = None
    success: bool | None = None
    tools: list[dict[str, Any]] | str | None = None
    functions: list[dict[str, Any]] | None = None
    labels: _Values | dict[str, _Values] | None = None
    step_labels: dict[str, bool | float | None] | None = None


def read(record: Record) -> Trace:
    """The trace of one conversation."""
    bare = isinstance(record.value, list)
    value = {"messages": record.value} if bare else record.value
    chat = record.as_type(value, _Conversation)
    _refuse_anthropic(record, chat.messages)
    steps = agent_steps(chat.messages, record.notes)
    for name, column in _columns(record, chat, steps).items():
        steps = [
            msgspec.structs.replace(step, labels={**step.labels, name: label})
            for step, label in zip(steps, column, strict=True)
        ]
    prompt = chat.messages[: steps[0].at] if steps else chat.messages
    known = ("messages", "id", "task_id", "policy", "reward", "success", "labels", "step_labels")
    return Trace(
        id=record.hashed_id if chat.id is None else str(chat.id),
        task_id=content_id(prompt) if chat.task_id is None else str(chat.task_id),
        policy=record.policy or chat.policy or chat.model or record.default_policy,
        tools=_tools(record, chat),
        messages=chat.messages,
        steps=steps,
        outcome=Outcome(reward=chat.reward, success=chat.success),
        source=record.source("openai"),
        meta={} if bare else record.rest(*known, "tools"),
    )


def _refuse_anthropic(record: Record, messages: Sequence[Message]) -> None:
    """Anthropic's messages look alike, but hold calls in ``content``, where they would be lost."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result"):
                path = f"$.messages[{index}].content"
                found = f"a part of type {part['type']}"
                raise record.error(path, "OpenAI content parts", found, "Anthropic's format")


def _columns(
    record: Record, chat: _Conversation, steps: Sequence[Step]
) -> Mapping[str, list[float | None]]:
    """Label name -> (S,) values."""
    named = chat.labels if isinstance(chat.labels, dict) else {}
    if isinstance(chat.labels, list):
        named = {LABEL: chat.labels}
    columns = {name: [_number(value) for value in values] for name, values in named.items()}
    for name, values in columns.items():
        if len(values) != len(steps):
            path = f"$.labels.{name}" if isinstance(chat.labels, dict) else "$.labels"
            raise record.error(path, f"{len(steps)} values (one for each step)", str(len(values)))
    if chat.step_labels is not None:
        if LABEL in columns:
            raise record.error("$.step_labels", f"no second set of {LABEL!r} labels", "one")
        index = {str(step.at): number for number, step in enumerate(steps)}
        column: list[float | None] = [None] * len(steps)
        for at, value in chat.step_labels.items():
            if at not in index:
                expected = f"the index of a step's message ({', '.join(index)})"
                raise record.error(f"$.step_labels.{at}", expected, repr(at))
            column[index[at]] = _number(value)
        columns[LABEL] = column
    return columns


def _number(value: bool | float | None) -> float | None:
    return None if value is None else float(value)


def _tools(record: Record, chat: _Conversation) -> list[dict[str, Any]] | None:
    """The tools as OpenAI wraps them; old datasets hold them as JSON text, older ones unwrapped."""
    if chat.tools is None and chat.functions is not None:
        return [{"type": "function", "function": function} for function in chat.functions]
    if not isinstance(chat.tools, str):
        return chat.tools
    try:
        tools = json.loads(chat.tools)
    except ValueError:
        tools = None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise record.error("$.tools", "a list of tools, or one as JSON text", f"{chat.tools!r:.60}")
    return tools


def _matches(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("messages"), list)
    return isinstance(value, list) and bool(value) and has_keys("role")(value[0])


FORMAT = Format(
    name="openai",
    summary='{"messages": [{"role", "content", "tool_calls"?}, …], "tools"?}',
    matches=_matches,
    read=read,
)
