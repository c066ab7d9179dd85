"""Everything that is written or read as text in desk: tools, prompt, calls, observations.

One place for both directions, so that what the environment writes is what the belief tracker
reads. Lines are short and their words few: a model of a million parameters has to act on them.

    r17 Oslo age=2 owner=r42 agent=r71 phone=5512 code=8841 left=7
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.desk.world import FIELDS, RELATIONS, DeskConfig, Task

ARGUMENT = {"search": "name", "read": "record", "refresh": "record", "answer": "value"}
"""Each tool takes one string."""
_DESCRIPTIONS = {
    "search": "find records by name",
    "read": "show a record",
    "refresh": "show the true state of a record that was read",
    "answer": "give the answer and end",
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": _DESCRIPTIONS[name],
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"}},
                "required": [argument],
            },
        },
    }
    for name, argument in ARGUMENT.items()
]

TIMEOUT = "timeout"
DONE = "done"

_LEFT = r"(?: left=\d+)?"
_FOUND = re.compile(r"found (none|r\d\d(?: r\d\d)*)" + _LEFT)
_RECORD = re.compile(
    r"(?P<handle>r\d\d) (?P<city>\w+) age=(?P<age>\d+)"
    + "".join(f" {name}=(?P<{name}>\\w+)" for name in (*RELATIONS, *FIELDS))
    + _LEFT
)
_QUESTION = re.compile(
    rf"((?:{'|'.join(FIELDS)})(?: of the (?:{'|'.join(RELATIONS)}))*) of (\w+), (\w+)\?{_LEFT}"
)


class Call(NamedTuple):
    """A well-formed call of one of the four tools."""

    tool: str
    argument: str


class Record(NamedTuple):
    """A record as shown: its links and values by name."""

    handle: str
    city: str
    age: int
    entries: dict[str, str]


@dataclass(frozen=True)
class Question:
    """What the prompt asks for, read from its text."""

    name: str
    city: str
    path: tuple[str, ...]
    field: str


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    function: _Function


class _Action(msgspec.Struct):
    tool_calls: list[_ToolCall] | None = None


_arguments = msgspec.json.Decoder(dict[str, str])


def prompt(task: Task, max_turns: int, config: DeskConfig) -> list[Message]:
    """The two messages that open an episode."""
    stale = [
        f"age={age} is stale with probability {p:g}"
        for age, p in zip(config.ages, config.stale_probs, strict=True)
        if p > 0
    ]
    rules = (
        "Answer the question from the office records. " + "; ".join(stale) + ". "
        "refresh shows the truth. Calls can time out."
    )
    chain = " of the ".join([task.field, *reversed(task.path)])
    question = f"{chain} of {task.name}, {task.city}?" + _left(max_turns, config)
    return [{"role": "system", "content": rules}, {"role": "user", "content": question}]


def read_prompt(messages: list[Message]) -> Question:
    """The question of a desk prompt; a :class:`PRMError` says when the messages are not one.

    >>> read_prompt([{"role": "user", "content": "phone of the agent of Alder, Oslo? left=6"}])
    Question(name='Alder', city='Oslo', path=('agent',), field='phone')
    """
    content = messages[-1].get("content") if messages else None
    match = _QUESTION.fullmatch(str(content))
    if match is None:
        raise PRMError(f"expected the prompt of a desk task, found {content!r}")
    field, *backwards = match[1].split(" of the ")
    return Question(match[2], match[3], tuple(reversed(backwards)), field)


def call_message(
    call: Call, content: str | None = None, *, spaced: bool = False, id: str = "call_0"
) -> Message:
    """The assistant message that makes ``call``; ``spaced`` writes a blank after the colon.

    >>> call_message(Call("read", "r17"))["tool_calls"][0]["function"]
    {'name': 'read', 'arguments': '{"record":"r17"}'}
    """
    pair = msgspec.json.encode({ARGUMENT[call.tool]: call.argument}).decode()
    arguments = pair.replace('":"', '": "', 1) if spaced else pair
    function = {"name": call.tool, "arguments": arguments}
    tool_call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [tool_call]}


def read_call(message: Mapping[str, Any]) -> Call | str:
    """The call of an assistant message, or the sentence that says what is wrong with it.

    >>> read_call({"role": "assistant", "content": "Hello"})
    'error: expected one call a turn, found 0'
    """
    try:
        calls = msgspec.convert(message, _Action).tool_calls or []
    except msgspec.ValidationError:
        return "error: malformed call"
    if len(calls) != 1:
        return f"error: expected one call a turn, found {len(calls)}"
    function = calls[0].function
    argument = ARGUMENT.get(function.name)
    if argument is None:
        return "error: unknown tool"
    try:
        arguments = _arguments.decode(function.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return "error: arguments are not JSON strings"
    if list(arguments) != [argument]:
        return f"error: {function.name} takes {argument}"
    return Call(function.name, arguments[argument])


def observations(message: Mapping[str, Any], line: str) -> list[Message]:
    """The messages that answer an action: ``line`` for each of its calls, or once, as the user."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return [{"role": "user", "content": line}]
    ids = [call.get("id") if isinstance(call, dict) else None for call in calls]
    return [
        {"role": "tool", "content": line}
        if call_id is None
        else {"role": "tool", "tool_call_id": call_id, "content": line}
        for call_id in ids
    ]


def with_turns(line: str, left: int, config: DeskConfig) -> str:
    """``line`` with the turns left, where they are shown."""
    return line + _left(left, config)


def record_line(record: Record) -> str:
    """A record as text; :func:`read_line` is its inverse."""
    entries = " ".join(f"{name}={value}" for name, value in record.entries.items())
    return f"{record.handle} {record.city} age={record.age} {entries}"


def found_line(handles: list[str]) -> str:
    """Search results as text, best first; :func:`read_line` is its inverse."""
    return " ".join(["found", *(handles or ["none"])])


def read_line(line: str) -> Record | list[str] | None:
    """A record, search results, or None for anything else (time-out, error, done).

    >>> read_line("r17 Oslo age=2 owner=r42 agent=r71 phone=5512 code=8841 left=7").entries["agent"]
    'r71'
    >>> read_line("found r17 r42 left=8"), read_line("timeout left=8")
    (['r17', 'r42'], None)
    """
    if results := _FOUND.fullmatch(line):
        return [] if results[1] == "none" else results[1].split(" ")
    shown = _RECORD.fullmatch(line)
    if shown is None:
        return None
    entries = {name: shown[name] for name in (*RELATIONS, *FIELDS)}
    return Record(shown["handle"], shown["city"], int(shown["age"]), entries)


def _left(turns: int, config: DeskConfig) -> str:
    return f" left={turns}" if config.show_turns else ""
